//! Traces of sampled requests, and trace context in requests to other servers.
// Helpers of a test panic on errors, like the test itself.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::common::Api;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt as _;
use kelson_auth::UserInfo;
use kelson_doubles::collector::{Collected, Collector};
use kelson_doubles::webhook::{Behaviour, ReceivedRequest, TestServer};
use kelson_meta::SystemClock;
use kelson_tasks::Tasks;
use kelson_traces::{Exporter, ExporterOptions, KeyValue, Pace, TracingConfiguration};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const UNSAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

/// A server that only continues sampled traces.
async fn traced(collector: &Collector) -> Api {
    let options = ExporterOptions {
        configuration: TracingConfiguration {
            endpoint: Some(collector.endpoint().to_owned()),
            sampling_rate_per_million: None,
        },
        resource: vec![KeyValue::text("service.name", "apiserver")],
        clock: Arc::new(SystemClock),
        pace: Pace::default(),
        tasks: Tasks::root("traces"),
    };
    let (tracer, _) = Exporter::start(options).unwrap();
    Api::with(|config| config.tracer = Some(tracer)).await
}

async fn ask(api: &Api, method: &str, uri: &str, trace: &str, body: Value) -> u16 {
    let headers = [("traceparent", trace), ("content-type", "application/json"), ("user-agent", "test/1")];
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = api.raw(method, uri, &headers, body).await;
    let code = answer.status().as_u16();
    answer.into_body().collect().await.unwrap();
    code
}

/// The name of a span with its children in parentheses, in the order in which they ended.
fn tree(spans: &[Collected], of: &Collected) -> String {
    let below: Vec<String> = spans.iter().filter(|s| s.parent == of.span).map(|s| tree(spans, s)).collect();
    if below.is_empty() { of.name.clone() } else { format!("{} ({})", of.name, below.join(", ")) }
}

#[tokio::test]
async fn a_sampled_request_has_spans_of_its_steps() {
    let collector = Collector::start().await;
    let api = traced(&collector).await;
    let map = json!({"metadata": {"name": "a"}});
    assert_eq!(ask(&api, "POST", MAPS, SAMPLED, map.clone()).await, 201);
    assert_eq!(
        ask(&api, "PUT", &format!("{MAPS}/a"), SAMPLED, json!({"metadata": {"name": "a"}, "data": {"x": "y"}})).await,
        200
    );
    assert_eq!(ask(&api, "GET", &format!("{MAPS}/a"), SAMPLED, Value::Null).await, 200);
    assert_eq!(ask(&api, "GET", MAPS, SAMPLED, Value::Null).await, 200);
    assert_eq!(ask(&api, "DELETE", &format!("{MAPS}/a"), SAMPLED, Value::Null).await, 200);
    assert_eq!(ask(&api, "GET", "/version", SAMPLED, Value::Null).await, 200);
    // Neither is recorded: one is not sampled, and the other's client is not trusted.
    assert_eq!(ask(&api, "GET", MAPS, UNSAMPLED, Value::Null).await, 200);
    let request = http::Request::get(MAPS).header("traceparent", SAMPLED).body(bytes::Bytes::new()).unwrap();
    assert_eq!(api.send(UserInfo::new("jane", ["dev"]), request).await.status(), 403);
    api.running.shutdown().await;
    let spans = collector.spans();
    let roots: Vec<&Collected> = spans.iter().filter(|s| s.parent == "00f067aa0ba902b7").collect();
    let reply: Vec<String> = roots.iter().map(|root| tree(&spans, root)).collect();
    let own = "/api/v1/namespaces/{:namespace}/configmaps";
    assert_eq!(
        reply,
        [
            format!("POST {own} (authorization, priorityandfairness, Create (Create etcd3, SerializeObject))"),
            format!(
                "PUT {own}/{{:name}} (authorization, priorityandfairness, Update (GuaranteedUpdate etcd3, SerializeObject))"
            ),
            format!("GET {own}/{{:name}} (authorization, priorityandfairness, Get (cacher.Get, SerializeObject))"),
            format!("GET {own} (authorization, priorityandfairness, List (cacher.GetList))"),
            format!("DELETE {own}/{{:name}} (authorization, priorityandfairness, Delete)"),
            "GET (authorization, priorityandfairness)".to_owned(),
        ]
    );
    assert!(spans.iter().all(|s| s.trace == "4bf92f3577b34da6a3ce929d0e0e4736" && s.status == 0));
    let text = |span: &Collected, key: &str| span.attributes.get(key).cloned().unwrap_or_default();
    let want = [
        ("http.request.method", "POST"),
        ("http.response.status_code", "201"),
        ("http.target", MAPS),
        ("user_agent.original", "test/1"),
    ];
    want.iter().for_each(|(key, value)| assert_eq!(text(roots[0], key), *value, "{key}"));
    let create = spans.iter().find(|s| s.name == "Create").unwrap();
    let want = [
        ("namespace", "default"),
        ("resource", "configmaps"),
        ("scope", "resource"),
        ("verb", "POST"),
        ("user-agent", "test/1"),
    ];
    want.iter().for_each(|(key, value)| assert_eq!(text(create, key), *value, "{key}"));
    assert_eq!(text(create, "audit-id"), text(roots[0], "audit-id"));
    let stored = spans.iter().find(|s| s.name == "Create etcd3").unwrap();
    assert_eq!(text(stored, "key"), "/configmaps/default/a");
}

