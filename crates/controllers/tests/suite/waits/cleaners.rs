//! What is deleted when its time is over.
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::future::BoxFuture;
use kelson_controllers::Config;
use kelson_pki::{Key, create_request};
use kelson_simulation::Api;
use rand::Rng as _;
use serde_json::{Value, json};

use crate::history::{Cast, History, Noise, each, is_going, time};

const REQUESTS: &str = "certificates.k8s.io/v1/certificatesigningrequests";
const HOUR: Duration = Duration::from_secs(3600);
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

#[test]
fn a_bootstrap_token_goes_when_it_expires() {
    each(Cast::of(&["token-cleaner-controller"]), async |history: &mut History| {
        let lifetime = Duration::from_secs(history.rng.random_range(5..4000));
        let expires = kelson_meta::format_seconds(history.now() + lifetime);
        let text = |s: &str| STANDARD.encode(s);
        let data = json!({"token-id": text("abcdef"), "token-secret": text("0123456789abcdef"),
            "expiration": text(&expires)});
        let metadata = json!({"name": "bootstrap-token-abcdef", "namespace": "kube-system"});
        let secret = json!({"metadata": metadata, "type": "bootstrap.kubernetes.io/token", "data": data});
        history.api.create("v1/secrets", secret).await;
        let noises =
            [Noise::Touch("v1/secrets", "kube-system", "bootstrap-token-abcdef"), Noise::Restart, Noise::Fault];
        let gone = async |api: &Api| api.list("v1/secrets").await.is_empty();
        history.acts_at(time(&json!(expires)), &noises, gone, gone).await;
    });
}

#[test]
fn certificate_requests_go_by_what_became_of_them() {
    let cast = Cast::of(&["certificatesigningrequest-cleaner-controller"]);
    each(cast, async |history: &mut History| {
        let pem = create_request(&Key::generate().unwrap(), "x", &[], &[]).unwrap();
        let spec = json!({"request": STANDARD.encode(pem), "signerName": "example.com/s", "usages": ["client auth"]});
        history.api.create(REQUESTS, json!({"metadata": {"name": "r"}, "spec": spec})).await;
        let mut due = history.now() + 24 * HOUR;
        tokio::time::sleep(Duration::from_secs(history.rng.random_range(1..3000))).await;
        let (decision, kept) = [("", 24), ("Denied", 1), ("Approved", 24)][history.rng.random_range(0..3)];
        if !decision.is_empty() {
            let condition = json!({"type": decision, "status": "True", "reason": "R", "message": "m"});
            let status = json!({"conditions": [condition]});
            history.api.patch(REQUESTS, "", "r", "approval", json!({"status": status})).await;
            due = time(&json!(history.seconds())) + kept * HOUR;
        }
        let gone = async |api: &Api| api.list(REQUESTS).await.is_empty();
        let noises = [Noise::Touch(REQUESTS, "", "r"), Noise::Restart, Noise::Fault];
        // Upstream looks once an hour.
        history.acts_between(due, due + HOUR, &noises, gone, gone).await;
    });
}

