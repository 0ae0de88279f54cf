//! RBAC objects that Kelson needs in addition to Kubernetes' default policy: those of `kubeadm init`, permissions of
//! nodes' service proxies and of joining nodes, approval of nodes' serving certificates, and permissions of the API
//! server at kubelets.
use anyhow::Context as _;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kelson_auth::user;
use kelson_client::{Client, ClientError, Object};
use kelson_pki::KUBELET_CLIENTS;
use serde_json::{Value, json};

use crate::cluster::{AUTHORITIES, CLUSTER_INFO, KUBELET_CONFIG, NETWORK};
use crate::token::{SERVERS, VOTES};

/// The user of cluster DNS: the account in Kubernetes' `system:kube-dns` binding.
pub const DNS_USER: &str = "system:serviceaccount:kube-system:kube-dns";
/// The role for cluster DNS beyond `system:kube-dns`, which predates endpoint slices.
const DNS: &str = "kelson:kube-dns";
const API_GROUP: &str = "rbac.authorization.k8s.io";
const APPROVE_SERVING: &str = "kelson:approve-kubelet-serving";
/// The role with which a joining node checks that its name is free (kubeadm's `kubeadm:get-nodes`).
const GET_NODES: &str = "kelson:get-nodes";
/// The role with which a server joins.
const JOIN_SERVERS: &str = "kelson:join-servers";
/// The role of nodes for network policies: labels and addresses of all pods.
const NETWORK_POLICIES: &str = "kelson:network-policies";

/// Creates missing objects; an operator's changes stay.
pub async fn ensure(client: &Client) -> anyhow::Result<()> {
    let role = json!({
        "apiVersion": format!("{API_GROUP}/v1"), "kind": "ClusterRole", "metadata": {"name": APPROVE_SERVING},
        "rules": [{"apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "verbs": ["approve"],
            "resourceNames": ["kubernetes.io/kubelet-serving"]}],
    });
    create::<ClusterRole>(client, "", &role).await.context("the role that approves serving certificates")?;
    let get_nodes = json!({
        "apiVersion": format!("{API_GROUP}/v1"), "kind": "ClusterRole", "metadata": {"name": GET_NODES},
        "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}],
    });
    create::<ClusterRole>(client, "", &get_nodes).await.context("the role that reads nodes")?;
    let join = json!({
        "apiVersion": format!("{API_GROUP}/v1"), "kind": "ClusterRole", "metadata": {"name": JOIN_SERVERS},
        "rules": [{"nonResourceURLs": ["/kelson/join"], "verbs": ["post"]}],
    });
    create::<ClusterRole>(client, "", &join).await.context("the role that joins servers")?;
    let policies = json!({
        "apiVersion": format!("{API_GROUP}/v1"), "kind": "ClusterRole", "metadata": {"name": NETWORK_POLICIES},
        "rules": [{"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["list", "watch"]},
            {"apiGroups": [""], "resources": ["pods", "namespaces"], "verbs": ["list", "watch"]}],
    });
    create::<ClusterRole>(client, "", &policies).await.context("the role that enforces network policies")?;
    let dns = json!({
        "apiVersion": format!("{API_GROUP}/v1"), "kind": "ClusterRole", "metadata": {"name": DNS},
        "rules": [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}],
    });
    create::<ClusterRole>(client, "", &dns).await.context("the role of cluster DNS")?;
    let dns_account = json!({"kind": "ServiceAccount", "namespace": "kube-system", "name": "kube-dns"});
    dns_publishes(client, &dns_account).await?;
    let approver = json!({"kind": "ServiceAccount", "namespace": "kube-system", "name": "certificate-controller"});
    let csr = |what: &str| format!("system:certificates.k8s.io:certificatesigningrequests:{what}");
    for (name, role, subject) in [
        ("kelson:bootstrappers", "system:node-bootstrapper".to_owned(), group("system:bootstrappers")),
        (GET_NODES, GET_NODES.to_owned(), group("system:bootstrappers")),
        (JOIN_SERVERS, JOIN_SERVERS.to_owned(), group(SERVERS)),
        ("kelson:join-votes", JOIN_SERVERS.to_owned(), group(VOTES)),
        ("kelson:approve-new-nodes", csr("nodeclient"), group("system:bootstrappers")),
        ("kelson:approve-node-renewals", csr("selfnodeclient"), group("system:nodes")),
        ("kelson:returning-nodes", "system:node-bootstrapper".to_owned(), group(user::RETURNING_NODES)),
        ("kelson:approve-returning-nodes", csr("selfnodeclient"), group(user::RETURNING_NODES)),
        (KUBELET_CLIENTS, "system:kubelet-api-admin".to_owned(), group(KUBELET_CLIENTS)),
        ("kelson:node-proxier", "system:node-proxier".to_owned(), group("system:nodes")),
        (NETWORK_POLICIES, NETWORK_POLICIES.to_owned(), group("system:nodes")),
        (APPROVE_SERVING, APPROVE_SERVING.to_owned(), approver),
        (DNS, DNS.to_owned(), dns_account),
    ] {
        let binding = json!({
            "apiVersion": format!("{API_GROUP}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": API_GROUP, "kind": "ClusterRole", "name": role}, "subjects": [subject],
        });
        create::<ClusterRoleBinding>(client, "", &binding).await.with_context(|| format!("role binding {name}"))?;
    }
    let anybody = json!({"apiGroup": API_GROUP, "kind": "User", "name": "system:anonymous"});
    let nodes = [group("system:bootstrappers"), group("system:nodes")];
    readable(client, CLUSTER_INFO, "kelson:cluster-info", &[CLUSTER_INFO.1], (&["get"], &[anybody])).await?;
    let settings = [KUBELET_CONFIG.1, NETWORK.1];
    readable(client, NETWORK, "kelson:node-settings", &settings, (&["get"], &nodes)).await?;
    let followed = ["get", "list", "watch"];
    readable(client, AUTHORITIES, "kelson:authorities", &[AUTHORITIES.1], (&followed, &[group("system:nodes")])).await
}

