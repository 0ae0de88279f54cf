//! The cost of admission compared to its targets (a part of `make bench`).
//!
//! Times are medians of many passes over a request (mutating and validating) through the chain of a server in memory;
//! for webhooks, the time of a request beyond the webhook's own round trip. Rates are of whole requests to a server in
//! memory, without TLS and without a disk, where admission's share is the largest.
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use kelson_admission::{AdmissionOptions, Attributes, Chain, Notes, Operation};
use kelson_apiserver::{ApiServer, Config, Running};
use kelson_auth::{UserInfo, user};
use kelson_doubles::webhook::{Behaviour, ReceivedRequest, TestServer};
use kelson_meta::{Gvk, Gvr};
use kelson_store::{Store, StoreOptions};
use kelson_transport::Request;
use kelson_webhook::{Backend, Call, Credentials, Location, ServiceResolver, Target, WebhookClient};
use serde_json::{Value, json};

use crate::block_on;

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const PASSES: usize = 2000;

/// Resolves no service.
struct Nowhere;
impl ServiceResolver for Nowhere {
    fn resolve(&self, _: &str, _: &str, _: u16) -> Result<Backend, String> {
        Err("no services".to_owned())
    }
}

async fn start() -> anyhow::Result<Running> {
    started(AdmissionOptions { usual: vec!["NodeRestriction"], ..AdmissionOptions::default() }).await
}

async fn started(admission: AdmissionOptions) -> anyhow::Result<Running> {
    let mut config = Config::new(Store::in_memory(StoreOptions::default()));
    config.admission = admission;
    let api = ApiServer::start(config).await?;
    let account = json!({"metadata": {"name": "default"}});
    create(&api, "/api/v1/namespaces/default/serviceaccounts", account).await?;
    Ok(api)
}

async fn create(api: &Running, path: &str, object: Value) -> anyhow::Result<()> {
    let request: Request = http::Request::builder()
        .method("POST")
        .uri(path)
        .header("content-type", "application/json")
        .body(Bytes::from(object.to_string()))?;
    let answer = api.in_process(UserInfo::new("admin", [user::MASTERS])).send(request).await?;
    anyhow::ensure!(answer.status().is_success(), "{path}: {}", answer.status());
    Ok(())
}

/// Returns the median time of a request's two passes.
async fn passes(chain: &Chain, kind: &str, resource: &str, object: &Value) -> anyhow::Result<Duration> {
    times(chain, kind, resource, object, PASSES).await
}

async fn times(chain: &Chain, kind: &str, resource: &str, object: &Value, count: usize) -> anyhow::Result<Duration> {
    let (kind, resource) = (Gvk::new("", "v1", kind), Gvr::new("", "v1", resource));
    let user = UserInfo::new("jane", ["dev", user::AUTHENTICATED]);
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let mut a = Attributes {
            operation: Operation::Create,
            kind: &kind,
            resource: &resource,
            subresource: "",
            namespace: "default",
            name: "x",
            object: Some(object.clone()),
            managed_fields: None,
            old_object: None,
            user: &user,
            dry_run: false,
            explained: false,
            options: Default::default(),
            rounds: Default::default(),
            deadline: None,
        };
        let mut notes = Notes::default();
        let begun = Instant::now();
        chain.admit(&mut a, &mut notes).await?;
        chain.validate(&a, &mut notes).await?;
        times.push(begun.elapsed());
    }
    Ok(median(times))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn row(what: &str, took: Duration, target: Duration) {
    let verdict = if took <= target { "" } else { "  OVER" };
    println!("{what:<44} {:>10.1} µs   target {:>6.0} µs{verdict}", micros(took), micros(target));
}

/// Prints a row for a value that is not a time.
fn reported(what: &str, value: f64, unit: &str, target: &str, kept: bool) {
    println!("{what:<44} {value:>10.1} {unit:<2}   target {target}{}", if kept { "" } else { "  OVER" });
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn pod() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "namespace": "default", "labels": {"app": "x"}},
        "spec": {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler",
            "securityContext": {}, "terminationGracePeriodSeconds": 30, "enableServiceLinks": true,
            "containers": [
                {"name": "a", "image": "registry.example.com/a:1", "imagePullPolicy": "IfNotPresent", "ports": [{"containerPort": 80,
                    "protocol": "TCP"}], "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                    "env": [{"name": "A", "value": "b"}, {"name": "C", "value": "d"}]},
                {"name": "b", "image": "registry.example.com/b:1", "imagePullPolicy": "IfNotPresent",
                    "resources": {"limits": {"memory": "128Mi"}, "requests": {"memory": "128Mi"}},
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}]}})
}

