//! What a node leaves on its machine, removed in an order in which each step can still work.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::path::Path;

use anyhow::Context as _;

/// File in a node's directory that names the runtime it was started with, where that is not its own.
const RUNTIME_FILE: &str = "kubelet/container-runtime-endpoint";

/// Notes which runtime the node of a data directory works with, `None` for its own.
pub fn remember_runtime(dir: &Path, endpoint: Option<&str>) -> anyhow::Result<()> {
    let path = dir.join(RUNTIME_FILE);
    let done = match endpoint {
        Some(endpoint) => std::fs::create_dir_all(dir.join("kubelet")).and_then(|()| std::fs::write(&path, endpoint)),
        // A pod of another runtime may be left, but nobody says where: what is noted is the newest.
        None => match std::fs::remove_file(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
            other => other,
        },
    };
    done.with_context(|| path.display().to_string())
}

/// Where the runtime of a data directory's node is; `None` where it has had no node.
pub fn runtime_endpoint(dir: &Path) -> Option<String> {
    let noted = std::fs::read_to_string(dir.join(RUNTIME_FILE)).ok().map(|endpoint| endpoint.trim().to_owned());
    let own = || kelson_cri::containerd::ContainerdConfig::new(dir).ok().filter(|config| config.socket().exists());
    noted.or_else(|| own().map(|config| config.endpoint()))
}

/// Removes everything that the node of a data directory made outside of it, its pods in the runtime at `endpoint` too (by
/// default the one that it was last started with); goes on past errors and gives them all. A control plane alone makes nothing
/// there.
pub async fn remove(dir: &Path, endpoint: Option<&str>) -> Vec<String> {
    let mut errors = Vec::new();
    if has_node(dir) {
        let kubelet = dir.join("kubelet");
        let noted = std::fs::read_to_string(dir.join(RUNTIME_FILE)).ok();
        // Before the network goes: the runtime asks its plugin to take pods from it.
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
