//! Registration of the Node object: creates it, or updates the labels of an existing one.
use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kelson_client::{Client, ClientError, PatchKind, WriteOptions};
use kelson_meta::Backoff;
use kelson_volumes::names;
use serde_json::{Map, Value, json};

use super::facts;
use crate::config::Config;

/// Delays between attempts (upstream: 100 ms to 7 s).
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(7));

/// Initial labels of the Node.
pub fn labels(config: &Config) -> Map<String, Value> {
    let arch = facts::architecture();
    let mut out = Map::new();
    for (k, v) in [
        ("kubernetes.io/hostname", config.node_name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", arch),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", arch),
    ] {
        out.insert(k.to_owned(), json!(v));
    }
    for (k, v) in &config.node_labels {
        out.insert(k.clone(), json!(v));
    }
    out
}

/// Initial annotations of the Node: volumes are attached by the controller, and the directory of the built-in provisioner's volumes.
fn annotations(config: &Config) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("volumes.kubernetes.io/controller-managed-attach-detach".into(), json!("true"));
    if let Some(dir) = &config.local_volumes_dir {
        out.insert(names::LOCAL_PATH_DIRECTORY.into(), json!(dir));
    }
    out
}

/// Returns the entries of `wanted` that are missing or different.
fn missing(there: Option<&BTreeMap<String, String>>, wanted: Map<String, Value>) -> Map<String, Value> {
    let has = |k: &String, v: &Value| there.and_then(|t| t.get(k)).is_some_and(|w| v == w);
    wanted.into_iter().filter(|(k, v)| !has(k, v)).collect()
}

/// Registers the node, retrying until it succeeds.
pub async fn register(client: &Client, config: &Config, status: &Value) -> Node {
    let mut delay = RETRY.base;
    loop {
        match once(client, config, status).await {
            Ok(node) => return node,
            Err(e) => tracing::info!(node = %config.node_name, error = %e, "registering the node failed; retrying"),
        }
        tokio::time::sleep(delay).await;
        delay = RETRY.after(Some(delay));
    }
}

async fn once(client: &Client, config: &Config, status: &Value) -> Result<Node, ClientError> {
    let name = &config.node_name;
    if !config.register_node {
        return client.get::<Node>("", name).await;
    }
    let (labels, annotations) = (labels(config), annotations(config));
    if let Some(node) = client.get_opt::<Node>("", name).await? {
        let meta = &node.metadata;
        let (labels, annotations) =
            (missing(meta.labels.as_ref(), labels), missing(meta.annotations.as_ref(), annotations));
        if labels.is_empty() && annotations.is_empty() {
            return Ok(node);
        }
        let patch = json!({"metadata": {"labels": labels, "annotations": annotations}});
        return client
            .patch_and_read::<Node>("", name, "", PatchKind::Strategic, &patch, &WriteOptions::default())
            .await;
    }
    let taints: Vec<Value> = config
        .register_with_taints
        .iter()
        .map(|t| json!({"key": t.key, "value": t.value, "effect": t.effect}))
        .collect();
    let mut node = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {}, "status": status});
    if !taints.is_empty() {
        node["spec"]["taints"] = json!(taints);
    }
    if !config.provider_id.is_empty() {
        node["spec"]["providerID"] = json!(config.provider_id);
    }
    match client.create::<Node>("", &node).await {
        Err(e) if e.status().is_some_and(|s| s.code == 409) => client.get::<Node>("", name).await,
        other => other,
    }
}