fn map() -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "default"},
        "data": {"a": "b", "c": "d"}})
}

async fn policies(api: &Running) -> anyhow::Result<()> {
    for i in 0..100 {
        let rules = json!({"resourceRules": [{"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"],
            "resources": ["configmaps"]}]});
        let policy = json!({"metadata": {"name": format!("p{i}")}, "spec": {"matchConstraints": rules,
            "validations": [{"expression": format!("!has(object.data) || object.data.size() < {}", 100 + i)},
                {"expression": "!('forbidden' in object.metadata.?labels.orValue({}))", "message": "not that"}]}});
        create(api, &format!("{GROUP}/validatingadmissionpolicies"), policy).await?;
        let binding = json!({"metadata": {"name": format!("p{i}")}, "spec": {"policyName": format!("p{i}"),
            "validationActions": ["Deny"]}});
        create(api, &format!("{GROUP}/validatingadmissionpolicybindings"), binding).await?;
    }
    Ok(())
}

fn allow(seen: &ReceivedRequest) -> Behaviour {
    let review: Value = serde_json::from_slice(&seen.body).unwrap_or_default();
    let response = json!({"uid": review["request"]["uid"], "allowed": true});
    let answer = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response});
    Behaviour::Answer(200, answer.to_string().into_bytes())
}

/// Returns the round trip time of a call alone, with a body as large as a review.
async fn round_trip(server: &TestServer, url: &str) -> anyhow::Result<Duration> {
    let client = WebhookClient::new(std::sync::Arc::new(Nowhere), Credentials::default());
    let target = Target { location: Location::Url(url.to_owned()), ca_bundle: server.ca().as_bytes().to_vec() };
    let body = Bytes::from(json!({"request": {"uid": "u", "object": map()}, "padding": "x".repeat(900)}).to_string());
    let mut times = Vec::with_capacity(PASSES);
    for _ in 0..PASSES {
        let call = Call { body: body.clone(), timeout: Duration::from_secs(10), answer_bytes_max: 1 << 20 };
        let begun = Instant::now();
        client.call(&target, call).await.map_err(|e| anyhow::anyhow!("{e}"))?;
        times.push(begun.elapsed());
    }
    Ok(median(times))
}

