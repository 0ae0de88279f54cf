//! Requests that must be rejected, for every verb, with their exact answers: code, reason, causes and message. The rows
//! of `bad_requests.jsonl` are upstream's answers.
use anyhow::{Context as _, ensure};
use kelson_blackbox::{Needs::Api, Outcome, Raw, Subject, Test, eventually};
use serde_json::{Value, json};
use std::time::Duration;

const ROWS: &str = include_str!("bad_requests.jsonl");
const NAMESPACE: &str = "bad-requests";
/// The custom resource definition for some of the requests.
const DEFINITION: &str = "ws.e.com";
/// The maximum number of differing rows to print.
const SHOWN_MAX: usize = 20;

pub fn tests() -> Vec<Test> {
    vec![Test { name: "bad_requests::every_verb", needs: Api, run: every_verb }]
}

fn every_verb(s: &Subject) -> Outcome {
    let raw = Raw::open(&s.kubectl)?;
    let reported = prepared(s, &raw).and_then(|()| asked(&raw));
    s.kubectl.run(&["delete", "crd", DEFINITION, "--ignore-not-found"])?;
    s.kubectl.run(&["delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false"])?;
    reported
}

/// Sends all rows, one after the other.
fn asked(raw: &Raw) -> Outcome {
    let range = raw.send("GET", "/apis/networking.k8s.io/v1/servicecidrs/kubernetes", &[], b"")?.json();
    let range = range["spec"]["cidrs"][0].as_str().context("the range of services")?.to_owned();
    let mut differs = Vec::new();
    for line in ROWS.lines() {
        let row: Value =
            serde_json::from_str(&line.replace("SERVICE_RANGE", &range)).with_context(|| line.to_owned())?;
        let got = answer(raw, &row)?;
        for field in ["code", "reason", "message", "causes"] {
            if got[field] != row[field] {
                let (had, want) = (&got[field], &row[field]);
                differs.push(format!("{} {}\n  {field} {had}\n  wanted {want}", row["request"], row["body"]));
                break;
            }
        }
    }
    let (count, rows) = (differs.len(), ROWS.lines().count());
    differs.truncate(SHOWN_MAX);
    ensure!(count == 0, "{count} of {rows} rows differ:\n{}", differs.join("\n"));
    Ok(())
}

/// Returns the subject's answer to the request of a row, in the form of a row.
fn answer(raw: &Raw, row: &Value) -> anyhow::Result<Value> {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let headers: Vec<&str> = row["headers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let (method, path) = (text(&row["request"][0]), text(&row["request"][1]));
    let answer = raw.send(&method, &path, &headers, text(&row["body"]).as_bytes())?;
    let status = answer.json();
    let mut got = json!({"code": answer.code, "reason": text(&status["reason"]), "message": text(&status["message"])});
    let causes = status["details"]["causes"].as_array().into_iter().flatten();
    let causes: Vec<Value> = causes.map(|c| json!([text(&c["reason"]), text(&c["field"])])).collect();
    if !causes.is_empty() {
        got["causes"] = causes.into();
    }
    Ok(got)
}

/// Creates the objects for the requests.
fn prepared(s: &Subject, raw: &Raw) -> Outcome {
    s.kubectl.fresh_namespace(NAMESPACE)?;
    let pod = |name: &str, node: &str| {
        let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
        if !node.is_empty() {
            spec["nodeName"] = node.into();
        }
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    };
    let map =
        |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}});
    let mut fixed = map("fixed");
    fixed["immutable"] = true.into();
    let in_namespace = [
        ("configmaps", map("have")),
        ("configmaps", fixed),
        ("pods", pod("have", "gone")),
        ("pods", pod("loose", "")),
        (
            "services",
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "have"}, "spec": {"ports": [{"port": 80}]}}),
        ),
        (
            "secrets",
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "have"}, "type": "a", "data": {}}),
        ),
    ];
    eventually("the namespace's account is there", Duration::from_secs(60), || {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        let answer = raw.json("POST", &format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts"), &account)?;
        ensure!(matches!(answer.code, 201 | 409), "{}", answer.json());
        Ok(())
    })?;
    let made = |path: &str, object: &Value| -> Outcome {
        let answer = raw.json("POST", path, object)?;
        ensure!(matches!(answer.code, 201 | 409), "{path}: {}", answer.json());
        Ok(())
    };
    for (plural, object) in &in_namespace {
        made(&format!("/api/v1/namespaces/{NAMESPACE}/{plural}"), object)?;
    }
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "have"}, "spec": {
        "replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    made(&format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments"), &deployment)?;
    made("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition())?;
    eventually("the kind is served", Duration::from_secs(60), || {
        let answer = raw.send("GET", &format!("/apis/e.com/v1/namespaces/{NAMESPACE}/ws"), &[], b"")?;
        ensure!(answer.code == 200, "{}", answer.code);
        Ok(())
    })
}

fn definition() -> Value {
    let items =
        json!({"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "string"}}});
    let spec = json!({"type": "object", "required": ["n"], "properties": {
        "n": {"type": "integer", "minimum": 1}, "s": {"type": "string", "enum": ["a", "b"]},
        "l": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": items}},
        "x-kubernetes-validations": [{"rule": "self.n < 100", "message": "too many"},
            {"rule": "self.n >= oldSelf.n", "message": "no less"}]});
    let schema = json!({"type": "object", "properties": {"spec": spec,
        "status": {"type": "object", "properties": {"n": {"type": "integer"}}}}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": DEFINITION}, "spec": {
        "group": "e.com", "scope": "Namespaced", "names": {"plural": "ws", "singular": "w", "kind": "W"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"}}}]}})
}
