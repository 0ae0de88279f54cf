//! The writer against a server with scripted response codes, on the paused clock.
use std::pin::Pin;

use kelson_client::{Request, Response, Transport, TransportError, full_body};

use super::*;

/// An API server with one pod. It responds to patches with the given codes, then with success.
struct ScriptedServer {
    codes: Mutex<Vec<u16>>,
    uid: &'static str,
    patches: Mutex<u32>,
}

struct Wire(Arc<ScriptedServer>);

impl Transport for Wire {
    fn send(&self, request: Request) -> Pin<Box<dyn Future<Output = Result<Response, TransportError>> + Send>> {
        let code = match *request.method() {
            http::Method::PATCH => {
                *self.0.patches.lock() += 1;
                self.0.codes.lock().pop().unwrap_or(200)
            }
            _ => 200,
        };
        let body = match code {
            200 => json!({"metadata": {"name": "p", "uid": self.0.uid}, "spec": {"containers": []}}),
            code => json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}),
        };
        let mut answer = Response::new(full_body(body.to_string()));
        *answer.status_mut() = http::StatusCode::from_u16(code).expect("a code");
        Box::pin(async move { Ok(answer) })
    }
}

/// Sets a status twice, with a delay between, and returns how often each was sent.
async fn patches(codes: &[u16], uid: &'static str) -> (u32, u32) {
    let server = Arc::new(ScriptedServer { codes: Mutex::new(codes.to_vec()), uid, patches: Mutex::default() });
    let tasks = Tasks::root("test");
    let writer = StatusWriter::start(
        Client::new(Arc::new(Wire(Arc::clone(&server))), "test"),
        &tasks,
        Arc::new(Metrics::new("n")),
    );
    let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": []}});
    let pod: Pod = serde_json::from_value(pod).expect("pod");
    let status = PodStatus { phase: Some("Running".into()), ..Default::default() };
    let mut counts = [0, 0];
    for count in &mut counts {
        writer.set(&pod, &status);
        tokio::time::sleep(Duration::from_secs(120)).await;
        *count = std::mem::take(&mut *server.patches.lock());
    }
    (counts[0], counts[1])
}

#[tokio::test(start_paused = true)]
async fn only_a_status_that_was_written_counts_as_written() {
    assert_eq!(patches(&[], "u").await, (1, 0), "written once");
    assert_eq!(patches(&[422], "u").await, (1, 1), "refused as invalid: not repeated, and not taken as written");
    assert_eq!(patches(&[409], "u").await, (2, 0), "a conflict about the same pod passes");
    assert_eq!(patches(&[409], "other").await, (1, 0), "another pod has the name");
    assert_eq!(patches(&[404], "u").await, (1, 0), "there is no such pod");
    assert_eq!(patches(&[500, 500], "u").await, (3, 0), "tried again");
}

/// A pod in the API with one condition.
fn shown(revision: &str, ready: &str) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": revision},
        "spec": {"containers": []}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}))
    .expect("a pod")
}

#[tokio::test(start_paused = true)]
async fn a_status_changed_by_another_client_is_corrected() {
    let server = Arc::new(ScriptedServer { codes: Mutex::default(), uid: "u", patches: Mutex::default() });
    let tasks = Tasks::root("test");
    let writer = StatusWriter::start(
        Client::new(Arc::new(Wire(Arc::clone(&server))), "test"),
        &tasks,
        Arc::new(Metrics::new("n")),
    );
    let count = async || {
        tokio::time::sleep(Duration::from_secs(120)).await;
        std::mem::take(&mut *server.patches.lock())
    };
    let ready = shown("5", "True").status.expect("a status");
    writer.set(&shown("4", "False"), &ready);
    assert_eq!(count().await, 1);
    writer.seen(&shown("5", "True"));
    assert_eq!(count().await, 0, "the event of its own write");
    writer.seen(&shown("6", "False"));
    assert_eq!(count().await, 1, "another client set it to not ready");
    writer.seen(&shown("3", "False"));
    assert_eq!(count().await, 0, "an old event");

    // The write of another status succeeds but its response is lost; meanwhile the first status is set again.
    *server.codes.lock() = vec![500];
    writer.set(&shown("6", "True"), &shown("", "False").status.expect("a status"));
    tokio::time::sleep(Duration::from_millis(50)).await;
    writer.set(&shown("6", "True"), &ready);
    assert_eq!(count().await, 1);
    writer.seen(&shown("7", "False"));
    assert_eq!(count().await, 1, "the lost answer comes out by the event");
}