#[test]
fn a_legacy_token_goes_a_period_after_it_was_marked() {
    let config = || Config { legacy_token_clean_up_period: 48 * HOUR, ..Config::default() };
    let cast = Cast { config, ..Cast::of(&["legacy-serviceaccount-token-cleaner-controller"]) };
    each(cast, async |history: &mut History| {
        let account = json!({"metadata": {"name": "robot", "namespace": "n"}, "secrets": [{"name": "auto"}]});
        history.api.create("v1/serviceaccounts", account).await;
        let metadata = json!({"name": "auto", "namespace": "n",
            "annotations": {"kubernetes.io/service-account.name": "robot"}});
        let kind = "kubernetes.io/service-account-token";
        history.api.create("v1/secrets", json!({"metadata": metadata, "type": kind, "data": {"token": "eA=="}})).await;
        let today = history.now().strftime("%Y-%m-%d").to_string();
        let tracked = json!({"metadata": {"name": "kube-apiserver-legacy-service-account-token-tracking",
            "namespace": "kube-system"}, "data": {"since": today}});
        history.api.create("v1/configmaps", tracked).await;
        let marked = async |api: &Api| {
            let secret = api.get("v1/secrets", "n", "auto").await;
            secret.is_none_or(|s| !s["metadata"]["labels"][INVALID_SINCE].is_null())
        };
        // Uses are known of from the first whole day on, dates are whole days, and tokens are looked at once a day.
        let noises = [Noise::Touch("v1/secrets", "n", "auto"), Noise::Restart];
        let due = time(&json!("2026-01-04T00:00:00Z"));
        history.acts_between(due, due + 24 * HOUR, &noises, marked, marked).await;
        if let Some(secret) = history.api.get("v1/secrets", "n", "auto").await {
            let since = secret["metadata"]["labels"][INVALID_SINCE].as_str().unwrap().to_owned();
            let due = time(&json!(format!("{since}T00:00:00Z"))) + 72 * HOUR;
            let gone = async |api: &Api| api.get("v1/secrets", "n", "auto").await.is_none();
            history.acts_between(due, due + 24 * HOUR, &noises, gone, gone).await;
        }
    });
}

/// Content of the namespace that goes, and the namespace, change.
fn touch_content(api: Api, number: u64) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let patch = json!({"metadata": {"annotations": {"example.com/touched": number.to_string()}}});
        for (resource, namespace, name) in
            [("v1/namespaces", "", "going"), ("v1/pods", "going", "p"), ("v1/configmaps", "going", "held")]
        {
            if api.get(resource, namespace, name).await.is_some() {
                api.patch(resource, namespace, name, "", patch.clone()).await;
            }
        }
    })
}

#[test]
fn a_namespace_goes_when_its_content_has_and_pods_have_their_grace_once() {
    each(Cast::of(&["namespace-controller"]), async |history: &mut History| {
        let api = history.api.clone();
        api.namespace("going").await;
        let held = json!({"name": "held", "namespace": "going", "finalizers": ["example.com/hold"]});
        api.create("v1/configmaps", json!({"metadata": held})).await;
        let grace = history.rng.random_range(1..100);
        let spec = json!({"nodeName": "n1", "terminationGracePeriodSeconds": grace,
            "containers": [{"name": "c", "image": "c"}]});
        api.create("v1/pods", json!({"metadata": {"name": "p", "namespace": "going"}, "spec": spec})).await;
        api.delete("v1/namespaces", "", "going", json!({})).await;
        api.settle().await;
        let ends = api.get("v1/pods", "going", "p").await.unwrap()["metadata"]["deletionTimestamp"].clone();
        let noises = [Noise::Do(touch_content), Noise::Restart, Noise::Fault];
        // No kubelet says that the pod has ended: its time does not move, and nothing else is deleted.
        let over = time(&ends) + Duration::from_secs(history.rng.random_range(1..100));
        let waits = async |api: &Api| {
            let pod = api.get("v1/pods", "going", "p").await;
            let kept = !is_going(api, "v1/configmaps", "going", "held").await;
            pod.is_some_and(|p| p["metadata"]["deletionTimestamp"] == ends) && kept
        };
        history.acts_at(history.now(), &noises, waits, waits).await;
        tokio::time::sleep(Duration::try_from(over.duration_since(history.now())).unwrap_or_default()).await;
        assert!(waits(&api).await);
        api.remove("v1/pods", "going", "p").await;
        let going = async |api: &Api| is_going(api, "v1/configmaps", "going", "held").await;
        history.acts_at(history.now(), &noises, going, going).await;
        assert!(api.get("v1/namespaces", "", "going").await.is_some());
        api.patch("v1/configmaps", "going", "held", "", json!({"metadata": {"finalizers": Value::Null}})).await;
        // Finalizers are given 15 seconds, of which half is waited.
        let gone = async |api: &Api| api.get("v1/namespaces", "", "going").await.is_none();
        let now = history.now();
        history.acts_between(now, now + Duration::from_secs(8), &noises, gone, gone).await;
        assert_eq!(history.writes("PUT", "/namespaces/going/finalize"), 1);
    });
}
