//! Priority and fairness in the whole request path: default objects, live configuration, headers, rejections, dumps.

use std::time::Duration;

use crate::common::{Api, Lines};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use kelson_apiserver::{AuthorizationMode, Config};
use kelson_auth::{UserInfo, user};
use serde_json::{Value, json};

const GROUP: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";
/// A test that takes longer fails.
const LIMIT: Duration = Duration::from_secs(20);

async fn started(change: impl FnOnce(&mut Config)) -> Api {
    Api::with(|config| {
        config.priority_and_fairness = true;
        change(config);
    })
    .await
}

fn level(name: &str, shares: u32, queuing: Option<Value>) -> Value {
    let response = match queuing {
        Some(queuing) => json!({"type": "Queue", "queuing": queuing}),
        None => json!({"type": "Reject"}),
    };
    json!({"metadata": {"name": name},
        "spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": shares, "limitResponse": response}}})
}

fn schema(name: &str, level: &str, user: &str) -> Value {
    let rules = json!([{"subjects": [{"kind": "User", "user": {"name": user}}],
        "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]}],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}]);
    json!({"metadata": {"name": name}, "spec": {"matchingPrecedence": 1000,
        "priorityLevelConfiguration": {"name": level}, "distinguisherMethod": {"type": "ByUser"}, "rules": rules}})
}

async fn steady(api: &Api, schema: &str, status: &str) -> Value {
    let read = async {
        loop {
            // A deleted schema may not exist yet.
            let object = api.call("GET", &format!("{GROUP}/flowschemas/{schema}"), Value::Null).await.1;
            if object["status"]["conditions"][0]["status"] == status {
                return object;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, read).await.unwrap_or_else(|_| panic!("{schema} is never {status}"))
}

async fn ask(api: &Api, name: &str, path: &str) -> http::Response<kelson_transport::Body> {
    let request = http::Request::builder().uri(path).body(Bytes::new()).expect("request");
    api.send(UserInfo::new(name, [user::AUTHENTICATED]), request).await
}

fn header(answer: &http::Response<kelson_transport::Body>, of: &str) -> String {
    let name = format!("x-kubernetes-pf-{of}-uid");
    answer.headers().get(&name).and_then(|v| v.to_str().ok()).unwrap_or("").to_owned()
}

#[tokio::test]
async fn a_cluster_has_and_maintains_its_levels_and_schemas() {
    let api = started(|_| {}).await;
    let schemas = api.get(&format!("{GROUP}/flowschemas")).await;
    let levels = api.get(&format!("{GROUP}/prioritylevelconfigurations")).await;
    let count = |list: &Value| list["items"].as_array().map(Vec::len);
    assert_eq!((count(&schemas), count(&levels)), (Some(11), Some(8)));
    let found = |i: &Value| i["status"]["conditions"][0]["reason"] == "Found";
    assert!(schemas["items"].as_array().expect("items").iter().all(found), "{schemas}");
    // A changed object that the server manages is restored; one that a user has taken over is not.
    let system = format!("{GROUP}/prioritylevelconfigurations/system");
    let changed = json!({"spec": {"limited": {"nominalConcurrencyShares": 7}}});
    assert_eq!(api.call("PATCH", &system, changed.clone()).await.0, 200);
    let shares = async |wanted: u64| {
        while api.get(&system).await["spec"]["limited"]["nominalConcurrencyShares"] != wanted {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, shares(30)).await.expect("restored");
    let mut taken = changed;
    taken["metadata"] = json!({"annotations": {"apf.kubernetes.io/autoupdate-spec": "false"}});
    assert_eq!(api.call("PATCH", &system, taken).await.0, 200);
    assert_eq!(api.call("DELETE", &format!("{GROUP}/flowschemas/exempt"), Value::Null).await.0, 200);
    steady(&api, "exempt", "False").await;
    shares(7).await;
}

#[tokio::test]
async fn objects_classify_requests_at_once() {
    let api = started(|_| {}).await;
    let own = level("own", 10, Some(json!({"queues": 4, "handSize": 2, "queueLengthLimit": 5})));
    let schema_made = api.create(&format!("{GROUP}/flowschemas"), schema("own", "own", "noxu")).await;
    let dangling = steady(&api, "own", "True").await;
    assert_eq!(dangling["status"]["conditions"][0]["reason"], "NotFound");
    let level_made = api.create(&format!("{GROUP}/prioritylevelconfigurations"), own).await;
    steady(&api, "own", "False").await;
    let answer = ask(&api, "noxu", "/version").await;
    assert_eq!(header(&answer, "flowschema"), schema_made["metadata"]["uid"].as_str().expect("a uid"));
    assert_eq!(header(&answer, "prioritylevel"), level_made["metadata"]["uid"].as_str().expect("a uid"));
    let other = ask(&api, "foo", "/version").await;
    assert!(!header(&other, "flowschema").is_empty() && header(&other, "flowschema") != header(&answer, "flowschema"));
    let metrics = api.call("GET", "/metrics", Value::Null).await.1;
    let text = metrics.as_str().expect("text");
    for start in [
        "apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"own\",priority_level=\"own\"} 1",
        "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"own\"} ",
        "apiserver_flowcontrol_request_execution_seconds_count{flow_schema=\"own\",priority_level=\"own\",type=\"regular\"} 1",
    ] {
        assert!(text.lines().any(|l| l.starts_with(start)), "{start} in\n{text}");
    }
    let dump = api.call("GET", "/debug/api_priority_and_fairness/dump_priority_levels", Value::Null).await.1;
    let own = dump.as_str().expect("text").lines().find(|l| l.starts_with("own,")).map(str::to_owned);
    assert!(own.is_some_and(|line| line.replace(' ', "").starts_with("own,0,true,false,0,0,1,0")), "{dump}");
    assert_eq!(ask(&api, "noxu", "/debug/api_priority_and_fairness/dump_queues").await.status(), 403);
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Creates config maps until a list of them is sent in pieces.
async fn fill(api: &Api) {
    for i in 0..10 {
        let map = json!({"metadata": {"name": format!("m{i}")}, "data": {"k": "x".repeat(100_000)}});
        api.create(MAPS, map).await;
    }
}

async fn idle(api: &Api) {
    let over = async {
        while api.running.server().flow.in_flight() != (0, 0) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, over).await.expect("all seats are released");
}

#[tokio::test]
async fn a_flow_without_seats_is_rejected_and_others_are_not() {
    let api = started(|config| config.authorization = vec![AuthorizationMode::AlwaysAllow]).await;
    fill(&api).await;
    // Without a share of the seats it serves one request at a time.
    api.create(&format!("{GROUP}/prioritylevelconfigurations"), level("none", 0, None)).await;
    api.create(&format!("{GROUP}/flowschemas"), schema("none", "none", "noxu")).await;
    steady(&api, "none", "False").await;
    let listing = ask(&api, "noxu", MAPS).await;
    assert_eq!(listing.status(), 200);
    assert_eq!(api.running.server().flow.in_flight().0, 1, "its answer is being sent");
    let answer = ask(&api, "noxu", "/version").await;
    assert_eq!((answer.status().as_u16(), answer.headers()["retry-after"].to_str().ok()), (429, Some("1")));
    assert!(!header(&answer, "flowschema").is_empty(), "rejections have the headers too");
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    assert!(String::from_utf8_lossy(&body).contains("Too many requests, please try again later."));
    assert_eq!(ask(&api, "foo", "/version").await.status(), 200);
    let bytes = listing.into_body().collect().await.expect("a body").to_bytes();
    assert!(bytes.len() > 1_000_000);
    idle(&api).await;
    assert_eq!(ask(&api, "noxu", "/version").await.status(), 200);
}

#[tokio::test]
async fn a_watch_holds_seats_until_it_has_begun() {
    let api = started(|config| config.authorization = vec![AuthorizationMode::AlwaysAllow]).await;
    fill(&api).await;
    let answer = ask(&api, "foo", &format!("{MAPS}?watch=1")).await;
    assert!(!header(&answer, "prioritylevel").is_empty());
    assert_eq!(api.running.server().flow.in_flight().0, 1, "it sends the initial events");
    let mut lines = Lines::new(answer);
    for _ in 0..10 {
        assert!(lines.event().await.starts_with("ADDED "));
    }
    // Later events are not part of its beginning.
    let map = json!({"metadata": {"name": "late"}});
    let (made, late) = tokio::join!(api.create(MAPS, map), lines.event());
    assert_eq!((made["metadata"]["name"].as_str(), late.as_str()), (Some("late"), "ADDED late"));
    idle(&api).await;
}
