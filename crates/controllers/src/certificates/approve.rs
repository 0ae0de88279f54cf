//! Approves the client certificates of nodes, as upstream does. It also approves serving certificates whose names and
//! addresses all belong to the node, which upstream leaves to other controllers (kubernetes#73356).
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kelson_client::{Client, ClientError, EventRecorder, EventType, ObjectRef, ResourceType, WorkQueue};
use kelson_meta::{Clock, ObjectKey, Reason, format_seconds};
use kelson_pki::{
    CertificateRequest, KUBE_APISERVER_CLIENT_KUBELET, KUBELET_SERVING, validate_kubelet_client,
    validate_kubelet_serving,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::serving_names;
use crate::shared::config::Config;
use crate::shared::context::{Context, SyncError, WORKERS, update_value};
use crate::shared::informers::SharedInformer;
use crate::views::condition::Condition;
use crate::views::{CsrView, NodeView};

const REVIEWS: ResourceType =
    ResourceType::cluster("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview");
const NODE_USER: &str = "system:node:";
/// The group of nodes that authenticate with an expired certificate.
const RETURNING_NODES: &str = "kelson:returning-nodes";

/// The kind of a request that can be approved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recognized {
    /// A node renews its client certificate.
    SelfNodeClient,
    /// Another user, such as a bootstrap token, requests a node's first client certificate.
    NodeClient,
    /// A node requests its serving certificate.
    NodeServing,
}

