//! What a node leaves on its machine, removed in an order in which each step can still work.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::path::Path;

/// Removes everything that the node of a data directory made outside of it; goes on past errors and gives them all. A control
/// plane alone makes nothing there.
pub async fn remove(dir: &Path) -> Vec<String> {
    let mut errors = Vec::new();
    if has_node(dir) {
        errors.extend(kelson_cri::containerd::cleanup(dir).await);
        errors.extend(kelson_proxy::cleanup(dir).await);
        errors.extend(kelson_network_policy::cleanup(dir).await);
        let cgroups = format!("kelson-{}", kelson_net::network_id(dir));
        errors.extend(kelson_kubelet::cleanup::cleanup(&dir.join("kubelet"), &cgroups).await);
        errors.extend(kelson_net::cleanup(dir).await.into_iter().map(|e| e.to_string()));
    }
    errors
}

fn has_node(dir: &Path) -> bool {
    kelson_net::ranges::is_reserved(dir) || ["containerd", "net", "cni", "kubelet"].iter().any(|d| dir.join(d).exists())
}