/// Measures ten slow validating webhooks, which together take as long as one.
async fn side_by_side() -> anyhow::Result<()> {
    const EACH: Duration = Duration::from_millis(20);
    let slow = |seen: &ReceivedRequest| match allow(seen) {
        Behaviour::Answer(_, body) => Behaviour::Slow(EACH, body),
        other => other,
    };
    let (api, server) = (start().await?, TestServer::start(&["localhost"], slow).await);
    let webhooks: Vec<Value> = (0..10)
        .map(|i| {
            let url = format!("https://127.0.0.1:{}/{i}", server.address.port());
            let rule =
                json!({"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]});
            json!({"name": format!("h{i}.example.com"), "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "clientConfig": {"url": url, "caBundle": STANDARD.encode(server.ca())}, "rules": [rule]})
        })
        .collect();
    let configuration = json!({"metadata": {"name": "h"}, "webhooks": webhooks});
    create(&api, &format!("{GROUP}/validatingwebhookconfigurations"), configuration).await?;
    let took = times(&api.server().admission, "ConfigMap", "configmaps", &map(), 50).await?;
    row("ten webhooks of 20 ms, beyond one of them", took.saturating_sub(EACH), EACH);
    Ok(())
}

/// Creates `count` pods with different names, and returns the rate per second.
async fn rate(api: &Running, pod: &Value, turn: usize, count: usize) -> anyhow::Result<f64> {
    let begun = Instant::now();
    for i in 0..count {
        let mut pod = pod.clone();
        pod["metadata"]["name"] = format!("p{turn}-{i}").into();
        create(api, "/api/v1/namespaces/default/pods", pod).await?;
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

/// Returns the cost of the default plugins when creating these pods, compared to none: the share in percent, and both
/// rates; the median of alternating rounds.
async fn share(pod: &Value) -> anyhow::Result<(f64, f64, f64)> {
    const PODS: usize = 2000;
    const TURNS: usize = 8;
    let none = AdmissionOptions { exactly: Some(Vec::new()), ..AdmissionOptions::default() };
    let (usual, none) = (start().await?, started(none).await?);
    let mut lost = Vec::new();
    for turn in 0..TURNS {
        let (with, without) = if turn % 2 == 0 {
            let with = rate(&usual, pod, turn, PODS).await?;
            (with, rate(&none, pod, turn, PODS).await?)
        } else {
            let without = rate(&none, pod, turn, PODS).await?;
            (rate(&usual, pod, turn, PODS).await?, without)
        };
        lost.push((100.0 * (1.0 - with / without), with, without));
    }
    lost.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(lost[TURNS / 2])
}

/// Returns a pod with everything that the default plugins add, so that only their own work differs: additions make
/// other pods larger, and every step after admission costs by size.
async fn whole_pod() -> anyhow::Result<Value> {
    let api = start().await?;
    create(&api, "/api/v1/namespaces/default/pods", pod()).await?;
    let user = UserInfo::new("admin", [user::MASTERS]);
    let request: Request = http::Request::builder().uri("/api/v1/namespaces/default/pods/x").body(Bytes::new())?;
    let answer = api.in_process(user).send(request).await?.into_body().collect().await?.to_bytes();
    let stored: Value = serde_json::from_slice(&answer)?;
    let mut whole = pod();
    whole["spec"] = stored["spec"].clone();
    Ok(whole)
}

async fn shares() -> anyhow::Result<()> {
    for (what, pod, is_whole) in [("pods", pod(), false), ("whole pods", whole_pod().await?, true)] {
        let (lost, with, without) = share(&pod).await?;
        let target = if is_whole { "10 %" } else { "none: the pods are larger with them" };
        reported(
            &format!("creating {what}, lost to the default plugins"),
            lost,
            "%",
            target,
            !is_whole || lost <= 10.0,
        );
        println!("{:<44} {with:>10.0} and {without:.0} a second", "  with them and without");
    }
    Ok(())
}

/// Prints each cost with its target.
pub fn run(_: &[String]) -> anyhow::Result<()> {
    block_on(2, measure())
}

async fn measure() -> anyhow::Result<()> {
    let api = start().await?;
    let chain = api.server().admission.clone();
    row("default chain, a pod", passes(&chain, "Pod", "pods", &pod()).await?, Duration::from_micros(30));
    let bare = passes(&chain, "ConfigMap", "configmaps", &map()).await?;
    row("default chain, a config map", bare, Duration::from_micros(5));
    let hooked = start().await?;
    policies(&api).await?;
    let with = passes(&chain, "ConfigMap", "configmaps", &map()).await?;
    row("100 validating policies, a config map", with.saturating_sub(bare), Duration::from_micros(300));
    let server = TestServer::start(&["localhost"], allow).await;
    let url = format!("https://127.0.0.1:{}/validate", server.address.port());
    let alone = round_trip(&server, &url).await?;
    let hook = json!({"name": "h.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": url, "caBundle": STANDARD.encode(server.ca())},
        "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]});
    let configuration = json!({"metadata": {"name": "h"}, "webhooks": [hook]});
    create(&hooked, &format!("{GROUP}/validatingwebhookconfigurations"), configuration).await?;
    let chain = hooked.server().admission.clone();
    let before = server.connections();
    let with = passes(&chain, "ConfigMap", "configmaps", &map()).await?;
    row("a webhook, beyond its round trip", with.saturating_sub(bare + alone), Duration::from_micros(300));
    println!("{:<44} {:>10.1} µs", "  its round trip", micros(alone));
    let made = server.connections() - before;
    reported("  connections of its calls", made as f64, "", "at most 2", made <= 2);
    side_by_side().await?;
    shares().await
}