/// Returns the kind of a request, from its signer, content and user.
pub fn recognize(csr: &CsrView, request: &CertificateRequest) -> Option<Recognized> {
    let usages = &csr.spec.usages;
    match csr.spec.signer_name.as_str() {
        KUBE_APISERVER_CLIENT_KUBELET if validate_kubelet_client(request, usages).is_ok() => {
            let own = csr.spec.username == request.common_name;
            Some(if own { Recognized::SelfNodeClient } else { Recognized::NodeClient })
        }
        KUBELET_SERVING
            if validate_kubelet_serving(request, usages).is_ok()
                && csr.spec.username == request.common_name
                && csr.spec.groups.iter().any(|g| g == "system:nodes") =>
        {
            Some(Recognized::NodeServing)
        }
        _ => None,
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Review {
    status: ReviewStatus,
}
#[derive(Deserialize, Default)]
#[serde(default)]
struct ReviewStatus {
    allowed: bool,
}

struct Approver {
    client: Client,
    clock: Arc<dyn Clock>,
    csrs: SharedInformer<CsrView>,
    nodes: SharedInformer<NodeView>,
    config: Arc<Config>,
    recorder: EventRecorder,
    /// Whether the missing permission to approve has been logged.
    forbidden: AtomicBool,
}

/// Starts the approving controller.
pub fn start(ctx: &Arc<Context>) {
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let client = ctx.client();
    let me = Arc::new(Approver {
        recorder: ctx.recorder(&client, "certificate-controller"),
        client,
        clock: Arc::clone(&ctx.clock),
        csrs: ctx.informers.csrs.reader(),
        nodes: ctx.informers.nodes.reader(),
        config: Arc::clone(&ctx.config),
        forbidden: AtomicBool::new(false),
    });
    me.csrs.on_change(crate::shared::context::enqueue_self(&queue));
    // New addresses of a node may make a pending request valid, and a node without heartbeats may be set up again.
    let (q, csrs) = (queue.clone(), me.csrs.clone());
    me.nodes.on_change(move |change| {
        let node = change.object();
        if let kelson_client::Change::Updated { old, new } = change
            && old.status.addresses == new.status.addresses
            && is_up(old) == is_up(new)
        {
            return;
        }
        let user = format!("{NODE_USER}{}", node.metadata.name);
        for csr in csrs.list().into_iter().filter(|csr| is_open(csr)) {
            let waits = match csr.spec.signer_name.as_str() {
                KUBELET_SERVING => csr.spec.username == user,
                KUBE_APISERVER_CLIENT_KUBELET => csr.request().is_ok_and(|request| request.common_name == user),
                _ => false,
            };
            if waits {
                q.add(ObjectKey::new("", &csr.metadata.name));
            }
        }
    });
    ctx.run_queue_of(me.csrs.clone(), &queue, WORKERS, move |key| {
        let me = Arc::clone(&me);
        async move { me.sync(&key).await }
    });
}

/// Whether the node is up. The node lifecycle controller resets the condition when heartbeats stop.
fn is_up(node: &NodeView) -> bool {
    node.status.conditions.iter().any(|c| c.r#type == "Ready" && c.status == "True")
}

fn is_open(csr: &CsrView) -> bool {
    csr.status.certificate.is_empty() && !csr.has("Approved") && !csr.has("Denied")
}

impl Approver {
    /// Returns an error for a node that is up, since with the certificate the holder of a join token or of an old disk
    /// could act as that node. The back-off retries: a node that is set up again is not ready after a minute.
    fn must_be_down(&self, csr: &CsrView, request: &CertificateRequest) -> Result<(), SyncError> {
        let name = request.common_name.strip_prefix(NODE_USER).unwrap_or_default();
        match self.nodes.get(&ObjectKey::new("", name)).is_some_and(|node| is_up(&node)) {
            true => Err(SyncError::Other(format!(
                "node {name:?} is up with another certificate; denying its name to {:?}",
                csr.spec.username
            ))),
            false => Ok(()),
        }
    }

    async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let Some(csr) = self.csrs.get(key).filter(|c| is_open(c)) else { return Ok(()) };
        let Ok(request) = csr.request() else { return Ok(()) };
        let Some(what) = recognize(&csr, request) else { return Ok(()) };
        let message = match what {
            // A user who may have any node's certificate may also have its own.
            Recognized::SelfNodeClient => {
                if !self.may(&csr, "selfnodeclient").await? && !self.may(&csr, "nodeclient").await? {
                    return self.refused(key, "selfnodeclient");
                }
                // A disk or backup with the expired certificate of a node that runs elsewhere does not become that
                // node.
                if csr.spec.groups.iter().any(|group| group == RETURNING_NODES) {
                    self.must_be_down(&csr, request)?;
                }
                "Auto approving self kubelet client certificate after SubjectAccessReview."
            }
            Recognized::NodeClient => {
                if !self.may(&csr, "nodeclient").await? {
                    return self.refused(key, "nodeclient");
                }
                self.must_be_down(&csr, request)?;
                "Auto approving kubelet client certificate after SubjectAccessReview."
            }
            Recognized::NodeServing => {
                let name = request.common_name.strip_prefix(NODE_USER).unwrap_or_default();
                let Some(node) = self.nodes.get(&ObjectKey::new("", name)) else { return Ok(()) };
                let nodes = self.nodes.list();
                let others = nodes.iter().map(|n| &**n);
                if let Some(why) = serving_names::refused(request, &node, others, &self.config.reserved_names) {
                    tracing::warn!(csr = %key, node = name, %why, "not approving the serving certificate");
                    let about = ObjectRef::of(&*csr);
                    let message = format!("not approved for node {name:?}: {why}");
                    self.recorder.event(&about, EventType::Warning, "ServingCertificateNotApproved", message);
                    return Ok(());
                }
                "Auto approving kubelet serving certificate: all names and addresses belong to the node."
            }
        };
        self.approve(&csr, message).await.map_err(|error| self.reported(error))
    }

    /// Maps an error to one that is logged once if the cluster's roles forbid approvals, since it then applies to every
    /// request.
    fn reported(&self, error: SyncError) -> SyncError {
        match error {
            SyncError::Client(e) if e.is(Reason::Forbidden) => {
                if !self.forbidden.swap(true, Ordering::Relaxed) {
                    tracing::warn!(error = %e, "the cluster's roles do not allow the approval of node certificates; not approving any");
                }
                SyncError::Logged(e.to_string())
            }
            other => other,
        }
    }

    fn refused(&self, key: &ObjectKey, permission: &str) -> Result<(), SyncError> {
        // Permissions may be granted later, so the back-off retries.
        Err(SyncError::Other(format!(
            "recognized csr {:?} as [{permission}] but subject access review was not approved",
            key.name
        )))
    }

    /// Whether the requesting user may have such certificates without manual approval.
    async fn may(&self, csr: &CsrView, subresource: &str) -> Result<bool, ClientError> {
        let s = &csr.spec;
        let body = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
            "user": s.username, "uid": s.uid, "groups": s.groups, "extra": s.extra,
            "resourceAttributes": {"group": "certificates.k8s.io", "resource": "certificatesigningrequests",
                "verb": "create", "version": "*", "subresource": subresource}}});
        let bytes = serde_json::to_vec(&body).map_err(|e| ClientError::Request(e.to_string()))?;
        let answer = self.client.call(http::Method::POST, &REVIEWS.path(""), "application/json", bytes.into()).await?;
        let review: Review = kelson_meta::from_json(&answer).map_err(|e| ClientError::Decode(e.to_string()))?;
        Ok(review.status.allowed)
    }

    async fn approve(&self, csr: &CsrView, message: &str) -> Result<(), SyncError> {
        let now = format_seconds(self.clock.now());
        let condition = Condition::new("Approved", "True", "AutoApproved", message, &now).updated_at(&now);
        let m = &csr.metadata;
        update_value::<CsrView>(&self.client, "", &m.name, "approval", &m.resource_version, |v| {
            add_condition(v, &condition);
        })
        .await?;
        Ok(())
    }
}

