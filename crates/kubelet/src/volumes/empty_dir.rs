//! emptyDir volumes: a directory of the pod's own, or memory (upstream: `pkg/volume/emptydir`).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files, removals in one of their own")]

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Volume;

use super::mounts::is_mounted;
use super::source::{Ready, Request, SetUp, Source, in_files, make_dir};
use crate::pod;

/// The directory of such volumes in a pod's own.
pub const PLUGIN: &str = "kubernetes.io~empty-dir";

pub(super) struct EmptyDir;

#[async_trait]
impl Source for EmptyDir {
    fn is(&self, v: &Volume) -> bool {
        v.empty_dir.is_some()
    }

    async fn set_up(&self, request: &Request<'_>) -> Result<SetUp, String> {
        let source = request.volume.empty_dir.clone().unwrap_or_default();
        let (dir, group, mounts) = (request.dir(PLUGIN), request.fs_group(), Arc::clone(&request.volumes.mounts));
        let path = dir.clone();
        in_files(move || {
            let text = |e: std::io::Error| e.to_string();
            let fresh = !dir.exists();
            make_dir(&dir, 0o777).map_err(text)?;
            match source.medium.as_deref().unwrap_or_default() {
                "Memory" if !is_mounted(&*mounts, &dir) => {
                    let size =
                        source.size_limit.as_ref().map(pod::quantity).and_then(|q| u64::try_from(q.value()).ok());
                    mounts.tmpfs(&dir, size.filter(|s| *s > 0), 0o777).map_err(text)?;
                }
                "" | "Memory" => {}
                other => return Err(format!("unsupported storage medium {other:?}")),
            }
            if let Some(group) = group.filter(|_| fresh) {
                std::os::unix::fs::chown(&dir, None, Some(group)).map_err(text)?;
                // Set-group-id: what is made in it belongs to the group too.
                std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o2777)).map_err(text)?;
            }
            Ok(())
        })
        .await?;
        Ok(Ready::Path { path, read_only: false }.into())
    }
}
