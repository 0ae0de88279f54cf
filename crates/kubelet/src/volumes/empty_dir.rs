//! Volumes with `emptyDir`: a directory of the pod, or memory (upstream: `pkg/volume/emptydir`).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Pod, Volume};
use kelson_meta::Quantity;

use super::mounts::is_mounted;
use super::source::{Ready, Request, SetUp, Source, in_files, make_dir};
use crate::pod;

/// Name of the directory of emptyDir volumes in a pod's directory.
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
        let pages = page_bytes(request.pod, source.medium.as_deref().unwrap_or_default())?;
        in_files(move || {
            let text = |e: std::io::Error| e.to_string();
            let fresh = !dir.exists();
            make_dir(&dir, 0o777).map_err(text)?;
            match (source.medium.as_deref().unwrap_or_default(), pages) {
                ("", _) => {}
                _ if is_mounted(&*mounts, &dir) => {}
                (_, Some(bytes)) => mounts.huge_pages(&dir, bytes).map_err(text)?,
                ("Memory", None) => {
                    let size =
                        source.size_limit.as_ref().map(pod::quantity).and_then(|q| u64::try_from(q.value()).ok());
                    mounts.tmpfs(&dir, size.filter(|s| *s > 0), 0o777).map_err(text)?;
                }
                (other, None) => return Err(format!("unsupported storage medium {other:?}")),
            }
            if let Some(group) = group.filter(|_| fresh) {
                std::os::unix::fs::chown(&dir, None, Some(group)).map_err(text)?;
                // The set-group-ID bit makes new files belong to the group.
                std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o2777)).map_err(text)?;
            }
            Ok(())
        })
        .await?;
        Ok(Ready::Path { path, read_only: false }.into())
    }
}

/// Page size in bytes of a huge pages volume: in `HugePages-2Mi` it is explicit, for `HugePages` it is the only size that the pod's
/// containers request. `None` for other media.
fn page_bytes(pod: &Pod, medium: &str) -> Result<Option<u64>, String> {
    let Some(named) = medium.strip_prefix("HugePages") else { return Ok(None) };
    let bytes = |text: &str| text.parse::<Quantity>().ok().and_then(|q| u64::try_from(q.value()).ok());
    let named = match named.strip_prefix('-').map(bytes) {
        None if named.is_empty() => None,
        Some(Some(size)) => Some(size),
        _ => return Err(format!("unsupported storage medium {medium:?}")),
    };
    let spec = pod.spec.as_ref();
    let of_pod = spec.and_then(|s| s.resources.as_ref());
    let of_containers = pod::members(pod).filter_map(|m| m.container.resources.clone());
    let asked: BTreeSet<u64> = of_containers
        .chain(of_pod.cloned())
        .flat_map(|r| r.limits.into_iter().chain(r.requests).flatten())
        .filter_map(|(resource, _)| bytes(resource.strip_prefix("hugepages-")?))
        .collect();
    match named {
        Some(size) if asked.contains(&size) => Ok(Some(size)),
        None if asked.len() > 1 => {
            Err(format!("medium: {medium} can't be used if container requests multiple huge page sizes"))
        }
        None if !asked.is_empty() => Ok(asked.first().copied()),
        _ => Err(format!(
            "medium {medium}: hugePages storage requested, but there is no resource request for huge pages"
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn huge_page_sizes_follow_the_pods_requests() {
        let pod = |sizes: &[&str]| -> Pod {
            let limits: serde_json::Map<_, _> =
                sizes.iter().map(|size| (format!("hugepages-{size}"), json!("1Gi"))).collect();
            serde_json::from_value(json!({"spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]}}))
                .expect("a pod")
        };
        for (medium, sizes, wanted) in [
            ("", &["2Mi"][..], Ok(None)),
            ("Memory", &[], Ok(None)),
            ("HugePages", &["2Mi"], Ok(Some(2 << 20))),
            ("HugePages-1Gi", &["2Mi", "1Gi"], Ok(Some(1 << 30))),
            ("HugePages", &["2Mi", "1Gi"], Err("multiple huge page sizes")),
            ("HugePages", &[], Err("no resource request for huge pages")),
            ("HugePages-1Gi", &["2Mi"], Err("no resource request for huge pages")),
            ("HugePages-much", &["2Mi"], Err("unsupported storage medium")),
            ("HugePagesX", &["2Mi"], Err("unsupported storage medium")),
        ] {
            match (page_bytes(&pod(sizes), medium), wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted, "{medium} {sizes:?}"),
                (Err(found), Err(wanted)) => assert!(found.contains(wanted), "{medium} {sizes:?}: {found}"),
                (found, _) => panic!("{medium} {sizes:?}: {found:?}"),
            }
        }
    }
}