/// Lets cluster DNS maintain its own service and endpoint slices. A rule with names cannot allow creation, which has no
/// name yet.
async fn dns_publishes(client: &Client, account: &Value) -> anyhow::Result<()> {
    let metadata = json!({"name": DNS, "namespace": "kube-system"});
    let rule = |group: &str, resource: &str| json!({"apiGroups": [group], "resources": [resource], "verbs": ["create", "get", "patch"]});
    let role = json!({
        "apiVersion": format!("{API_GROUP}/v1"), "kind": "Role", "metadata": metadata,
        "rules": [rule("", "services"), rule("discovery.k8s.io", "endpointslices")],
    });
    let binding = json!({
        "apiVersion": format!("{API_GROUP}/v1"), "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": API_GROUP, "kind": "Role", "name": DNS}, "subjects": [account],
    });
    create::<Role>(client, "kube-system", &role).await.context("the role of cluster DNS in kube-system")?;
    create::<RoleBinding>(client, "kube-system", &binding).await.context("the role binding of cluster DNS")
}

/// Lets subjects read, with these verbs, the ConfigMaps named `maps`.
async fn readable(
    client: &Client,
    (namespace, _): (&str, &str),
    name: &str,
    maps: &[&str],
    (verbs, subjects): (&[&str], &[Value]),
) -> anyhow::Result<()> {
    let metadata = json!({"name": name, "namespace": namespace});
    let role = json!({
        "apiVersion": format!("{API_GROUP}/v1"), "kind": "Role", "metadata": metadata,
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": maps, "verbs": verbs}],
    });
    let binding = json!({
        "apiVersion": format!("{API_GROUP}/v1"), "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": API_GROUP, "kind": "Role", "name": name}, "subjects": subjects,
    });
    create::<Role>(client, namespace, &role).await.with_context(|| format!("role {name}"))?;
    create::<RoleBinding>(client, namespace, &binding).await.with_context(|| format!("role binding {name}"))
}

fn group(name: &str) -> Value {
    json!({"apiGroup": API_GROUP, "kind": "Group", "name": name})
}

async fn create<T: Object>(client: &Client, namespace: &str, object: &Value) -> Result<(), ClientError> {
    match client.create::<T>(namespace, object).await {
        Ok(_) => Ok(()),
        Err(e) if e.is_already_exists() => Ok(()),
        Err(e) => Err(e),
    }
}
