//! Removes what a node created on its machine, in an order in which each step can still work.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::path::Path;

use anyhow::Context as _;

/// The file in a node's directory with the runtime it was started with, if that is not its own.
const RUNTIME_FILE: &str = "kubelet/container-runtime-endpoint";

/// Records which runtime the node of a data directory uses, `None` for its own.
pub fn remember_runtime(dir: &Path, endpoint: Option<&str>) -> anyhow::Result<()> {
    let path = dir.join(RUNTIME_FILE);
    let done = match endpoint {
        Some(endpoint) => std::fs::create_dir_all(dir.join("kubelet")).and_then(|()| std::fs::write(&path, endpoint)),
        // Pods of the previous runtime may remain, but only the newest runtime is recorded.
        None => match std::fs::remove_file(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
            other => other,
        },
    };
    done.with_context(|| path.display().to_string())
}

/// Returns the runtime of a data directory's node; `None` if there was no node.
pub fn runtime_endpoint(dir: &Path) -> Option<String> {
    let noted = std::fs::read_to_string(dir.join(RUNTIME_FILE)).ok().map(|endpoint| endpoint.trim().to_owned());
    let own = || kelson_cri::containerd::ContainerdConfig::new(dir).ok().filter(|config| config.socket().exists());
    noted.or_else(|| own().map(|config| config.endpoint()))
}

/// Removes everything that the node of a data directory created outside of it, including its pods in the runtime at
/// `endpoint` (by default the one that it was last started with); continues after errors and returns all of them. A
/// control plane alone creates nothing there.
pub async fn remove(dir: &Path, endpoint: Option<&str>) -> Vec<String> {
    let mut errors = Vec::new();
    errors.extend(kelson_announce::remove_leftovers(dir).await.err().map(|e| e.to_string()));
    if has_node(dir) {
        let kubelet = dir.join("kubelet");
        let noted = std::fs::read_to_string(dir.join(RUNTIME_FILE)).ok();
        // Before the network is removed, since the runtime calls its plugin to remove pods from it.
        if let Some(endpoint) = endpoint.or(noted.as_deref()) {
            let own = kelson_kubelet::cleanup::own_sandboxes(&kubelet);
            errors.extend(kelson_cri::containerd::remove_from_runtime(endpoint.trim(), own).await);
        }
        errors.extend(kelson_cri::containerd::cleanup(dir).await);
        errors.extend(kelson_proxy::cleanup(dir).await);
        errors.extend(kelson_network_policy::cleanup(dir).await);
        let cgroups = format!("kelson-{}", kelson_net::network_id(dir));
        errors.extend(kelson_kubelet::cleanup::cleanup(&kubelet, &cgroups).await);
        errors.extend(kelson_net::cleanup(dir).await.into_iter().map(|e| e.to_string()));
        errors.extend(super::pod_logs::give_back(dir));
    }
    errors
}

fn has_node(dir: &Path) -> bool {
    kelson_net::ranges::is_reserved(dir) || ["containerd", "net", "cni", "kubelet"].iter().any(|d| dir.join(d).exists())
}
