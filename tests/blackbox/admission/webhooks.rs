//! Webhooks by URL: a real server next to the test, whose answers and failures reach the user as they should.
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::ensure;
use kelson_blackbox::registry::base64;
use kelson_blackbox::webhook::{Answer, WebhookRequest, WebhookServer};
use kelson_blackbox::{Kubectl, Outcome, Process, Subject, eventually, issuer};
use serde_json::{Value, json};

use super::{creating, said};

/// The maximum time of a request, whatever its webhook does: the webhooks have a second, the machine is slow.
const BOUND: Duration = Duration::from_secs(30);

/// Webhook configurations of one test; removed when dropped.
struct Hooks {
    kubectl: Kubectl,
    of: &'static str,
    server: WebhookServer,
    bundle: String,
}

impl Hooks {
    fn new(
        s: &Subject,
        of: &'static str,
        decide: impl Fn(&WebhookRequest) -> Answer + Send + Sync + 'static,
    ) -> anyhow::Result<(Self, Kubectl)> {
        let k = s.kubectl.fresh_namespace(of)?;
        k.ok(&["label", "namespace", of, &format!("hooks={of}")])?;
        let issued = issuer::issue(&["localhost"])?;
        let server = WebhookServer::start("127.0.0.1:0", &issued, decide)?;
        Ok((Self { kubectl: s.kubectl.clone(), of, server, bundle: base64(issued.authority.as_bytes()) }, k))
    }

    fn hook(&self, name: &str, more: Value) -> Value {
        let mut hook = json!({"name": format!("{name}.example.com"), "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 1, "clientConfig": {"caBundle": self.bundle,
                "url": format!("https://127.0.0.1:{}/{name}", self.server.port)},
            "namespaceSelector": {"matchLabels": {"hooks": self.of}}, "rules": [{"operations": ["CREATE", "UPDATE"],
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]});
        if let (Some(hook), Value::Object(more)) = (hook.as_object_mut(), more) {
            hook.extend(more);
        }
        hook
    }

    fn configure(&self, kind: &str, webhooks: Vec<Value>) -> Outcome {
        let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": {"name": self.of}, "webhooks": webhooks});
        self.kubectl.apply(&configuration.to_string()).map(drop)
    }
}

impl Drop for Hooks {
    fn drop(&mut self) {
        let kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations";
        // Leftovers of a failed test only apply to its own namespace.
        let _ = self.kubectl.run(&["delete", kinds, self.of, "--ignore-not-found"]);
    }
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}})
}

/// Rejections, warnings and patches; connections are reused.
pub fn heard(s: &Subject) -> Outcome {
    let (hooks, k) = Hooks::new(s, "adm-heard", |asked| {
        let name = asked.object()["metadata"]["name"].as_str().unwrap_or_default();
        let answer = match (asked.path.as_str(), name) {
            ("/judge", "bare") => asked.deny(json!({})),
            ("/judge", "reasoned") => asked.deny(json!({"code": 409, "reason": "Conflict", "message": "there is one"})),
            ("/judge", "worded") => asked.deny(json!({"message": "not this one"})),
            ("/judge", "warned") => asked.allow(json!({"warnings": ["this is old", "and \"quoted\", too"]})),
            ("/change", _) => asked.patch(&json!([{"op": "add", "path": "/data/changed", "value": "yes"}])),
            _ => asked.allow(json!({})),
        };
        Answer::Json(200, answer)
    })?;
    hooks.configure("ValidatingWebhookConfiguration", vec![hooks.hook("judge", json!({}))])?;
    hooks.configure("MutatingWebhookConfiguration", vec![hooks.hook("change", json!({"failurePolicy": "Ignore"}))])?;
    eventually("the webhooks are asked", Duration::from_secs(60), || {
        let out = k.with_input(
            &["create", "--dry-run=server", "-o", "json", "-f", "-"],
            map("probe").to_string().as_bytes(),
        )?;
        let made: Value = serde_json::from_str(&out.stdout)?;
        ensure!(made["data"]["changed"] == "yes", "{}", out.stdout);
        let asked = hooks.server.asked();
        ensure!(asked.iter().any(|a| a.path == "/judge" && a.object()["data"]["changed"] == "yes"), "{asked:?}");
        Ok(())
    })?;
    let refused = |reason: &str, why: &str| {
        format!(
            "Error from server{reason}: error when creating \"STDIN\": admission webhook \"judge.example.com\" denied the request{why}"
        )
    };
    creating(&k, &map("bare"), &refused("", " without explanation"))?;
    creating(&k, &map("worded"), &refused("", ": not this one"))?;
    creating(&k, &map("reasoned"), &refused(" (Conflict)", ": there is one"))?;
    creating(&k, &map("warned"), "Warning: this is old\nWarning: and \"quoted\", too\nconfigmap/warned created")?;
    let seen = hooks.server.asked();
    let request =
        seen.iter().rev().find(|a| a.path == "/judge").map(|a| a.review["request"].clone()).unwrap_or_default();
    ensure!(request["kind"] == json!({"group": "", "version": "v1", "kind": "ConfigMap"}), "{request}");
    ensure!(
        request["operation"] == "CREATE" && request["namespace"] == "adm-heard" && request["dryRun"] == false,
        "{request}"
    );
    ensure!(request["options"]["kind"] == "CreateOptions" && request["oldObject"].is_null(), "{request}");
    let before = hooks.server.connections();
    for i in 0..10 {
        creating(&k, &map(&format!("m{i}")), &format!("configmap/m{i} created"))?;
    }
    let more = hooks.server.connections() - before;
    ensure!(more <= 2, "connections are used again, but {more} were made for 20 calls");
    Ok(())
}

