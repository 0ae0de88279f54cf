//! What the server tells those who watch over it: audit events, and the state of its components.
mod common;

use std::sync::Arc;

use common::Api;
use http_body_util::BodyExt as _;
use kelson_apiserver::{AuditEvent, AuditSink, AuditStage};
use kelson_auth::UserInfo;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// Keeps what it hears.
#[derive(Default)]
struct Heard(Mutex<Vec<AuditEvent>>);

impl AuditSink for Heard {
    fn record(&self, event: &AuditEvent) {
        self.0.lock().push(event.clone());
    }
}

impl Heard {
    /// Of the requests for a path: stage, code, and one annotation.
    fn of(&self, path: &str, annotation: &str) -> Vec<(AuditStage, u16, String)> {
        let events = self.0.lock();
        let told = events.iter().filter(|e| e.uri == path).map(|e| {
            let code = e.code.map_or(0, |c| c.as_u16());
            (e.stage, code, e.annotations.get(annotation).cloned().unwrap_or_default())
        });
        told.collect()
    }
}

#[tokio::test]
async fn the_audit_hears_who_decided() {
    let heard = Arc::new(Heard::default());
    let sink = Arc::clone(&heard);
    let api = Api::with(|config| config.audit = Some(sink)).await;
    let missing = "/api/v1/namespaces/missing/configmaps";
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}});
    assert_eq!(api.call("POST", missing, map).await.0, 404);
    let (received, complete) = (AuditStage::RequestReceived, AuditStage::ResponseComplete);
    let refused_by = heard.of(missing, "admission.kelson/refused-by");
    assert_eq!(refused_by, [(received, 0, String::new()), (complete, 404, "NamespaceLifecycle".to_owned())]);
    assert_eq!(heard.of(missing, "authorization.k8s.io/decision")[1].2, "allow");

    let secrets = "/api/v1/secrets";
    let request = http::Request::builder().uri(secrets).body(bytes::Bytes::new()).expect("request");
    let answer = api.send(UserInfo::new("jane", ["dev"]), request).await;
    assert_eq!(answer.status(), 403);
    assert_eq!(heard.of(secrets, "").len(), 1, "the answer is not sent yet");
    answer.into_body().collect().await.expect("a body");
    assert_eq!(heard.of(secrets, "authorization.k8s.io/decision")[1], (complete, 403, "forbid".to_owned()));
}

#[tokio::test]
async fn a_component_says_itself_how_it_is() {
    let api = Api::start().await;
    let path = "/api/v1/componentstatuses/scheduler";
    assert_eq!(api.get(path).await["conditions"][0]["status"], "False", "no scheduler runs here");
    assert_eq!(api.call("GET", "/readyz", Value::Null).await.0, 200, "nor does anybody wait for one");
    let ends = Arc::new(Mutex::new(Ok(())));
    let state = Arc::clone(&ends);
    api.running.register_component("scheduler", Box::new(move || state.lock().clone()));
    assert_eq!(api.get(path).await["conditions"][0]["status"], "True");
    *ends.lock() = Err("it is ending".to_owned());
    assert_eq!(api.get(path).await["conditions"][0]["error"], "it is ending");
    assert_eq!(api.call("GET", "/readyz", Value::Null).await.0, 500);
    assert_eq!(api.call("GET", "/livez", Value::Null).await.0, 200, "a new process would not help it");
}
