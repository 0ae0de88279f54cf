//! Stages played against the API server in memory, on a paused clock.
use std::sync::Arc;
use std::time::Duration;

use kelson_meta::{Clock, LabelSelector};
use kelson_simulation::{Api, Failure};
use kelson_tasks::Tasks;
use serde_json::{Value, json};

use super::{Driven, Manage, Settings, start};

const STAGES: &str = "
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: node-begins}
spec:
  resourceRef: {apiGroup: v1, kind: Node}
  selector:
    matchExpressions:
    - {key: '.status.conditions.[] | select( .type == \"Ready\" ) | .status', operator: NotIn, values: ['True']}
  next:
    statusTemplate: |
      {{ $now := Now }}
      conditions:
      {{ range NodeConditions }}
      - {type: {{ .type }}, status: {{ .status | Quote }}, reason: {{ .reason }}, lastHeartbeatTime: {{ $now | Quote }}, lastTransitionTime: {{ $now | Quote }}}
      {{ end }}
      addresses:
      - {type: InternalIP, address: {{ NodeIP }}}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: node-lives}
spec:
  resourceRef: {apiGroup: v1, kind: Node}
  selector:
    matchExpressions:
    - {key: '.status.conditions.[] | select( .type == \"Ready\" ) | .status', operator: In, values: ['True']}
  delay: {durationMilliseconds: 20000, jitterDurationMilliseconds: 25000}
  next:
    statusTemplate: |
      conditions:
      {{ range NodeConditions }}
      - {type: {{ .type }}, status: {{ .status | Quote }}, lastHeartbeatTime: {{ Now | Quote }}}
      {{ end }}
  immediateNextStage: true
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-runs}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
    - {key: .status.phase, operator: In, values: [Pending]}
  delay:
    durationMilliseconds: 1000
    durationFrom: {expressionFrom: '.metadata.annotations[\"wait\"]'}
  next:
    event: {type: Normal, reason: Begun, message: begun}
    finalizers: {add: [{value: example.com/held}]}
    statusTemplate: |
      phase: Running
      startTime: {{ Now | Quote }}
      hostIP: {{ NodeIPWith .spec.nodeName }}
      podIP: {{ PodIPWith .spec.nodeName ( or .spec.hostNetwork false ) .metadata.uid .metadata.name .metadata.namespace }}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-goes}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: Exists}
  steps:
  - finalizers: {empty: true}
  - delete: true
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: map-is-answered}
spec:
  resourceRef: {kind: ConfigMap}
  selector:
    matchLabels: {answer: me}
    matchExpressions: [{cel: {expression: '!has(self.data)'}}]
  steps:
  - patch: {template: 'data: {seen: \"yes\"}', impersonation: {username: someone}}
  - apply:
      template: |
        apiVersion: v1
        kind: Secret
        metadata: {name: {{ .metadata.name }}-made}
        stringData: {from: {{ .kind }}}
";

fn driven(api: &Api, change: impl FnOnce(&mut Settings)) -> Driven {
    let mut settings = Settings { node_ip: "10.9.9.9".to_owned(), ..Settings::default() };
    settings.stages = kelson_stages::read(STAGES).unwrap().stages;
    change(&mut settings);
    let clock: Arc<dyn Clock> = Arc::new(api.clock);
    start(settings, &api.client(), &clock, &Tasks::root("stages")).unwrap()
}

async fn node(api: &Api, name: &str, annotations: Value) {
    api.create("v1/nodes", json!({"metadata": {"name": name, "annotations": annotations}})).await;
}

/// Lets a user do everything.
async fn allow(api: &Api, user: &str) {
    let subject = json!({"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"});
    let role = json!({"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": "rbac.authorization.k8s.io"});
    let binding = json!({"metadata": {"name": user}, "roleRef": role, "subjects": [subject]});
    api.create("rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await;
}

async fn pod(api: &Api, name: &str, node: &str, annotations: Value) {
    let spec = json!({"nodeName": node, "containers": [{"name": "c", "image": "i"}]});
    let metadata = json!({"name": name, "namespace": "n", "annotations": annotations});
    api.create("v1/pods", json!({"metadata": metadata, "spec": spec})).await;
}

async fn phase(api: &Api, name: &str) -> Option<String> {
    Some(api.get("v1/pods", "n", name).await?["status"]["phase"].as_str()?.to_owned())
}

fn heard(node: &Value) -> Option<&str> {
    let mut all = node["status"]["conditions"].as_array()?.iter();
    all.find(|c| c["type"] == "Ready" && c["status"] == "True")?["lastHeartbeatTime"].as_str()
}

#[tokio::test(start_paused = true)]
async fn nodes_and_pods_live_as_their_stages_say() {
    let api = Api::start().await;
    api.namespace("n").await;
    node(&api, "a", json!({})).await;
    let driven = driven(&api, |_| {});
    let lives = api.until("the node is ready", async |api| {
        let node = api.get("v1/nodes", "", "a").await?;
        heard(&node).map(str::to_owned)
    });
    let first = lives.await;
    let lease = api.get("coordination.k8s.io/v1/leases", "kube-node-lease", "a").await.unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], "hollow");
    // It is heard of again, and again after that.
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_secs(26)).await;
    }
    let node = api.get("v1/nodes", "", "a").await.unwrap();
    assert!(heard(&node).unwrap() > first.as_str(), "{node}");

    pod(&api, "soon", "a", json!({})).await;
    pod(&api, "late", "a", json!({"wait": "1m"})).await;
    pod(&api, "foreign", "b", json!({})).await;
    api.until("the pod runs", async |api| phase(api, "soon").await.filter(|p| p == "Running")).await;
    assert_eq!(phase(&api, "late").await.as_deref(), Some("Pending"));
    let soon = api.get("v1/pods", "n", "soon").await.unwrap();
    assert_eq!((&soon["status"]["hostIP"], &soon["status"]["podIP"]), (&json!("10.9.9.9"), &json!("100.64.0.1")));
    assert_eq!(soon["metadata"]["finalizers"], json!(["example.com/held"]));
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(phase(&api, "late").await.as_deref(), Some("Running"));
    assert_eq!(phase(&api, "foreign").await.as_deref(), Some("Pending"), "its node is nobody's");
    assert!(api.events().await.iter().any(|e| e.contains("Begun")), "{:?}", api.events().await);

    api.delete("v1/pods", "n", "soon", json!({})).await;
    api.until("the pod is gone", async |api| api.get("v1/pods", "n", "soon").await.is_none().then_some(())).await;
    driven.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn other_kinds_and_other_users() {
    let api = Api::start().await;
    api.namespace("n").await;
    allow(&api, "someone").await;
    let _driven = driven(&api, |_| {});
    let labels = json!({"answer": "me"});
    api.create("v1/configmaps", json!({"metadata": {"name": "m", "namespace": "n", "labels": labels}})).await;
    api.create("v1/configmaps", json!({"metadata": {"name": "other", "namespace": "n"}})).await;
    let made = api.until("another object", async |api| api.get("v1/secrets", "n", "m-made").await).await;
    assert_eq!(made["data"]["from"], "Q29uZmlnTWFw");
    let map = api.get("v1/configmaps", "n", "m").await.unwrap();
    assert_eq!(map["data"]["seen"], "yes");
    assert!(api.get("v1/configmaps", "n", "other").await.unwrap()["data"].is_null());
}