fn bomb() -> Value {
    let mut operations = vec![json!({"op": "add", "path": "/data/x", "value": "0123456789"})];
    operations.extend((0..10_000).map(|_| json!({"op": "copy", "from": "/data", "path": "/data/x"})));
    Value::Array(operations)
}

/// Each failure, with both failure policies: upstream's message, in bounded time, and the server continues.
pub fn faults(s: &Subject) -> Outcome {
    let (hooks, k) = Hooks::new(s, "adm-faults", |asked| match asked.path.as_str() {
        "/slow" => Answer::Slow(Duration::from_secs(20), asked.allow(json!({}))),
        "/hang" => Answer::Hang,
        "/stall" => Answer::Stall,
        "/break" => Answer::Break,
        "/error" => Answer::Bytes(500, b"oops".to_vec()),
        "/garbage" => Answer::Bytes(200, b"<html>".to_vec()),
        "/large" => Answer::Bytes(200, vec![b' '; 9 << 20]),
        "/redirect" => Answer::Redirect("https://127.0.0.1:1/".to_owned()),
        "/foreign" => Answer::Json(
            200,
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {"uid": "x", "allowed": true}}),
        ),
        "/undecodable" => {
            Answer::Json(200, asked.allow(json!({"patchType": "JSONPatch", "patch": base64(b"nothing")})))
        }
        "/bomb" => Answer::Json(200, asked.patch(&bomb())),
        "/inapplicable" => Answer::Json(200, asked.patch(&json!([{"op": "remove", "path": "/data/none"}]))),
        _ => Answer::Json(200, asked.allow(json!({}))),
    })?;
    let calling = |fault: &str| {
        format!(
            "Error from server (InternalError): error when creating \"STDIN\": Internal error occurred: failed calling webhook \"{fault}.example.com\": "
        )
    };
    let cases = [
        ("slow", "context deadline exceeded"),
        ("hang", "context deadline exceeded"),
        ("stall", "context deadline exceeded"),
        ("break", "failed to call webhook: Post \"https://127.0.0.1:"),
        (
            "error",
            "failed to call webhook: an error on the server (\"unknown\") has prevented the request from succeeding",
        ),
        ("garbage", "couldn't get version/kind; json parse error: "),
        ("redirect", "failed to call webhook: "),
        ("foreign", "received invalid webhook response: expected response.uid=\""),
        ("undecodable", "received undecodable patch in webhook response: "),
    ];
    for (fault, want) in cases {
        let begun = Instant::now();
        hooks.configure("MutatingWebhookConfiguration", vec![hooks.hook(fault, json!({"failurePolicy": "Fail"}))])?;
        eventually("the fault is told", BOUND, || {
            let reported = said(&k, &["create", "--dry-run=server", "-f", "-"], &map("m"))?;
            ensure!(reported.starts_with(&calling(fault)) && reported.contains(want), "{fault}: {reported}");
            Ok(())
        })?;
        hooks.configure("MutatingWebhookConfiguration", vec![hooks.hook(fault, json!({"failurePolicy": "Ignore"}))])?;
        eventually("the fault is passed over", BOUND, || {
            creating(&k, &map("m"), "configmap/m created")?;
            k.ok(&["delete", "configmap", "m"])
        })?;
        ensure!(begun.elapsed() < 2 * BOUND, "{fault} took {:?}", begun.elapsed());
    }
    // An answer that cannot be applied is not a failed call: no failure policy ignores it. Answers that are too large
    // are truncated, with a message of each server's own.
    for (fault, policy) in [("large", "Fail"), ("bomb", "Ignore"), ("inapplicable", "Ignore")] {
        hooks.configure("MutatingWebhookConfiguration", vec![hooks.hook(fault, json!({"failurePolicy": policy}))])?;
        eventually("the answer is refused", BOUND, || {
            let reported = said(&k, &["create", "--dry-run=server", "-f", "-"], &map("m"))?;
            ensure!(reported.starts_with("Error from server (InternalError): "), "{fault}: {reported}");
            Ok(())
        })?;
    }
    // Many slow calls do not delay requests that they do not apply to.
    hooks.configure("MutatingWebhookConfiguration", vec![hooks.hook("hang", json!({"timeoutSeconds": 30}))])?;
    let waiting = (0..8).map(|i| k.spawn(&["create", "configmap", &format!("w{i}")]));
    let waiting: Vec<_> = waiting.collect::<Result<_, _>>()?;
    let begun = Instant::now();
    let elsewhere = s.kubectl.namespaced("default");
    let made = said(&elsewhere, &["create", "--dry-run=server", "-f", "-"], &map("free"))?;
    ensure!(
        made == "configmap/free created (server dry run)" && begun.elapsed() < BOUND,
        "{made} after {:?}",
        begun.elapsed()
    );
    for mut child in waiting {
        child.kill()?;
        child.wait()?;
    }
    ensure!(s.kubectl.ok(&["get", "--raw", "/readyz"])? == "ok", "the server is healthy");
    hooks.configure("MutatingWebhookConfiguration", vec![hooks.hook("fine", json!({}))])?;
    eventually("all is well again", BOUND, || creating(&k, &map("afterwards"), "configmap/afterwards created"))
}

