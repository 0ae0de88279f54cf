//! Policy that Kelson needs beyond Kubernetes' own: what kubeadm would set up with `init`, and what its nodes' service
//! proxies read.
use anyhow::Context as _;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kelson_client::{Client, ClientError, Object};
use serde_json::{Value, json};

/// Creates what is missing; what an operator changed stays.
pub async fn ensure(client: &Client) -> anyhow::Result<()> {
    for binding in [
        binding("kelson:bootstrappers", "system:node-bootstrapper", "system:bootstrappers"),
        binding(
            "kelson:approve-new-nodes",
            "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
            "system:bootstrappers",
        ),
        binding(
            "kelson:approve-node-renewals",
            "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
            "system:nodes",
        ),
        binding("kelson:node-proxier", "system:node-proxier", "system:nodes"),
    ] {
        create::<ClusterRoleBinding>(client, &binding).await.context("bind the nodes' roles")?;
    }
    Ok(())
}

fn binding(name: &str, role: &str, group: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}],
    })
}

async fn create<T: Object>(client: &Client, object: &Value) -> Result<(), ClientError> {
    match client.create::<T>("", object).await {
        Ok(_) => Ok(()),
        Err(e) if e.is_already_exists() => Ok(()),
        Err(e) => Err(e),
    }
}
