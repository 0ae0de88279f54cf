//! Audit events, and the state of components.

use std::sync::{Arc, LazyLock};

use crate::common::{Api, admin};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use kelson_audit::{Audit, Entry, Event, Mode, Output, Policy, Truncation, WebhookOptions};
use kelson_auth::UserInfo;
use kelson_doubles::webhook::{Behaviour, ReceivedRequest, TestServer};
use kelson_transport::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// Keeps events, or fails.
#[derive(Default)]
struct AuditSink {
    events: Mutex<Vec<Value>>,
    broken: bool,
}

#[derive(Clone)]
struct SharedSink(Arc<AuditSink>);

impl Output for SharedSink {
    fn name(&self) -> &'static str {
        "webhook"
    }
    fn entry(&self, _event: &Event, item: &Bytes) -> Entry {
        Entry(item.clone())
    }
    fn write(&self, batch: Vec<Entry>) -> BoxFuture<Result<(), String>> {
        let heard = Arc::clone(&self.0);
        Box::pin(async move {
            if heard.broken {
                return Err("broken".to_owned());
            }
            let events = batch.into_iter().map(|e| serde_json::from_slice(&e.0).expect("JSON"));
            heard.events.lock().extend(events);
            Ok(())
        })
    }
}

impl AuditSink {
    /// Stage, code and one annotation of the events of a path.
    fn of(&self, path: &str, annotation: &str) -> Vec<(String, u64, String)> {
        let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
        let events = self.events.lock();
        let reply = events.iter().filter(|e| e["requestURI"] == path).map(|e| {
            let code = e["responseStatus"]["code"].as_u64().unwrap_or(0);
            (text(&e["stage"]), code, text(&e["annotations"][annotation]))
        });
        reply.collect()
    }
    /// The last event of a path.
    fn last(&self, path: &str) -> Value {
        let events = self.events.lock();
        events.iter().rfind(|e| e["requestURI"] == path).cloned().unwrap_or_default()
    }
}

/// A server with an audit policy with these rules for config maps and secrets.
async fn audited(rules: &str, broken: bool) -> (Api, Arc<AuditSink>) {
    let heard = Arc::new(AuditSink { broken, ..AuditSink::default() });
    let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n{rules}");
    let mut audit = Audit::new(Policy::parse(text.as_bytes()).expect("a policy"));
    let output = Arc::new(SharedSink(Arc::clone(&heard)));
    audit.add(output, Mode::BlockingStrict, WebhookOptions::default().batching, Truncation::default());
    (Api::with(|config| config.audit = Some(Arc::new(audit))).await, heard)
}

fn got(path: &str) -> http::Request<Bytes> {
    http::Request::builder().uri(path).body(Bytes::new()).expect("request")
}

#[tokio::test]
async fn audit_events_contain_the_authorization_decision() {
    let (api, heard) = audited("- {level: Metadata, resources: [{resources: [configmaps, secrets]}]}", false).await;
    let missing = "/api/v1/namespaces/missing/configmaps";
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}});
    assert_eq!(api.call("POST", missing, map).await.0, 404);
    let stage = |stage: &str, code, note: &str| (stage.to_owned(), code, note.to_owned());
    let refused_by = heard.of(missing, "admission.kelson/refused-by");
    let expected = [stage("RequestReceived", 0, ""), stage("ResponseComplete", 404, "NamespaceLifecycle")];
    assert_eq!(refused_by, expected);
    assert_eq!(heard.of(missing, "authorization.k8s.io/decision")[1].2, "allow");
    let last = heard.last(missing);
    assert_eq!(last["responseStatus"]["reason"], "NotFound", "{last}");
    assert_eq!(last["objectRef"]["name"], "x", "the name from the body");
    assert!(last.get("requestObject").is_none(), "the level is Metadata");

    let secrets = "/api/v1/secrets";
    let answer = api.send(UserInfo::new("jane", ["dev"]), got(secrets)).await;
    assert_eq!(answer.status(), 403);
    let decision = &heard.of(secrets, "authorization.k8s.io/decision")[1];
    assert_eq!(*decision, stage("ResponseComplete", 403, "forbid"), "recorded before the answer is sent");
    assert_eq!(answer.headers()["audit-id"].to_str().ok(), heard.last(secrets)["auditID"].as_str());
    assert_eq!(api.call("GET", "/api/v1/pods", Value::Null).await.0, 200);
    assert!(heard.of("/api/v1/pods", "").is_empty(), "no rule matches");
}

