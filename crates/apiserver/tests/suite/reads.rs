//! Reads of custom resources: objects are defaulted by the schema of the requested version, whatever their writer and
//! time, and are converted once per change for all readers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Api, Lines};
use base64::Engine as _;
use kelson_doubles::webhook::{Behaviour, TestServer};
use serde_json::{Value, json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn version(name: &str, storage: bool, spec: Value) -> Value {
    let text = json!({"type": "string"});
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": spec},
        "status": {"type": "object", "default": {"phase": "New"}, "properties": {"phase": text}}}});
    json!({"name": name, "served": true, "storage": storage, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": schema}})
}

fn definition(versions: Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "defs.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "defs", "kind": "Def"}, "versions": versions}})
}

fn path(version: &str) -> String {
    format!("/apis/example.com/{version}/namespaces/default/defs")
}

fn object(version: &str, name: &str) -> Value {
    json!({"apiVersion": format!("example.com/{version}"), "kind": "Def", "metadata": {"name": name}, "spec": {"a": "x"}})
}

/// An object in the answers of all kinds of reads, which must be the same.
async fn seen(api: &Api, version: &str, name: &str) -> Value {
    let uri = path(version);
    let got = api.get(&format!("{uri}/{name}")).await;
    let same = |other: &Value, how: &str| {
        assert_eq!((&other["spec"], &other["status"]), (&got["spec"], &got["status"]), "{how}")
    };
    let list = api.get(&uri).await;
    let listed = list["items"].as_array().expect("items").iter().find(|item| item["metadata"]["name"] == *name);
    same(listed.expect("in the list"), "list");
    let watch = format!("{uri}?watch=1&fieldSelector=metadata.name%3D{name}");
    let event = Lines::new(api.raw("GET", &watch, &[], "").await).next().await.expect("an event");
    same(&event["object"], "watch");
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let response = api.raw("GET", &format!("{uri}/{name}?includeObject=Object"), &table, "").await;
    let body = http_body_util::BodyExt::collect(response.into_body()).await.expect("a body").to_bytes();
    let table: Value = serde_json::from_slice(&body).expect("JSON");
    same(&table["rows"][0]["object"], "table");
    got
}

#[tokio::test]
async fn a_default_in_the_status_is_visible_from_the_first_read() {
    let api = Api::start().await;
    api.create(DEFINITIONS, definition(json!([version("v1", true, json!({"a": {"type": "string"}}))]))).await;
    let made = api.create(&path("v1"), object("v1", "d")).await;
    assert_eq!(made["status"], json!({"phase": "New"}), "{made}");
    assert_eq!(seen(&api, "v1", "d").await["status"], json!({"phase": "New"}));
    let uri = format!("{}/e?fieldManager=m", path("v1"));
    let (code, applied) = api.typed("PATCH", &uri, "application/apply-patch+yaml", object("v1", "e")).await;
    assert_eq!((code, &applied["status"]), (201, &json!({"phase": "New"})), "{applied}");
    let (code, now) = api.call("PATCH", &format!("{}/d/status", path("v1")), json!({"status": {"phase": "Old"}})).await;
    assert_eq!((code, &now["status"]), (200, &json!({"phase": "Old"})));
    assert_eq!(seen(&api, "v1", "d").await["status"], json!({"phase": "Old"}));
}

#[tokio::test]
async fn objects_written_in_another_version_are_defaulted() {
    let api = Api::start().await;
    let text = json!({"type": "string"});
    let default = |value: &str| json!({"type": "string", "default": value});
    let v1 = version("v1", true, json!({"a": text, "b": default("fromv1")}));
    let v2 = version("v2", false, json!({"a": text, "b": text, "c": default("fromv2")}));
    api.create(DEFINITIONS, definition(json!([v1, v2]))).await;
    api.create(&path("v2"), object("v2", "d")).await;
    assert_eq!(seen(&api, "v1", "d").await["spec"], json!({"a": "x", "b": "fromv1"}));
    assert_eq!(seen(&api, "v2", "d").await["spec"], json!({"a": "x", "b": "fromv1"}));
    api.create(&path("v1"), object("v1", "e")).await;
    assert_eq!(seen(&api, "v1", "e").await["spec"], json!({"a": "x", "b": "fromv1"}));
    // A later schema defaults stored objects again.
    let v1 = version("v1", true, json!({"b": text, "n": default("added")}));
    let (code, reply) =
        api.call("PATCH", &format!("{DEFINITIONS}/defs.example.com"), json!({"spec": {"versions": [v1]}})).await;
    assert_eq!(code, 200, "{reply}");
    assert_eq!(seen(&api, "v1", "e").await["spec"], json!({"b": "fromv1", "n": "added"}));
    assert_eq!(seen(&api, "v1", "d").await["spec"], json!({"n": "added"}));
}

fn bundle(server: &TestServer) -> String {
    base64::engine::general_purpose::STANDARD.encode(server.ca())
}

/// The webhook blocks until the schema has changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_schema_change_during_a_write_takes_effect() {
    let (asked, mut was_asked) = tokio::sync::mpsc::channel::<()>(1);
    let (go, may_go) = std::sync::mpsc::sync_channel::<()>(1);
    let may_go = std::sync::Mutex::new(may_go);
    let server = TestServer::start(&["localhost"], move |seen| {
        let review: Value = serde_json::from_slice(&seen.body).expect("a review");
        asked.try_send(()).ok();
        may_go.lock().expect("no panic").recv().expect("the schema changes");
        let response = json!({"uid": review["request"]["uid"], "allowed": true});
        let answer = json!({"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response});
        Behaviour::Answer(200, answer.to_string().into_bytes())
    })
    .await;
    let api = Api::start().await;
    let text = json!({"type": "string"});
    let v1 = version("v1", true, json!({"a": text, "b": {"type": "string", "default": "fromv1"}}));
    api.create(DEFINITIONS, definition(json!([v1]))).await;
    let url = format!("https://localhost:{}/validate", server.address.port());
    let hook = json!({"name": "slow.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": url, "caBundle": bundle(&server)},
        "rules": [{"apiGroups": ["example.com"], "apiVersions": ["*"], "resources": ["defs"], "operations": ["CREATE"]}]});
    let hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    api.create(hooks, json!({"metadata": {"name": "slow"}, "webhooks": [hook]})).await;
    let change = async {
        was_asked.recv().await.expect("the webhook is called");
        let v1 = version("v1", true, json!({"b": text, "n": {"type": "string", "default": "added"}}));
        let uri = format!("{DEFINITIONS}/defs.example.com");
        let (code, reply) = api.call("PATCH", &uri, json!({"spec": {"versions": [v1]}})).await;
        assert_eq!(code, 200, "{reply}");
        go.send(()).expect("the webhook waits");
    };
    let uri = path("v1");
    let (made, ()) = tokio::join!(api.call("POST", &uri, object("v1", "d")), change);
    assert_eq!(made.0, 201, "{}", made.1);
    assert_eq!(seen(&api, "v1", "d").await["spec"], json!({"b": "fromv1", "n": "added"}));
}

#[tokio::test]
async fn objects_are_converted_once_for_all_readers() {
    let away = Arc::new(AtomicBool::new(false));
    let is_away = Arc::clone(&away);
    let server = TestServer::start(&["localhost"], move |seen| {
        if is_away.load(Ordering::Acquire) {
            return Behaviour::Answer(500, Vec::new());
        }
        let review: Value = serde_json::from_slice(&seen.body).expect("a review");
        let wanted = review["request"]["desiredAPIVersion"].clone();
        let mut objects = review["request"]["objects"].as_array().expect("objects").clone();
        objects.iter_mut().for_each(|object| object["apiVersion"] = wanted.clone());
        let response =
            json!({"uid": review["request"]["uid"], "result": {"status": "Success"}, "convertedObjects": objects});
        let answer = json!({"apiVersion": review["apiVersion"], "kind": "ConversionReview", "response": response});
        Behaviour::Answer(200, answer.to_string().into_bytes())
    })
    .await;
    let api = Api::start().await;
    let fields = json!({"a": {"type": "string"}});
    let mut made = definition(json!([version("v1", true, fields.clone()), version("v2", false, fields)]));
    made["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
        "clientConfig": {"url": format!("https://localhost:{}/convert", server.address.port()), "caBundle": bundle(&server)}}});
    api.create(DEFINITIONS, made).await;
    for name in ["a", "b", "c"] {
        api.create(&path("v1"), object("v1", name)).await;
    }
    let calls = || server.seen().len();
    let lists: Vec<Value> = futures::future::join_all((0..5).map(|_| async { api.get(&path("v2")).await })).await;
    for list in &lists {
        assert_eq!(list["items"].as_array().map(Vec::len), Some(3));
        assert_eq!(list["items"][0]["apiVersion"], "example.com/v2");
        assert_eq!(list["items"][0]["status"], json!({"phase": "New"}));
    }
    assert_eq!(calls(), 1, "three objects in one call for five lists");
    // Ten watchers and one change.
    let mut watchers = Vec::new();
    for _ in 0..10 {
        let mut lines = Lines::new(api.raw("GET", &format!("{}?watch=1", path("v2")), &[], "").await);
        for _ in 0..3 {
            lines.next().await.expect("the initial event");
        }
        watchers.push(lines);
    }
    assert_eq!(calls(), 1);
    let (code, _) = api.call("PATCH", &format!("{}/b", path("v1")), json!({"spec": {"a": "y"}})).await;
    assert_eq!(code, 200);
    let next = watchers.iter_mut().map(Lines::next);
    for event in futures::future::join_all(next).await {
        let event = event.expect("an event");
        assert_eq!((&event["type"], &event["object"]["spec"]["a"]), (&json!("MODIFIED"), &json!("y")));
        assert_eq!(event["object"]["apiVersion"], "example.com/v2");
    }
    assert_eq!(calls(), 2);
    // Converted objects can be read while the webhook is down; others cannot.
    away.store(true, Ordering::Release);
    assert_eq!(api.get(&path("v2")).await["items"].as_array().map(Vec::len), Some(3));
    assert_eq!(api.get(&format!("{}/b", path("v2"))).await["spec"]["a"], "y");
    assert_eq!(calls(), 2);
    api.create(&path("v1"), object("v1", "d")).await;
    assert_eq!(api.call("GET", &path("v2"), Value::Null).await.0, 500);
    assert_eq!(api.call("GET", &path("v1"), Value::Null).await.0, 200);
    away.store(false, Ordering::Release);
    assert_eq!(api.get(&path("v2")).await["items"].as_array().map(Vec::len), Some(4));
}
