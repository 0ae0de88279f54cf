//! Volumes with `nfs`, of a pod or a claim. They are mounted below the pod's directory by the system's `mount` command, which resolves the
//! server and negotiates the version (upstream: `pkg/volume/nfs`).
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{NFSVolumeSource, Volume};

use super::mounts::is_mounted;
use super::source::{Ready, Request, SetUp, Source, in_files, make_dir};

/// Timeout of the mount command.
const MOUNT_MAX: Duration = Duration::from_secs(120);

pub(super) struct Nfs;

#[async_trait]
impl Source for Nfs {
    fn is(&self, v: &Volume) -> bool {
        v.nfs.is_some()
    }

    async fn set_up(&self, request: &Request<'_>) -> Result<SetUp, String> {
        let source = request.volume.nfs.clone().unwrap_or_default();
        let read_only = source.read_only.unwrap_or(false);
        let path = mount(request, request.dir("kubernetes.io~nfs"), &source, &[], read_only).await?;
        Ok(Ready::Path { path, read_only }.into())
    }
}

/// Returns the arguments of `mount`.
fn arguments(source: &NFSVolumeSource, options: &[String], read_only: bool, dir: &str) -> Vec<String> {
    // IPv6 addresses need brackets, because a colon separates server and path.
    let server = match source.server.contains(':') && !source.server.starts_with('[') {
        true => format!("[{}]", source.server),
        false => source.server.clone(),
    };
    let mut all: Vec<&str> = options.iter().map(String::as_str).collect();
    if read_only && !all.contains(&"ro") {
        all.push("ro");
    }
    let mut out = vec!["-t".to_owned(), "nfs".to_owned()];
    if !all.is_empty() {
        out.extend(["-o".to_owned(), all.join(",")]);
    }
    out.extend(["--".to_owned(), format!("{server}:{}", source.path), dir.to_owned()]);
    out
}

/// Mounts a server's directory at `dir`, unless it is already mounted.
pub(super) async fn mount(
    request: &Request<'_>,
    dir: PathBuf,
    source: &NFSVolumeSource,
    options: &[String],
    read_only: bool,
) -> Result<PathBuf, String> {
    let (mounts, at) = (Arc::clone(&request.volumes.mounts), dir.clone());
    let there = in_files(move || {
        make_dir(&at, 0o750).map_err(|e| e.to_string())?;
        Ok(is_mounted(&*mounts, &at))
    });
    if there.await? {
        return Ok(dir);
    }
    let arguments = arguments(source, options, read_only, &dir.display().to_string());
    let mut command = tokio::process::Command::new("mount");
    command.args(&arguments).stdin(Stdio::null()).kill_on_drop(true);
    let text = |why: String| {
        format!("mount failed: {why}\nMounting command: mount\nMounting arguments: {}", arguments.join(" "))
    };
    match tokio::time::timeout(MOUNT_MAX, command.output()).await {
        Err(_) => Err(text(format!("no answer in {} s", MOUNT_MAX.as_secs()))),
        Ok(Err(e)) => Err(text(e.to_string())),
        Ok(Ok(out)) if out.status.success() => Ok(dir),
        Ok(Ok(out)) => {
            let said = String::from_utf8_lossy(&out.stderr);
            let said: String = said.trim().chars().take(512).collect();
            Err(text(format!("{}\nOutput: {said}", out.status)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_arguments_of_nfs() {
        let of = |server: &str| NFSVolumeSource { server: server.into(), path: "/export".into(), read_only: None };
        let options = ["nfsvers=4.1".to_owned(), "hard".to_owned()];
        assert_eq!(arguments(&of("host"), &[], false, "/d"), ["-t", "nfs", "--", "host:/export", "/d"]);
        assert_eq!(
            arguments(&of("fd00::1"), &options, true, "/d"),
            ["-t", "nfs", "-o", "nfsvers=4.1,hard,ro", "--", "[fd00::1]:/export", "/d"]
        );
    }
}