/// A server that requires credentials: those that the admission configuration names for it are sent to it by the right
/// plugin, and to no other server.
pub fn that_asks_who_calls(_: &Subject) -> Outcome {
    let (issued, client) = (issuer::issue(&["localhost"])?, issuer::issue(&["caller"])?);
    let allow = |asked: &WebhookRequest| Answer::Json(200, asked.allow(json!({})));
    let server = WebhookServer::start_for(&client, &issued, allow)?;
    let dir = tempfile::tempdir()?;
    let (kubeconfig, config) = (dir.path().join("webhooks"), dir.path().join("admission.yaml"));
    let user = json!({"client-certificate-data": base64(client.certificate.as_bytes()),
        "client-key-data": base64(client.key.as_bytes())});
    let named = json!({"apiVersion": "v1", "kind": "Config", "users": [
        {"name": format!("127.0.0.1:{}", server.port), "user": user}]});
    fs::write(&kubeconfig, named.to_string())?;
    let part = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "WebhookAdmissionConfiguration",
        "kubeConfigFile": kubeconfig});
    let all = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration",
        "plugins": [{"name": "ValidatingAdmissionWebhook", "configuration": part}]});
    fs::write(&config, all.to_string())?;
    let flag = format!("--admission-control-config-file={}", config.display());
    let process = Process::start(&["--disable-agent", &flag], Path::new(""))?;
    let k = process.kubectl();
    let hook = |port: u16| {
        json!({"name": "who.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
            "clientConfig": {"caBundle": base64(issued.authority.as_bytes()), "url": format!("https://127.0.0.1:{port}/")},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]})
    };
    let configure = |kind: &str, port: u16| {
        let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "who"},
            "webhooks": [hook(port)]});
        k.apply(&configuration.to_string())
    };
    configure("ValidatingWebhookConfiguration", server.port)?;
    creating(&k, &map("known"), "configmap/known created")?;
    // The server makes config maps itself, such as those with the CA of each namespace.
    let asked_about = |name: &str| server.asked().iter().filter(|a| a.object()["metadata"]["name"] == name).count();
    ensure!(asked_about("known") == 1, "the server was asked");
    let stranger = WebhookServer::start_for(&client, &issued, allow)?;
    configure("ValidatingWebhookConfiguration", stranger.port)?;
    let refused = said(&k, &["create", "-f", "-"], &map("unknown"))?;
    ensure!(refused.contains("failed calling webhook \"who.example.com\"") && stranger.asked().is_empty(), "{refused}");
    k.ok(&["delete", "validatingwebhookconfiguration", "who"])?;
    configure("MutatingWebhookConfiguration", server.port)?;
    let refused = said(&k, &["create", "-f", "-"], &map("other"))?;
    ensure!(
        refused.contains("failed calling webhook") && asked_about("other") == 0,
        "another plugin has none: {refused}"
    );
    process.finish(false)
}
