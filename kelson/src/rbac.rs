//! Policy that Kelson needs beyond Kubernetes' own: what kubeadm would set up with `init`, what its nodes' service
//! proxies read, and the approval of nodes' serving certificates.
use anyhow::Context as _;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kelson_client::{Client, ClientError, Object};
use serde_json::{Value, json};

const API_GROUP: &str = "rbac.authorization.k8s.io";
const APPROVE_SERVING: &str = "kelson:approve-kubelet-serving";

/// Creates what is missing; what an operator changed stays.
pub async fn ensure(client: &Client) -> anyhow::Result<()> {
    let role = json!({
        "apiVersion": format!("{API_GROUP}/v1"), "kind": "ClusterRole", "metadata": {"name": APPROVE_SERVING},
        "rules": [{"apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "verbs": ["approve"],
            "resourceNames": ["kubernetes.io/kubelet-serving"]}],
    });
    create::<ClusterRole>(client, &role).await.context("the role that approves serving certificates")?;
    let approver = json!({"kind": "ServiceAccount", "namespace": "kube-system", "name": "certificate-controller"});
    let csr = |what: &str| format!("system:certificates.k8s.io:certificatesigningrequests:{what}");
    for (name, role, subject) in [
        ("kelson:bootstrappers", "system:node-bootstrapper".to_owned(), group("system:bootstrappers")),
        ("kelson:approve-new-nodes", csr("nodeclient"), group("system:bootstrappers")),
        ("kelson:approve-node-renewals", csr("selfnodeclient"), group("system:nodes")),
        ("kelson:node-proxier", "system:node-proxier".to_owned(), group("system:nodes")),
        (APPROVE_SERVING, APPROVE_SERVING.to_owned(), approver),
    ] {
        let binding = json!({
            "apiVersion": format!("{API_GROUP}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": API_GROUP, "kind": "ClusterRole", "name": role}, "subjects": [subject],
        });
        create::<ClusterRoleBinding>(client, &binding).await.with_context(|| format!("role binding {name}"))?;
    }
    Ok(())
}

fn group(name: &str) -> Value {
    json!({"apiGroup": API_GROUP, "kind": "Group", "name": name})
}

async fn create<T: Object>(client: &Client, object: &Value) -> Result<(), ClientError> {
    match client.create::<T>("", object).await {
        Ok(_) => Ok(()),
        Err(e) if e.is_already_exists() => Ok(()),
        Err(e) => Err(e),
    }
}