#[test]
fn a_serialized_status_equals_its_tree() {
    let text = |status: Value| StatusText(status.to_string().into());
    let (one, other) = (
        text(json!({"conditions":[{"type":"Ready","status":"True"},{"type":"example.com/gate","status":"True"}]})),
        text(json!({"conditions":[{"type":"example.com/gate","status":"True"},{"type":"Ready","status":"True"}]})),
    );
    assert!(
        one != other && one.difference(&other).is_none(),
        "conditions are known by their types, not by their places"
    );
    assert_eq!(
        StatusText::default().difference(&StatusText::of(&PodStatus::default())),
        None,
        "nothing, and nothing said"
    );
    let all = StatusText::default().difference(&one).expect("all of it");
    assert_eq!(all["conditions"], json!([{"type":"Ready","status":"True"}]), "of what is the kubelet's to say");
}

#[test]
fn only_what_changed_is_sent() {
    let map = |v: Value| v.as_object().cloned().expect("object");
    let a = map(
        json!({"phase":"Pending","conditions":[{"type":"example.com/gate","status":"True"},{"type":"Ready","status":"False"}]}),
    );
    assert_eq!(difference(&a, &a), None);
    let bound = map(json!({"conditions":[{"type":"PodScheduled","status":"True"}]}));
    assert_eq!(difference(&bound, &map(json!({"conditions":[]}))), None, "the scheduler's condition stays");
    let c = map(json!({"conditions":[{"type":"Ready","status":"False","reason":"X"}]}));
    let healed = difference(&c, &map(json!({"conditions":[{"type":"Ready","status":"True"}]}))).expect("changed");
    assert_eq!(json!(healed), json!({"conditions":[{"type":"Ready","status":"True","reason":null}]}));
    let b = map(json!({"phase":"Running","conditions":[{"type":"Ready","status":"True"}],"podIP":"1"}));
    let d = difference(&a, &b).expect("changed");
    assert_eq!(json!(d), json!({"phase":"Running","podIP":"1","conditions":[{"type":"Ready","status":"True"}]}));
    assert_eq!(json!(difference(&b, &a).expect("changed"))["podIP"], Value::Null);
    // Resources are merged by name, so removed ones must be named.
    let less = map(json!({"resources":{"requests":{"cpu":"1"}},"allocatedResources":{"cpu":"1"}}));
    let more = map(
        json!({"resources":{"requests":{"cpu":"2"},"limits":{"cpu":"2"}},"allocatedResources":{"cpu":"1","memory":"1"}}),
    );
    let d = difference(&more, &less).expect("changed");
    assert_eq!(
        json!(d),
        json!({"resources":{"requests":{"cpu":"1"},"limits":null},"allocatedResources":{"memory":null}})
    );
    // A condition of the kubelet that no longer exists is deleted; another component's condition stays.
    let before =
        map(json!({"conditions":[{"type":"PodResizePending","status":"True"},{"type":"x/y","status":"True"}]}));
    let d = difference(&before, &map(json!({"conditions":[]}))).expect("changed");
    assert_eq!(json!(d), json!({"conditions":[{"$patch":"delete","type":"PodResizePending"}]}));
}

#[test]
fn addresses_of_a_node_that_moved_are_replaced() {
    let at = |ip: &str| json!({"hostIP": ip, "hostIPs": [{"ip": ip}]}).as_object().cloned().expect("an object");
    let patch = difference(&at("192.0.2.1"), &at("192.0.2.2")).expect("a change");
    assert_eq!(patch.get("hostIPs"), Some(&json!([{"$patch": "replace"}, {"ip": "192.0.2.2"}])));
    assert_eq!(difference(&at("192.0.2.1"), &at("192.0.2.1")), None);
}