#[tokio::test(start_paused = true)]
async fn only_selected_nodes_without_another_holder() {
    let api = Api::start().await;
    let annotated = json!({"kwok.x-k8s.io/node": "fake"});
    let held =
        json!({"holderIdentity": "other", "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z"});
    api.create(
        "coordination.k8s.io/v1/leases",
        json!({"metadata": {"name": "held", "namespace": "kube-node-lease"}, "spec": held}),
    )
    .await;
    for (name, annotations) in [("free", annotated.clone()), ("held", annotated), ("real", json!({}))] {
        node(&api, name, annotations).await;
    }
    let annotations = LabelSelector::parse("kwok.x-k8s.io/node=fake").unwrap();
    let _driven = driven(&api, |s| s.manage = Manage::Selected { labels: String::new(), annotations });
    let ready = async |name: &str| heard(&api.get("v1/nodes", "", name).await.unwrap()).is_some();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((ready("free").await, ready("held").await, ready("real").await), (true, false, false));
    // The former holder has not renewed the lease for its whole duration.
    tokio::time::sleep(Duration::from_secs(45)).await;
    assert_eq!((ready("held").await, ready("real").await), (true, false));
}

#[tokio::test(start_paused = true)]
async fn stages_of_the_api_come_and_change() {
    let api = Api::start().await;
    api.namespace("n").await;
    let names = json!({"plural": "stages", "singular": "stage", "kind": "Stage", "listKind": "StageList"});
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = json!({"name": "v1alpha1", "served": true, "storage": true, "schema": schema});
    let spec = json!({"group": "kwok.x-k8s.io", "names": names, "scope": "Cluster", "versions": [version]});
    let definition = json!({"metadata": {"name": "stages.kwok.x-k8s.io"}, "spec": spec});
    api.create("apiextensions.k8s.io/v1/customresourcedefinitions", definition).await;
    let _driven = driven(&api, |s| s.follow_stages = true);
    let stage = |name: &str, phase: &str, becomes: &str| {
        let selector = json!({"matchExpressions": [{"key": ".data.phase", "operator": "In", "values": [phase]}]});
        let steps = json!([{"patch": {"template": format!("data: {{phase: {becomes}}}")}}]);
        let spec =
            json!({"resourceRef": {"apiGroup": "v1", "kind": "ConfigMap"}, "selector": selector, "steps": steps});
        json!({"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec})
    };
    api.create("v1/configmaps", json!({"metadata": {"name": "m", "namespace": "n"}, "data": {"phase": "one"}})).await;
    let phase = async |api: &Api| api.get("v1/configmaps", "n", "m").await.unwrap()["data"]["phase"].clone();
    api.create("kwok.x-k8s.io/v1alpha1/stages", stage("first", "one", "two")).await;
    api.until("the first stage", async |api| (phase(api).await == "two").then_some(())).await;
    let mut bad = stage("bad", "two", "bad");
    bad["spec"]["selector"]["matchExpressions"][0]["key"] = json!(".[");
    api.create("kwok.x-k8s.io/v1alpha1/stages", bad).await;
    api.create("kwok.x-k8s.io/v1alpha1/stages", stage("second", "two", "three")).await;
    api.until("the second stage, which came later", async |api| (phase(api).await == "three").then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn what_fails_for_a_while_is_tried_again() {
    let api = Api::start().await;
    api.namespace("n").await;
    node(&api, "a", json!({})).await;
    let mut settings = Settings { node_ip: "10.9.9.9".to_owned(), ..Settings::default() };
    settings.stages = kelson_stages::read(STAGES).unwrap().stages;
    let clock: Arc<dyn Clock> = Arc::new(api.clock);
    allow(&api, "driver").await;
    let client = api.client_as("driver");
    let _driven = start(settings, &client, &clock, &Tasks::root("stages")).unwrap();
    api.fail_nth(1, "PATCH", "/pods/p/status", Failure::Refused);
    pod(&api, "p", "a", json!({})).await;
    api.until("the pod runs", async |api| phase(api, "p").await.filter(|p| p == "Running")).await;
}
