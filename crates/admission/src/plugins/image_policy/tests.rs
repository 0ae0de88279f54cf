//! The plugin with a webhook server in this process.
use std::sync::atomic::{AtomicUsize, Ordering};

use kelson_doubles::webhook::{Behaviour, ReceivedRequest, TestServer};

use super::*;
use crate::testing::{Ask, dependencies, run};

/// A plugin that calls this server, with additional configuration.
fn plugin(server: &TestServer, more: Value) -> ImagePolicyWebhook {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kubeconfig");
    let ca = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, server.ca());
    let url = format!("https://127.0.0.1:{}/review", server.address.port());
    let kubeconfig = json!({"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": url, "certificate-authority-data": ca}}],
        "users": [{"name": "u", "user": {"token": "secret"}}]});
    std::fs::write(&file, kubeconfig.to_string()).unwrap();
    let mut part = json!({"kubeConfigFile": file, "retryBackoff": 1});
    for (key, value) in more.as_object().into_iter().flatten() {
        part[key] = value.clone();
    }
    ImagePolicyWebhook::new(&dependencies(&[]), &json!({"imagePolicy": part})).unwrap()
}

fn answer(status: Value) -> Behaviour {
    let review = json!({"apiVersion": "imagepolicy.k8s.io/v1alpha1", "kind": "ImageReview", "status": status});
    Behaviour::Answer(200, review.to_string().into_bytes())
}

/// Denies images with this name.
fn judge(seen: &ReceivedRequest) -> Behaviour {
    let review: Value = serde_json::from_slice(&seen.body).unwrap();
    let images = review["spec"]["containers"].as_array().unwrap();
    if images.iter().any(|i| i["image"] == "bad") {
        return answer(json!({"allowed": false, "reason": "not signed", "auditAnnotations": {"key": "a"}}));
    }
    let silent = images.iter().any(|i| i["image"] == "silent");
    answer(json!({"allowed": !silent}))
}

fn pod(image: &str) -> Value {
    json!({"metadata": {"name": "p", "annotations": {"x.image-policy.k8s.io/ticket": "1", "other": "2"}},
        "spec": {"containers": [{"name": "c", "image": image}], "initContainers": [{"name": "i", "image": "init"}],
            "ephemeralContainers": [{"name": "e", "image": "debug"}]}})
}

#[tokio::test]
async fn images_are_reviewed() {
    let server = TestServer::start(&[], judge).await;
    let ask = async |ask: Ask<'_>| run(plugin(&server, json!({})), ask).await.map_err(|s| s.message);
    ask(Ask::pod(pod("good"))).await.unwrap();
    assert_eq!(
        ask(Ask::pod(pod("bad"))).await.err().unwrap(),
        "pods \"p\" is forbidden: image policy webhook backend denied one or more images: not signed"
    );
    assert_eq!(
        ask(Ask::pod(pod("silent"))).await.err().unwrap(),
        "pods \"p\" is forbidden: one or more images rejected by webhook backend"
    );
    ask(Ask::update("/pods/ephemeralcontainers", pod("bad"), pod("bad"))).await.unwrap();
    ask(Ask::update("/pods/status", pod("bad"), pod("bad"))).await.unwrap();
    let seen: Vec<Value> = server.seen().iter().map(|s| serde_json::from_slice(&s.body).unwrap()).collect();
    assert_eq!(
        seen[0]["spec"],
        json!({"containers": [{"image": "good"}, {"image": "init"}], "namespace": "a",
            "annotations": {"x.image-policy.k8s.io/ticket": "1"}})
    );
    assert_eq!(seen[3]["spec"]["containers"], json!([{"image": "debug"}]));
    assert_eq!(server.seen()[0].headers["authorization"], "Bearer secret");
    assert_eq!(seen.len(), 4);
}

#[tokio::test]
async fn answers_are_kept_for_a_while() {
    let server = TestServer::start(&[], judge).await;
    let kept = plugin(&server, json!({"denyTTL": -1}));
    let asked = async |image: &str| {
        let spec = json!({"containers": [{"image": image}], "namespace": "n"});
        kept.answer(&spec).await.unwrap();
        server.seen().len()
    };
    assert_eq!((asked("good").await, asked("good").await), (1, 1));
    assert_eq!((asked("bad").await, asked("bad").await), (2, 3), "refusals are not kept");
}

#[tokio::test]
async fn failures_follow_the_configuration() {
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&tries);
    let server = TestServer::start(&[], move |_| match counted.fetch_add(1, Ordering::SeqCst) {
        0 | 1 => Behaviour::Break,
        2 => Behaviour::Answer(503, Vec::new()),
        3 => answer(json!({"allowed": true})),
        _ => Behaviour::Answer(404, Vec::new()),
    })
    .await;
    let ask = async |more: Value| run(plugin(&server, more), Ask::pod(pod("x"))).await;
    ask(json!({})).await.unwrap();
    assert_eq!(tries.load(Ordering::SeqCst), 4, "passing failures are tried again");
    assert!(ask(json!({})).await.err().unwrap().message.starts_with("pods \"p\" is forbidden: "));
    assert_eq!(tries.load(Ordering::SeqCst), 5, "others are not");
    let notes = ask(json!({"defaultAllow": true})).await.unwrap().notes;
    assert_eq!(notes.audit_annotations, [(format!("{PREFIX}failed-open"), "true".to_owned())]);
}

#[test]
fn configurations() {
    let d = dependencies(&[]);
    let fails = |configuration: Value| ImagePolicyWebhook::new(&d, &configuration).err().unwrap();
    assert_eq!(fails(Value::Null), "no config specified");
    for (part, want) in [
        (json!({}), "imagePolicy.kubeConfigFile: Required value"),
        (json!({"kubeConfigFile": "/nowhere/x"}), "/nowhere/x"),
        (json!({"allowTTL": 3600}), "imagePolicy.allowTTL: valid value is between 1s and 30m0s, got 1h0m0s"),
        (json!({"denyTTL": -5}), "got -5s"),
        (json!({"retryBackoff": 301_000}), "valid value is between 1ns and 5m0s, got 5m1s"),
        (json!({"allowTTL": "5m"}), "imagePolicy.allowTTL: Invalid value: \"5m\""),
        (json!({"ttl": 1}), "unknown field \"imagePolicy.ttl\""),
    ] {
        let why = fails(json!({"imagePolicy": part}));
        assert!(why.contains(want), "{why}");
    }
    let settings = Settings::read(&json!({"allowTTL": 60, "denyTTL": -1})).unwrap();
    assert_eq!(
        (settings.allowed_for, settings.denied_for, settings.pause),
        (Duration::from_secs(60), Duration::ZERO, Duration::from_millis(500))
    );
}