/// Appends a condition to a request's status.
pub(super) fn add_condition(v: &mut Value, condition: &Condition) {
    let status = kelson_meta::tree::map_at(v, "status");
    let list = status.entry("conditions").or_insert_with(|| json!([]));
    if let Some(list) = list.as_array_mut() {
        list.push(json!(condition));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use kelson_pki::{Authority, CertInfo, Key, San, create_request};

    use crate::Authorities;
    use crate::testing::run;
    use kelson_simulation::Api;

    const NODE: &str = "system:node:n1";

    fn csr(signer: &str, user: &str, sans: &[San], usage: &str) -> Value {
        let key = Key::generate().unwrap();
        let pem = create_request(&key, NODE, &["system:nodes".into()], sans).unwrap();
        let request = base64::engine::general_purpose::STANDARD.encode(pem);
        json!({"metadata": {"name": "r"}, "spec": {"request": request, "signerName": signer, "username": user,
            "groups": ["system:nodes"], "usages": ["digital signature", usage]}})
    }
    fn parsed(v: &Value) -> (CsrView, CertificateRequest) {
        let view: CsrView = serde_json::from_value(v.clone()).unwrap();
        let request = view.request().unwrap().clone();
        (view, request)
    }

    #[test]
    fn what_is_recognized() {
        let dns = [San::Dns("n1".into())];
        for (signer, user, sans, usage, want) in [
            (KUBE_APISERVER_CLIENT_KUBELET, NODE, &[][..], "client auth", Some(Recognized::SelfNodeClient)),
            (KUBE_APISERVER_CLIENT_KUBELET, "system:bootstrap:x", &[], "client auth", Some(Recognized::NodeClient)),
            (KUBE_APISERVER_CLIENT_KUBELET, NODE, &[], "server auth", None),
            (KUBELET_SERVING, NODE, &dns, "server auth", Some(Recognized::NodeServing)),
            (KUBELET_SERVING, "system:node:other", &dns, "server auth", None),
            ("kubernetes.io/kube-apiserver-client", NODE, &[], "client auth", None),
        ] {
            let (view, request) = parsed(&csr(signer, user, sans, usage));
            assert_eq!(recognize(&view, &request), want, "{signer} {user} {usage}");
        }
    }

    /// Grants the approval of serving certificates, which upstream's roles do not grant to any controller.
    async fn may_approve(api: &Api) {
        let rbac = |plural: &str| format!("rbac.authorization.k8s.io/v1/{plural}");
        let rule = json!({"apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "verbs": ["approve"],
            "resourceNames": [KUBELET_SERVING]});
        api.create(&rbac("clusterroles"), json!({"metadata": {"name": "approve"}, "rules": [rule]})).await;
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "approve"});
        let who = json!({"kind": "ServiceAccount", "name": "certificate-controller", "namespace": "kube-system"});
        let binding = json!({"metadata": {"name": "approve"}, "roleRef": role, "subjects": [who]});
        api.create(&rbac("clusterrolebindings"), binding).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_join_token_does_not_become_a_node_that_is_up() {
        let api = Api::start().await;
        let _running = run(&api, &["certificatesigningrequest-approving-controller"], Config::default()).await;
        let rbac = |plural: &str| format!("rbac.authorization.k8s.io/v1/{plural}");
        let rule = json!({"apiGroups": ["certificates.k8s.io"], "verbs": ["create"],
            "resources": ["certificatesigningrequests/nodeclient", "certificatesigningrequests"]});
        api.create(&rbac("clusterroles"), json!({"metadata": {"name": "join"}, "rules": [rule]})).await;
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "join"});
        let who = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:bootstrap:x"});
        api.create(
            &rbac("clusterrolebindings"),
            json!({"metadata": {"name": "join"}, "roleRef": role, "subjects": [who]}),
        )
        .await;
        let ready = |status: &'static str| {
            move |v: &mut Value| v["status"]["conditions"] = json!([{"type": "Ready", "status": status}])
        };
        api.create("v1/nodes", json!({"metadata": {"name": "n1"}})).await;
        api.change("v1/nodes", "", "n1", ready("True")).await;
        api.settle().await;
        let kind = "certificates.k8s.io/v1/certificatesigningrequests";
        let asked = csr(KUBE_APISERVER_CLIENT_KUBELET, "system:bootstrap:x", &[], "client auth");
        api.acting_as("system:bootstrap:x").create(kind, asked).await;
        // Until the back-off is at its maximum.
        tokio::time::sleep(std::time::Duration::from_secs(4_000)).await;
        api.settle().await;
        assert!(api.get(kind, "", "r").await.unwrap()["status"]["conditions"].is_null(), "n1 is up");
        api.change("v1/nodes", "", "n1", ready("Unknown")).await;
        // The end of heartbeats triggers the next sync, not the back-off.
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        let conditions = api.get(kind, "", "r").await.unwrap()["status"]["conditions"].clone();
        assert_eq!(conditions[0]["type"], "Approved", "a node that is down may join anew");
    }

    #[tokio::test(start_paused = true)]
    async fn a_certificate_that_has_ended_does_not_become_a_node_that_is_up() {
        let api = Api::start().await;
        let _running = run(&api, &["certificatesigningrequest-approving-controller"], Config::default()).await;
        let ready = |status: &'static str| {
            move |v: &mut Value| v["status"]["conditions"] = json!([{"type": "Ready", "status": status}])
        };
        api.create("v1/nodes", json!({"metadata": {"name": "n1"}})).await;
        api.change("v1/nodes", "", "n1", ready("True")).await;
        api.settle().await;
        let kind = "certificates.k8s.io/v1/certificatesigningrequests";
        let rbac = |plural: &str| format!("rbac.authorization.k8s.io/v1/{plural}");
        let rule = json!({"apiGroups": ["certificates.k8s.io"], "verbs": ["create"],
            "resources": ["certificatesigningrequests/selfnodeclient", "certificatesigningrequests"]});
        api.create(&rbac("clusterroles"), json!({"metadata": {"name": "return"}, "rules": [rule]})).await;
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "return"});
        let who = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": RETURNING_NODES});
        let binding = json!({"metadata": {"name": "return"}, "roleRef": role, "subjects": [who]});
        api.create(&rbac("clusterrolebindings"), binding).await;
        let returning = kelson_auth::UserInfo::new(NODE, [RETURNING_NODES, kelson_auth::user::AUTHENTICATED]);
        let asked = csr(KUBE_APISERVER_CLIENT_KUBELET, NODE, &[], "client auth");
        api.acting_as_user(returning).create(kind, asked).await;
        tokio::time::sleep(std::time::Duration::from_secs(4_000)).await;
        api.settle().await;
        assert!(api.get(kind, "", "r").await.unwrap()["status"]["conditions"].is_null(), "n1 is up");
        api.change("v1/nodes", "", "n1", ready("Unknown")).await;
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        let conditions = api.get(kind, "", "r").await.unwrap()["status"]["conditions"].clone();
        assert_eq!(conditions[0]["type"], "Approved", "a node that is down may return");
    }

    #[tokio::test(start_paused = true)]
    async fn a_serving_request_waits_for_the_nodes_addresses_and_is_signed() {
        let api = Api::start().await;
        let authority = |name: &str| Arc::new(Authority::create(name, kelson_meta::Clock::now(&api.clock)).unwrap());
        let (ca, serving_ca) = (authority("ca"), authority("serving-ca"));
        let names = ["certificatesigningrequest-approving-controller", "certificatesigningrequest-signing-controller"];
        let signers = Authorities {
            signer: Some(ca),
            kubelet_serving_signer: Some(Arc::clone(&serving_ca)),
            ..Authorities::default()
        };
        let config = Config { authorities: signers.fixed(), ..Config::default() };
        let _running = run(&api, &names, config).await;
        let kind = "certificates.k8s.io/v1/certificatesigningrequests";
        may_approve(&api).await;
        api.create("v1/nodes", json!({"metadata": {"name": "n1"}})).await;
        // The server records the requesting user.
        let node = api.acting_as(NODE);
        node.create(kind, csr(KUBELET_SERVING, NODE, &[San::Ip("10.0.0.5".parse().unwrap())], "server auth")).await;
        api.settle().await;
        assert!(api.get(kind, "", "r").await.unwrap()["status"]["conditions"].is_null());
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        let events = api.events().await;
        assert!(events.iter().any(|event| event.contains("ServingCertificateNotApproved")), "{events:?}");
        api.change("v1/nodes", "", "n1", |v| {
            v["status"] = json!({"addresses": [{"type": "InternalIP", "address": "10.0.0.5"}]});
        })
        .await;
        api.settle().await;
        let status = api.get(kind, "", "r").await.unwrap()["status"].clone();
        assert_eq!(status["conditions"][0]["reason"], "AutoApproved");
        let pem = base64::engine::general_purpose::STANDARD.decode(status["certificate"].as_str().unwrap()).unwrap();
        let pem = String::from_utf8(pem).unwrap();
        assert_eq!(CertInfo::from_pem(&pem).unwrap().issuer, "serving-ca", "not what verifies the API server");
        tokio::time::sleep(std::time::Duration::from_secs(3 * 3600)).await;
        assert!(api.get(kind, "", "r").await.is_some(), "the cleaner does not run here");
    }
}