#[tokio::test]
async fn audit_events_contain_objects_according_to_the_level() {
    let rules = "- {level: RequestResponse, omitManagedFields: true, resources: [{resources: [secrets]}]}\n\
                 - {level: Request, omitStages: [RequestReceived], resources: [{resources: [configmaps]}]}";
    let (api, heard) = audited(rules, false).await;
    let secrets = "/api/v1/namespaces/default/secrets";
    for name in ["a", "b"] {
        let filling = "x".repeat(50_000);
        api.create(secrets, json!({"metadata": {"name": name}, "stringData": {"k": "v", "filling": filling}})).await;
    }
    let made = heard.last(secrets);
    assert_eq!(made["requestObject"]["stringData"]["k"], "v", "as sent");
    let typed = (made["requestObject"]["kind"].as_str(), made["requestObject"]["apiVersion"].as_str());
    assert_eq!(typed, (Some("Secret"), Some("v1")), "added, because the client omitted them");
    assert_eq!(made["responseObject"]["data"]["k"], "dg==", "as answered");
    assert!(made["responseObject"]["metadata"].get("managedFields").is_none(), "{made}");

    // A list is streamed, and recorded after it was sent.
    let answer = api.send(admin(), got(secrets)).await;
    assert_eq!(heard.of(secrets, "").len(), 5, "received");
    answer.into_body().collect().await.expect("a body");
    while heard.of(secrets, "").len() < 6 {
        tokio::task::yield_now().await;
    }
    let listed = heard.last(secrets);
    assert_eq!(listed["responseObject"]["items"].as_array().map(Vec::len), Some(2), "{listed}");

    let answer = api.raw("DELETE", &format!("{secrets}/b"), &[], r#"{"gracePeriodSeconds":0}"#).await;
    assert_eq!(answer.status(), 200);
    let gone = heard.last(&format!("{secrets}/b"));
    assert_eq!((&gone["responseStatus"]["status"], &gone["responseStatus"]["code"]), (&json!("Success"), &json!(200)));
    let options = json!({"apiVersion": "meta.k8s.io/v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
    assert_eq!(gone["requestObject"], options);

    let protobuf = [("accept", "application/vnd.kubernetes.protobuf")];
    assert_eq!(api.raw("GET", &format!("{secrets}/a"), &protobuf, "").await.status(), 200);
    assert_eq!(heard.last(&format!("{secrets}/a"))["responseObject"]["metadata"]["name"], "a", "in JSON");

    let map = "/api/v1/namespaces/default/configmaps/kube-root-ca.crt";
    api.call("PATCH", map, json!({"data": {"x": "y"}})).await;
    let patched = heard.last(map);
    assert_eq!(patched["requestObject"], json!({"data": {"x": "y"}}));
    assert!(patched.get("responseObject").is_none());
    assert_eq!(heard.of(map, "").len(), 1, "one stage is omitted");
}

#[tokio::test]
async fn admission_results_are_recorded_for_rejected_and_accepted_requests() {
    let rules = "- {level: Metadata, omitStages: [RequestReceived], resources: [{resources: [configmaps]}]}";
    let (api, heard) = audited(rules, false).await;
    let group = "/apis/admissionregistration.k8s.io/v1";
    let spec = json!({
        "matchConstraints": {"resourceRules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"],
            "resources": ["configmaps"]}]},
        "auditAnnotations": [{"key": "entries", "valueExpression": "string(object.data.size())"}],
        "validations": [{"expression": "object.data.size() < 2", "message": "too many entries"}]});
    api.create(&format!("{group}/validatingadmissionpolicies"), json!({"metadata": {"name": "few"}, "spec": spec}))
        .await;
    let bound = |name: &str, actions: Value| json!({"metadata": {"name": name}, "spec": {"policyName": "few", "validationActions": actions}});
    let bindings = format!("{group}/validatingadmissionpolicybindings");
    api.create(&bindings, bound("few-here", json!(["Warn", "Audit"]))).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let body = |name: &str| json!({"metadata": {"name": name}, "data": {"a": "", "b": ""}}).to_string();
    let answer = api.raw("POST", maps, &[], body("a")).await;
    let warning =
        "299 - \"Validation failed for ValidatingAdmissionPolicy 'few' with binding 'few-here': too many entries\"";
    assert_eq!((answer.status().as_u16(), answer.headers()["warning"].to_str().ok()), (201, Some(warning)));
    let annotations = heard.last(maps)["annotations"].clone();
    assert_eq!(annotations["few/entries"], "2");
    let failure = annotations["validation.policy.admission.k8s.io/validation_failure"].as_str().unwrap_or_default();
    let failure: Value = serde_json::from_str(failure).expect("JSON");
    let expected = json!([{"message": "too many entries", "policy": "few", "binding": "few-here", "expressionIndex": 0,
        "validationActions": ["Warn", "Audit"]}]);
    assert_eq!((failure, annotations.get("admission.kelson/refused-by")), (expected, None));

    api.create(&bindings, bound("stop", json!(["Deny"]))).await;
    let answer = api.raw("POST", maps, &[], body("b")).await;
    assert_eq!(answer.status(), 422);
    assert_eq!(answer.headers()["warning"].to_str().ok(), Some(warning), "a rejection keeps the warning");
    let reply = heard.last(maps);
    assert_eq!(reply["annotations"]["admission.kelson/refused-by"], "ValidatingAdmissionPolicy");
    assert_eq!((&reply["annotations"]["few/entries"], &reply["responseStatus"]["code"]), (&json!("2"), &json!(422)));
    // A dry run is admitted and recorded like any other request.
    let answer = api.raw("POST", &format!("{maps}?dryRun=All"), &[], body("c")).await;
    assert_eq!(answer.status(), 422);
    let reply = heard.last(&format!("{maps}?dryRun=All"));
    assert_eq!(reply["annotations"]["admission.kelson/refused-by"], "ValidatingAdmissionPolicy");
}

