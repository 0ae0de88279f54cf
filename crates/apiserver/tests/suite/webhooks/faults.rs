//! Webhook servers with all kinds of faults, configured by URL and by service: each fault is reported in upstream's words or ignored,
//! according to the failure policy, in bounded time, and the API server keeps working.
use std::time::{Duration, Instant};

use kelson_doubles::webhook::{Behaviour, ReceivedRequest};
use serde_json::{Value, json};

use super::services::{by_service, serve};
use super::{World, allow, patch};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const JSON_PATCH: &str = "application/json-patch+json";
/// A call has a timeout of one second; a fault must be handled in this time on the slowest machine.
const BOUND: Duration = Duration::from_secs(30);

/// Faults of the call, and their message after `failed calling webhook "x": `.
const OF_CALLS: [(&str, &str); 10] = [
    ("slow", "context deadline exceeded"),
    ("hang", "context deadline exceeded"),
    ("stall", "context deadline exceeded"),
    ("break", "failed to call webhook: Post"),
    ("error", "an error on the server"),
    ("garbage", "couldn't get version/kind; json parse error"),
    ("large", "response body is larger than"),
    ("redirect", "status code 302"),
    ("foreign", "received invalid webhook response: expected response.uid="),
    ("undecodable", "received undecodable patch in webhook response"),
];
/// Answers that the server cannot use.
const OF_ANSWERS: [&str; 2] = ["bomb", "inapplicable"];

fn bomb() -> Value {
    let mut operations = vec![json!({"op": "add", "path": "/data/x", "value": "0123456789"})];
    operations.extend((0..10_000).map(|_| json!({"op": "copy", "from": "/data", "path": "/data/x"})));
    Value::Array(operations)
}

fn fault(seen: &ReceivedRequest) -> Behaviour {
    match seen.path.split(['/', '?']).nth(1).unwrap_or_default() {
        "slow" => match allow(seen) {
            Behaviour::Answer(_, body) => Behaviour::Slow(2 * BOUND, body),
            other => other,
        },
        "hang" => Behaviour::Hang,
        "stall" => Behaviour::Stall,
        "break" => Behaviour::Break,
        "error" => Behaviour::Answer(500, b"oops".to_vec()),
        "garbage" => Behaviour::Answer(200, b"<html>".to_vec()),
        "large" => Behaviour::Answer(200, vec![b' '; 9 << 20]),
        "redirect" => Behaviour::Redirect("https://127.0.0.1:1/".into()),
        "foreign" => Behaviour::Answer(200, br#"{"response":{"uid":"x","allowed":true}}"#.to_vec()),
        "undecodable" => patch(seen, json!("nothing")),
        "bomb" => patch(seen, bomb()),
        "inapplicable" => patch(seen, json!([{"op": "remove", "path": "/data/none"}])),
        _ => allow(seen),
    }
}

/// Tests all faults of a server; `name` sets its address in a webhook.
async fn all(world: &World, kind: &str, name: impl Fn(&mut Value, &str)) {
    let path = format!("{GROUP}/{}s", kind.to_lowercase());
    let configure = async |fault: &str, policy: &str| {
        let hook = world.hook(fault, |h| {
            h["timeoutSeconds"] = json!(1);
            h["failurePolicy"] = json!(policy);
            name(h, fault);
        });
        world.configure(kind, fault, vec![hook]).await;
        format!("{path}/{fault}")
    };
    for (fault, want) in OF_CALLS.into_iter().filter(|(fault, _)| kind.starts_with('M') || *fault != "undecodable") {
        let begun = Instant::now();
        let path = configure(fault, "Fail").await;
        let (code, failed) = world.post(fault).await;
        let message = failed["message"].as_str().unwrap_or_default();
        assert_eq!(code, 500, "{fault}: {failed}");
        let calling = format!("Internal error occurred: failed calling webhook \"{fault}.example.com\": ");
        assert!(message.starts_with(&calling) && message.contains(want), "{fault}: {message}");
        let ignore = json!([{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}]);
        world.api.typed("PATCH", &path, JSON_PATCH, ignore).await;
        assert_eq!(world.post(fault).await.0, 201, "{fault} is passed over from the next request on");
        world.api.call("DELETE", &path, Value::Null).await;
        assert!(begun.elapsed() < BOUND, "{fault} took {:?}", begun.elapsed());
    }
    // An unusable answer is not a failure of the call, so that no failure policy ignores it. A validating webhook sends no patch.
    for fault in OF_ANSWERS {
        let path = configure(fault, "Ignore").await;
        let (code, reply) = world.post(fault).await;
        let want = if kind.starts_with('M') { 500 } else { 201 };
        assert_eq!(code, want, "{fault}: {reply}");
        world.api.call("DELETE", &path, Value::Null).await;
    }
    assert_eq!(world.post("afterwards").await.0, 201);
}

#[tokio::test]
async fn faults_of_a_webhook_are_bounded_and_follow_its_policy() {
    all(&World::new(fault).await, "MutatingWebhookConfiguration", |_, _| {}).await;
}

#[tokio::test]
async fn faults_of_a_service_are_handled_the_same_way() {
    let world = World::new(fault).await;
    serve(&world).await;
    all(&world, "MutatingWebhookConfiguration", |hook, fault| by_service(hook, &format!("/{fault}"))).await;
}

#[tokio::test]
async fn faults_of_a_validating_webhook_are_handled_the_same_way() {
    all(&World::new(fault).await, "ValidatingWebhookConfiguration", |_, _| {}).await;
}
