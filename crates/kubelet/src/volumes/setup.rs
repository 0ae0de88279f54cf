//! Sets up a pod's volumes in `PODDIR/volumes/PLUGIN/NAME`, keeps rendered ones fresh and takes all down.
use std::collections::HashMap;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{HostPathVolumeSource, Pod, Volume};

use super::{atomic, payload};
use crate::effects::Context;
use crate::pod;

/// Why a volume is not there; the text is that of the FailedMount event.
#[derive(Debug, thiserror::Error)]
#[error("MountVolume.SetUp failed for volume {volume:?} : {reason}")]
pub struct VolumeError {
    /// Volume name.
    pub volume: String,
    /// Why.
    pub reason: String,
}

/// A volume that is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ready {
    /// A directory or file of the host.
    Path {
        /// Where.
        path: PathBuf,
        /// Whether containers may never write to it.
        read_only: bool,
    },
    /// An image that the runtime mounts.
    Image {
        /// Its reference.
        reference: String,
        /// Pull policy.
        policy: Option<String>,
    },
}

/// The volumes of one pod, by name.
#[derive(Clone, Debug, Default)]
pub struct PodVolumes {
    /// What is set up.
    pub ready: HashMap<String, Ready>,
    /// When rendered volumes must be looked at though nothing changed (tokens).
    pub renew_at: Option<Timestamp>,
}

/// Sets up, or brings up to date, every volume of the pod.
pub async fn ensure(ctx: &Context, pod: &Pod) -> Result<PodVolumes, VolumeError> {
    let mut out = PodVolumes::default();
    for v in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
        let fail = |reason: String| VolumeError { volume: v.name.clone(), reason };
        let ready = one(ctx, pod, v, &mut out.renew_at).await.map_err(fail)?;
        out.ready.insert(v.name.clone(), ready);
    }
    Ok(out)
}

async fn one(ctx: &Context, pod: &Pod, v: &Volume, renew_at: &mut Option<Timestamp>) -> Result<Ready, String> {
    if let Some(rendered) = payload::render(ctx, pod, v).await? {
        if let Some(at) = rendered.renew_at {
            *renew_at = Some(renew_at.map_or(at, |t| t.min(at)));
        }
        let plugin = match v {
            Volume { config_map: Some(_), .. } => "kubernetes.io~configmap",
            Volume { secret: Some(_), .. } => "kubernetes.io~secret",
            Volume { downward_api: Some(_), .. } => "kubernetes.io~downward-api",
            _ => "kubernetes.io~projected",
        };
        let dir = volume_dir(ctx, pod, plugin, &v.name);
        let text = |e: io::Error| e.to_string();
        make_dir(&dir, 0o777).map_err(text)?;
        if payload::in_memory(v) && !is_mounted(ctx, &dir) {
            ctx.mounts.tmpfs(&dir, None, 0o777).map_err(text)?;
        }
        let stamp = format!("{}", ctx.clock.now().as_nanosecond());
        let mut files = rendered.files;
        if let Some(group) = fs_group(pod) {
            files.values_mut().for_each(|f| f.mode |= 0o440);
            atomic::write(&dir, &files, Some(group), &stamp).map_err(text)?;
        } else {
            atomic::write(&dir, &files, None, &stamp).map_err(text)?;
        }
        return Ok(Ready::Path { path: dir, read_only: true });
    }
    if let Some(e) = &v.empty_dir {
        let dir = volume_dir(ctx, pod, "kubernetes.io~empty-dir", &v.name);
        let text = |e: io::Error| e.to_string();
        let fresh = !dir.exists();
        make_dir(&dir, 0o777).map_err(text)?;
        match e.medium.as_deref().unwrap_or_default() {
            "Memory" if !is_mounted(ctx, &dir) => {
                let size = e.size_limit.as_ref().map(pod::quantity).and_then(|q| u64::try_from(q.value()).ok());
                ctx.mounts.tmpfs(&dir, size.filter(|s| *s > 0), 0o777).map_err(text)?;
            }
            "" | "Memory" => {}
            other => return Err(format!("unsupported storage medium {other:?}")),
        }
        if let Some(group) = fs_group(pod).filter(|_| fresh) {
            std::os::unix::fs::chown(&dir, None, Some(group)).map_err(text)?;
            // Set-group-id: what is made in it belongs to the group too.
            std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o2777)).map_err(text)?;
        }
        return Ok(Ready::Path { path: dir, read_only: false });
    }
    if let Some(h) = &v.host_path {
        return host_path(h).map(|path| Ready::Path { path, read_only: false });
    }
    if let Some(i) = &v.image {
        let reference = i.reference.clone().unwrap_or_default();
        return Ok(Ready::Image { reference, policy: i.pull_policy.clone() });
    }
    Err("no volume plugin matched: this kubelet serves configMap, secret, downwardAPI, projected, emptyDir, hostPath and image volumes".into())
}