/// A webhook that adds a label.
fn label(seen: &ReceivedRequest) -> Behaviour {
    let review: Value = serde_json::from_slice(&seen.body).expect("JSON");
    let patch = STANDARD.encode(LABELLED.to_string());
    let response = json!({"uid": review["request"]["uid"], "allowed": true, "patchType": "JSONPatch", "patch": patch});
    let answer = json!({"kind": "AdmissionReview", "apiVersion": review["apiVersion"], "response": response});
    Behaviour::Answer(200, answer.to_string().into_bytes())
}

static LABELLED: LazyLock<Value> =
    LazyLock::new(|| json!([{"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}}]));

#[tokio::test]
async fn mutations_and_patches_are_recorded() {
    let rules = "- {level: Request, omitStages: [RequestReceived], resources: [{resources: [pods]}]}\n\
                 - {level: Metadata, omitStages: [RequestReceived], resources: [{resources: [configmaps]}]}";
    let (api, heard) = audited(rules, false).await;
    let server = TestServer::start(&["localhost"], label).await;
    let rule = json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods", "configmaps"]});
    let hook = json!({"name": "label.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"], "rules": [rule],
        "clientConfig": {"url": format!("https://127.0.0.1:{}/", server.address.port()), "caBundle": STANDARD.encode(server.ca())}});
    let configurations = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    api.create(configurations, json!({"metadata": {"name": "labels"}, "webhooks": [hook]})).await;

    let (pods, maps) = ("/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/configmaps");
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    assert_eq!(api.create(pods, pod).await["metadata"]["labels"], json!({"seen": "yes"}));
    let reply = heard.last(pods)["annotations"].clone();
    let changed = reply["admission.kelson/changed-by"].as_str().unwrap_or_default();
    for want in [
        "Priority changed spec.preemptionPolicy, spec.priority",
        "DefaultTolerationSeconds changed spec.tolerations",
        "MutatingAdmissionWebhook (webhook \"label.example.com\") changed metadata.labels",
    ] {
        assert!(changed.contains(want), "{want}: {changed}");
    }
    let read = |text: &Value| serde_json::from_str::<Value>(text.as_str().unwrap_or_default()).unwrap_or_default();
    let who = json!({"configuration": "labels", "webhook": "label.example.com", "mutated": true});
    assert_eq!(read(&reply["mutation.webhook.admission.k8s.io/round_0_index_0"]), who);
    let text = reply["mutation.webhook.admission.k8s.io/round_0_index_0"].as_str();
    let expected = r#"{"configuration":"labels","webhook":"label.example.com","mutated":true}"#;
    assert_eq!(text, Some(expected), "the keys are in upstream's order");
    let patch = &reply["patch.webhook.admission.k8s.io/round_0_index_0"];
    let patched = json!({"configuration": "labels", "webhook": "label.example.com", "patch": *LABELLED, "patchType": "JSONPatch"});
    assert_eq!(read(patch), patched);

    api.create(maps, json!({"metadata": {"name": "m"}})).await;
    let reply = heard.last(maps)["annotations"].clone();
    assert_eq!(read(&reply["mutation.webhook.admission.k8s.io/round_0_index_0"]), who);
    assert_eq!(
        reply.get("patch.webhook.admission.k8s.io/round_0_index_0"),
        None,
        "a patch contains parts of the object"
    );
}

#[tokio::test]
async fn the_user_and_the_impersonated_user_are_recorded() {
    let (api, heard) = audited("- {level: Metadata, resources: [{resources: [secrets]}]}", false).await;
    let path = "/api/v1/namespaces/default/secrets";
    let answer = api.raw("GET", path, &[("impersonate-user", "jane"), ("x-forwarded-for", "192.0.2.9")], "").await;
    assert_eq!(answer.status(), 403);
    let reply = heard.last(path);
    assert_eq!((&reply["user"]["username"], &reply["impersonatedUser"]["username"]), (&json!("admin"), &json!("jane")));
    assert_eq!(reply["sourceIPs"], json!(["192.0.2.9", "127.0.0.1"]));
    // Rejected impersonation is recorded too.
    let request = http::Request::builder().uri(path).header("impersonate-user", "admin").body(Bytes::new());
    assert_eq!(api.send(UserInfo::new("jane", ["dev"]), request.expect("request")).await.status(), 403);
    let reply = heard.last(path);
    assert_eq!((&reply["user"]["username"], reply.get("impersonatedUser")), (&json!("jane"), None));
    assert_eq!(reply["stage"], "ResponseComplete");
}

#[tokio::test]
async fn a_request_is_rejected_if_its_audit_event_cannot_be_stored() {
    let (api, _) = audited("- {level: Metadata, resources: [{resources: [secrets]}]}", true).await;
    let (code, status) = api.call("GET", "/api/v1/secrets", Value::Null).await;
    assert_eq!((code, &status["message"]), (500, &json!("Internal error occurred: failed to store audit event")));
    assert_eq!(api.call("GET", "/api/v1/pods", Value::Null).await.0, 200);
    let metrics = api.call("GET", "/metrics", Value::Null).await.1;
    let text = metrics.as_str().expect("text");
    for line in ["apiserver_audit_requests_rejected_total 1", "apiserver_audit_error_total{plugin=\"webhook\"} 1"] {
        assert!(text.lines().any(|l| l == line), "{line}");
    }
}

#[tokio::test]
async fn component_statuses_show_registered_components() {
    let api = Api::start().await;
    let path = "/api/v1/componentstatuses/scheduler";
    assert_eq!(api.get(path).await["conditions"][0]["status"], "False", "no scheduler runs here");
    assert_eq!(api.call("GET", "/readyz", Value::Null).await.0, 200, "readiness does not depend on one");
    let ends = Arc::new(Mutex::new(Ok(())));
    let state = Arc::clone(&ends);
    api.running.register_component("scheduler", Box::new(move || state.lock().clone()));
    assert_eq!(api.get(path).await["conditions"][0]["status"], "True");
    *ends.lock() = Err("it is ending".to_owned());
    assert_eq!(api.get(path).await["conditions"][0]["error"], "it is ending");
    assert_eq!(api.call("GET", "/readyz", Value::Null).await.0, 500);
    assert_eq!(api.call("GET", "/livez", Value::Null).await.0, 200, "a restart would not help");
}
