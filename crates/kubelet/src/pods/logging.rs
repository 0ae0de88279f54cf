//! Links for log collectors to container logs (`/var/log/containers`). If a link cannot be created or removed, the container still runs;
//! the failure is logged, and dangling links are removed when the kubelet next starts.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use kelson_cri::proto as cri;
use kelson_tasks::FILES;

use super::parts::Parts;
use crate::logs::links;
use crate::pod;
use crate::runtime::config;

/// Creates the directory of a container's log. Returns the path of the log file.
///
/// # Errors
/// The error of the system call as a string.
pub async fn prepare(sandbox: &cri::PodSandboxConfig, container: &str, restart_count: i32) -> Result<PathBuf, String> {
    let log = Path::new(&sandbox.log_directory).join(config::log_path(container, restart_count));
    let dir = log.parent().map(Path::to_owned).unwrap_or_default();
    let made = FILES.run(move || std::fs::create_dir_all(dir)).await;
    made.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
    Ok(log)
}

/// Links a container's log after the runtime created it.
pub async fn link(parts: &Parts, pod: &Pod, (container, id): (&str, &str), log: PathBuf) {
    let Some(link) = path(parts, pod, container, id) else { return };
    let (at, made) = (link.clone(), FILES.run(move || links::make(&link, &log)).await);
    if let Ok(Err(error)) = made {
        tracing::warn!(link = %at.display(), %error, "cannot create the link to a container's log; log collectors will not find the log");
    }
}

/// Removes the link to a container's log.
pub async fn unlink(parts: &Parts, pod: &Pod, (container, id): (&str, &str)) {
    let Some(link) = path(parts, pod, container, id) else { return };
    let (at, removed) = (link.clone(), FILES.run(move || links::remove(&link)).await);
    if let Ok(Err(error)) = removed {
        tracing::debug!(link = %at.display(), %error, "cannot remove the link to a container's log; the next start removes it");
    }
}

fn path(parts: &Parts, pod: &Pod, container: &str, id: &str) -> Option<PathBuf> {
    Some(links::path(parts.dirs.log_links()?, (pod::namespace(pod), pod::name(pod)), container, id))
}