#[tokio::test]
async fn spans_have_events_of_their_steps() {
    let collector = Collector::start().await;
    let api = traced(&collector).await;
    let one = format!("{MAPS}/a");
    assert_eq!(ask(&api, "POST", MAPS, SAMPLED, json!({"metadata": {"name": "a"}})).await, 201);
    assert_eq!(ask(&api, "GET", &one, SAMPLED, Value::Null).await, 200);
    assert_eq!(ask(&api, "GET", &format!("{MAPS}?limit=5"), SAMPLED, Value::Null).await, 200);
    assert_eq!(ask(&api, "PUT", &one, SAMPLED, json!({"metadata": {"name": "a", "uid": "other"}})).await, 409);
    assert_eq!(ask(&api, "PUT", &one, SAMPLED, json!({"metadata": {"name": "a"}, "data": {"x": "y"}})).await, 200);
    assert_eq!(ask(&api, "DELETE", &one, SAMPLED, Value::Null).await, 200);
    api.running.shutdown().await;
    let spans = collector.spans();
    let check = |name: &str, nth: usize, want: &[&str]| {
        let span = spans.iter().filter(|s| s.name == name).nth(nth).unwrap();
        let alike = span.events.len() == want.len() && span.events.iter().zip(want).all(|(e, w)| e.starts_with(w));
        assert!(alike, "{name}: {:?}, not {want:?}", span.events);
    };
    let answered = ["About to write a response", "Writing http response done"];
    let taken = ["limitedReadBody succeeded len=25", "About to convert to expected version", "Conversion done"];
    let stored = ["About to store object in database", "Write to database call succeeded len=25"];
    check("Create", 0, &[&taken[..], &stored, &answered].concat());
    check("Create etcd3", 0, &["About to Encode", "Encode succeeded len=", "Txn call succeeded"]);
    check("SerializeObject", 0, &["About to start writing response size="]);
    check("Get", 0, &["About to Get from storage", answered[0], answered[1]]);
    check("cacher.Get", 0, &["About to fetch object from cache"]);
    check(
        "cacher.GetList",
        0,
        &["watchCache fresh enough", "Listed items from cache count=1", "Filtered items count=1"],
    );
    check(
        "Update",
        0,
        &[
            "limitedReadBody succeeded len=39",
            taken[1],
            taken[2],
            stored[0],
            "Write to database call failed err=Operation cannot be fulfilled on configmaps \"a\": ",
        ],
    );
    let written = ["About to Encode", "Encode succeeded len=", "Transaction prepared", "Transaction committed"];
    check("GuaranteedUpdate etcd3", 0, &written);
    let removed = ["About to delete object from database", "Object deleted from database"];
    check("Delete", 0, &[&["limitedReadBody succeeded len=0", "Decoded delete options"][..], &removed].concat());
}

#[tokio::test]
async fn the_span_of_a_watch_list_ends_with_its_bookmark() {
    let collector = Collector::start().await;
    let api = traced(&collector).await;
    let listing = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1";
    assert_eq!(ask(&api, "GET", &format!("{MAPS}?watch=1&{listing}"), SAMPLED, Value::Null).await, 200);
    // A watch without initial events has only the store's span.
    assert_eq!(ask(&api, "GET", &format!("{MAPS}?watch=1&timeoutSeconds=1"), SAMPLED, Value::Null).await, 200);
    api.running.shutdown().await;
    let spans = collector.spans();
    let roots = spans.iter().filter(|s| s.parent == "00f067aa0ba902b7");
    let reply: Vec<String> = roots.map(|root| tree(&spans, root)).collect();
    let own = "GET /api/v1/namespaces/{:namespace}/configmaps (authorization";
    assert_eq!(
        reply,
        [format!("{own}, WatchList (cacher.Watch, WatchServer.HandleHTTP))"), format!("{own}, cacher.Watch)")]
    );
    let sent = spans.iter().find(|s| s.name == "WatchServer.HandleHTTP").unwrap();
    assert_eq!(sent.events, ["About to start writing response", "Writing initial events done"]);
    assert_eq!(sent.attributes.get("mediaType").map(String::as_str), Some("application/json"));
}

#[tokio::test]
async fn webhooks_get_the_trace_context_of_the_calling_span() {
    let allow = |seen: &ReceivedRequest| {
        let review: Value = serde_json::from_slice(&seen.body).unwrap();
        let response = json!({"uid": review["request"]["uid"], "allowed": true});
        let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        Behaviour::Answer(200, answer.to_string().into_bytes())
    };
    let server = TestServer::start(&["localhost"], allow).await;
    let collector = Collector::start().await;
    let api = traced(&collector).await;
    let url = format!("https://127.0.0.1:{}/x", server.address.port());
    let hook = json!({"name": "x.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": url, "caBundle": STANDARD.encode(server.ca())},
        "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]});
    let hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    api.create(hooks, json!({"metadata": {"name": "x"}, "webhooks": [hook]})).await;
    assert_eq!(ask(&api, "POST", MAPS, SAMPLED, json!({"metadata": {"name": "a"}})).await, 201);
    assert_eq!(ask(&api, "POST", MAPS, UNSAMPLED, json!({"metadata": {"name": "b"}})).await, 201);
    api.running.shutdown().await;
    let spans = collector.spans();
    let call = spans.iter().find(|s| s.name == "Call validating webhook").unwrap();
    assert_eq!(
        (call.attributes["webhook"].as_str(), tree(&spans, call).as_str()),
        ("x.example.com", "Call validating webhook (HTTP POST)")
    );
    let sent = spans.iter().find(|s| s.name == "HTTP POST").unwrap();
    assert_eq!((sent.kind, sent.attributes["http.response.status_code"].as_str()), (3, "200"));
    let heard = |n: usize| server.seen()[n].headers["traceparent"].to_str().unwrap().to_owned();
    assert_eq!(heard(0), format!("00-{}-{}-01", sent.trace, sent.span));
    let other = heard(1);
    assert!(other.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && other.ends_with("-00"), "{other}");
    assert!(!other.contains("00f067aa0ba902b7"), "the parent is a span of this server: {other}");
}