fn fs_group(pod: &Pod) -> Option<u32> {
    let group = pod.spec.as_ref()?.security_context.as_ref()?.fs_group?;
    u32::try_from(group).ok()
}

/// `PODDIR/volumes/PLUGIN/NAME`.
fn volume_dir(ctx: &Context, pod: &Pod, plugin: &str, name: &str) -> PathBuf {
    ctx.config.pod_dir(pod::uid(pod)).join("volumes").join(plugin).join(name)
}

fn make_dir(dir: &Path, mode: u32) -> io::Result<()> {
    if !dir.exists() {
        std::fs::create_dir_all(dir)?;
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

fn is_mounted(ctx: &Context, dir: &Path) -> bool {
    ctx.mounts.below(dir).iter().any(|p| p == dir)
}

/// Checks a hostPath against its type, making what the type asks to be made.
fn host_path(h: &HostPathVolumeSource) -> Result<PathBuf, String> {
    use std::os::unix::fs::FileTypeExt as _;
    let path = PathBuf::from(&h.path);
    let kind = h.type_.as_deref().unwrap_or_default();
    let make = |e: io::Error| e.to_string();
    match kind {
        "" => return Ok(path),
        "DirectoryOrCreate" if !path.exists() => {
            std::fs::create_dir_all(&path).map_err(make)?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).map_err(make)?;
        }
        "FileOrCreate" if !path.exists() => {
            std::fs::File::create(&path).map_err(make)?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).map_err(make)?;
        }
        _ => {}
    }
    let found = std::fs::metadata(&path).map(|m| m.file_type()).ok();
    let (what, good) = match kind {
        "Directory" | "DirectoryOrCreate" => ("directory", found.is_some_and(|t| t.is_dir())),
        "File" | "FileOrCreate" => ("file", found.is_some_and(|t| t.is_file())),
        "Socket" => ("socket", found.is_some_and(|t| t.is_socket())),
        "CharDevice" => ("character device", found.is_some_and(|t| t.is_char_device())),
        "BlockDevice" => ("block device", found.is_some_and(|t| t.is_block_device())),
        other => return Err(format!("{other} is an invalid volume type")),
    };
    if good { Ok(path) } else { Err(format!("hostPath type check failed: {} is not a {what}", h.path)) }
}

/// Takes a pod's volumes and directory down. Never crosses into a mount: what cannot be unmounted stops it.
pub fn tear_down(ctx: &Context, uid: &str) -> io::Result<()> {
    if uid.is_empty() || uid.contains('/') || uid.starts_with('.') {
        return Err(io::Error::other("not a pod's UID"));
    }
    let dir = ctx.config.pod_dir(uid);
    let mut failed = None;
    for mount in ctx.mounts.below(&dir) {
        if let Err(e) = ctx.mounts.unmount(&mount) {
            failed = Some(e);
        }
    }
    if let Some(e) = failed {
        return Err(e);
    }
    if !ctx.mounts.below(&dir).is_empty() {
        return Err(io::Error::other(format!("{} still has mounts", dir.display())));
    }
    match std::fs::remove_dir_all(&dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_path_types() {
        let dir = tempfile::tempdir().expect("tempdir");
        let at = |name: &str, kind: &str| {
            let path = dir.path().join(name).display().to_string();
            host_path(&HostPathVolumeSource { path, type_: Some(kind.to_owned()) })
        };
        assert!(at("new", "").is_ok());
        assert!(at("d", "DirectoryOrCreate").is_ok() && at("d", "Directory").is_ok());
        assert!(at("f", "FileOrCreate").is_ok() && at("f", "File").is_ok());
        let e = at("f", "Directory").expect_err("a file");
        assert!(e.starts_with("hostPath type check failed: ") && e.ends_with("/f is not a directory"), "{e}");
        assert!(at("none", "Socket").is_err() && at("none", "odd").is_err());
    }
}
