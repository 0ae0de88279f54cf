//! Admission webhooks on a real TLS server in this process: the reviews that they get, the effect of their answers, and that their
//! faults do not break the API server.
mod faults;
mod services;

use std::sync::Arc;
use std::time::Duration;

use crate::common::Api;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt as _;
use kelson_doubles::webhook::{Behaviour, ReceivedRequest, TestServer};
use serde_json::{Value, json};

/// The answer to a review with these fields.
fn answer(seen: &ReceivedRequest, response: Value) -> Behaviour {
    let review: Value = serde_json::from_slice(&seen.body).expect("JSON");
    let mut response = response;
    response["uid"] = review["request"]["uid"].clone();
    let review = json!({"kind": "AdmissionReview", "apiVersion": review["apiVersion"], "response": response});
    Behaviour::Answer(200, review.to_string().into_bytes())
}

fn patch(seen: &ReceivedRequest, operations: Value) -> Behaviour {
    answer(seen, json!({"allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(operations.to_string())}))
}

fn allow(seen: &ReceivedRequest) -> Behaviour {
    answer(seen, json!({"allowed": true}))
}

/// The request in a review.
fn request(seen: &ReceivedRequest) -> Value {
    serde_json::from_slice::<Value>(&seen.body).expect("JSON")["request"].take()
}

struct World {
    api: Api,
    server: Arc<TestServer>,
}

impl World {
    async fn new(decide: impl Fn(&ReceivedRequest) -> Behaviour + Send + Sync + 'static) -> Self {
        let api = Api::start().await;
        let server = Arc::new(TestServer::start(&["localhost", "hook.default.svc"], decide).await);
        Self { api, server }
    }

    /// A webhook for config maps, changed by `change`.
    fn hook(&self, name: &str, change: impl FnOnce(&mut Value)) -> Value {
        let url = format!("https://127.0.0.1:{}/{name}", self.server.address.port());
        let mut hook = json!({"name": format!("{name}.example.com"), "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": url, "caBundle": STANDARD.encode(self.server.ca())},
            "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]});
        change(&mut hook);
        hook
    }

    async fn configure(&self, kind: &str, name: &str, hooks: Vec<Value>) {
        let path = format!("/apis/admissionregistration.k8s.io/v1/{}s", kind.to_lowercase());
        let object = json!({"metadata": {"name": name}, "webhooks": hooks});
        self.api.create(&path, object).await;
    }
    async fn mutating(&self, name: &str, hooks: Vec<Value>) {
        self.configure("MutatingWebhookConfiguration", name, hooks).await;
    }
    async fn validating(&self, name: &str, hooks: Vec<Value>) {
        self.configure("ValidatingWebhookConfiguration", name, hooks).await;
    }

    async fn post(&self, name: &str) -> (u16, Value) {
        self.api.call("POST", MAPS, json!({"metadata": {"name": name}, "data": {"a": "b"}})).await
    }
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn a_webhook_gets_the_remaining_time_of_the_request() {
    let world = World::new(allow).await;
    let v = world.hook("v", |h| h["timeoutSeconds"] = json!(20));
    world.validating("v", vec![v]).await;
    let sent = json!({"metadata": {"name": "m"}}).to_string();
    assert_eq!(world.api.raw("POST", &format!("{MAPS}?timeout=10s"), &[], sent).await.status(), 201);
    let path = &world.server.seen()[0].path;
    assert!(path.ends_with("/v?timeout=10s"), "{path}");
}

#[tokio::test]
async fn a_validating_webhook_sees_the_request_and_rejects_it() {
    let world = World::new(|seen| match request(seen)["operation"].as_str() {
        Some("CREATE") => answer(seen, json!({"allowed": true, "warnings": ["careful"]})),
        _ => answer(seen, json!({"allowed": false, "status": {"message": "no", "code": 403, "reason": "Forbidden"}})),
    })
    .await;
    let v = world.hook("v", |h| h["timeoutSeconds"] = json!(7));
    world.validating("v", vec![v]).await;
    let sent = json!({"metadata": {"name": "m"}, "data": {"a": "b"}}).to_string();
    let response = world.api.raw("POST", &format!("{MAPS}?fieldManager=me"), &[], sent).await;
    assert_eq!(response.status(), 201);
    assert_eq!(response.headers()["warning"], "299 - \"careful\"");
    let uri = format!("{MAPS}/m");
    let (code, refused) = world.api.call("DELETE", &uri, Value::Null).await;
    assert_eq!((code, &refused["reason"]), (403, &json!("Forbidden")));
    assert_eq!(refused["message"], "admission webhook \"v.example.com\" denied the request: no");
    let (code, _) = world.api.call("PATCH", &uri, json!({"data": {"a": "c"}})).await;
    assert_eq!(code, 403);
    assert_eq!(world.api.get(&uri).await["data"]["a"], "b");

    let seen = world.server.seen();
    assert!(seen[0].path.ends_with("/v?timeout=7s"), "{}", seen[0].path);
    let create = request(&seen[0]);
    assert_eq!(create["kind"], json!({"group": "", "version": "v1", "kind": "ConfigMap"}));
    assert_eq!(create["resource"], json!({"group": "", "version": "v1", "resource": "configmaps"}));
    assert_eq!((&create["requestKind"], &create["requestResource"]), (&create["kind"], &create["resource"]));
    assert_eq!((&create["name"], &create["namespace"]), (&json!("m"), &json!("default")));
    assert_eq!(create["userInfo"]["groups"][0], "system:masters");
    assert_eq!((&create["dryRun"], &create["oldObject"]), (&json!(false), &Value::Null));
    assert_eq!(
        create["options"],
        json!({"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "me"})
    );
    assert_eq!(create["object"]["data"], json!({"a": "b"}));
    assert!(create["object"]["metadata"]["uid"].is_string());
    assert!(create.get("subResource").is_none());
    let delete = request(&seen[1]);
    assert_eq!((&delete["operation"], &delete["object"]), (&json!("DELETE"), &Value::Null));
    assert_eq!(delete["oldObject"]["data"], json!({"a": "b"}));
    let update = request(&seen[2]);
    assert_eq!((&update["object"]["data"]["a"], &update["oldObject"]["data"]["a"]), (&json!("c"), &json!("b")));
}

/// Webhooks are written against the library that upstream uses.
#[tokio::test]
async fn a_webhook_may_replace_a_missing_member() {
    let world = World::new(|seen| match request(seen)["name"].as_str() {
        Some("lenient") => {
            let owner = json!({"owner": "hook"});
            let replace = json!({"op": "replace", "path": "/metadata/annotations", "value": owner});
            let test = json!({"op": "test", "path": "/metadata/labels", "value": null});
            patch(seen, json!([test, replace, {"op": "add", "path": "/data/empty"}]))
        }
        _ => patch(seen, json!([{"op": "replace", "path": "/metadata/annotations/owner", "value": "hook"}])),
    })
    .await;
    let m = world.hook("m", |_| {});
    world.mutating("m", vec![m]).await;
    let (code, made) = world.post("lenient").await;
    assert_eq!((code, &made["metadata"]["annotations"]), (201, &json!({"owner": "hook"})), "{made}");
    assert_eq!(made["data"], json!({"a": "b", "empty": ""}));
    let (code, reply) = world.post("strict").await;
    assert_eq!(code, 500, "the parent object is missing: {reply}");
}

#[tokio::test]
async fn webhooks_see_managed_fields_and_may_change_them() {
    let world = World::new(|seen| {
        let name = request(seen)["name"].clone();
        if !seen.path.starts_with("/m") || name == "left" {
            return allow(seen);
        }
        let operation = match name == "taken" {
            true => json!({"op": "remove", "path": "/metadata/managedFields"}),
            false => json!({"op": "replace", "path": "/metadata/managedFields/0/manager", "value": "hook"}),
        };
        patch(seen, json!([operation]))
    })
    .await;
    let names = ["left", "changed", "taken"];
    for name in names {
        world.post(name).await;
    }
    world.validating("v", vec![world.hook("v", |_| {})]).await;
    world.post("judged").await;
    let creates = |hook: &mut Value| hook["rules"][0]["operations"] = json!(["CREATE"]);
    world.mutating("m", vec![world.hook("m", creates)]).await;
    let entries = |object: &Value| object["metadata"].get("managedFields").cloned();
    let plain = entries(&world.api.get(&format!("{MAPS}/judged")).await).expect("entries");
    assert_eq!(plain[0]["fieldsV1"], json!({"f:data": {".": {}, "f:a": {}}}));
    assert_eq!(entries(&request(&world.server.seen()[0])["object"]), Some(plain.clone()));
    for name in names {
        world.api.call("DELETE", &format!("{MAPS}/{name}"), Value::Null).await;
        let (code, made) = world.post(name).await;
        assert_eq!(code, 201, "{made}");
        let managers = entries(&made).map(|entries| entries[0]["manager"].clone());
        let expected = match name {
            "left" => Some(plain[0]["manager"].clone()),
            "changed" => Some(json!("hook")),
            _ => None,
        };
        assert_eq!(managers, expected, "{name}");
        let judged = request(world.server.seen().last().expect("asked"));
        assert_eq!(entries(&judged["object"]), entries(&made), "{name}");
    }
    let (_, patched) = world.api.call("PATCH", &format!("{MAPS}/judged"), json!({"data": {"b": "c"}})).await;
    let judged = request(world.server.seen().last().expect("asked"));
    assert_eq!((entries(&judged["oldObject"]), entries(&judged["object"])), (Some(plain), entries(&patched)));
}

#[tokio::test]
async fn each_verb_sends_its_options() {
    let world = World::new(allow).await;
    world.validating("v", vec![world.hook("v", |_| {})]).await;
    let one = format!("{MAPS}/m");
    let map = |value: &str| json!({"metadata": {"name": "m"}, "data": {"a": value}});
    let applied =
        |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"b": "c"}});
    let delete =
        json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 7, "propagationPolicy": "Orphan"});
    let (plain, apply) = ("application/json", "application/apply-patch+yaml");
    let requests = [
        ("POST", format!("{MAPS}?fieldManager=me&fieldValidation=Strict"), plain, map("b")),
        ("PUT", format!("{one}?fieldManager=you"), plain, map("c")),
        (
            "PATCH",
            format!("{one}?fieldManager=her&dryRun=All"),
            "application/merge-patch+json",
            json!({"data": {"a": "d"}}),
        ),
        ("PATCH", format!("{MAPS}/n?fieldManager=it"), apply, applied("n")),
        (
            "PATCH",
            format!("{MAPS}/n?fieldManager=it&force=true"),
            apply,
            json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "n"}, "data": {"b": "d"}}),
        ),
        ("DELETE", one.clone(), plain, delete),
        ("DELETE", format!("{MAPS}/n?gracePeriodSeconds=3"), plain, Value::Null),
    ];
    for (method, uri, kind, body) in requests {
        let (code, answer) = world.api.typed(method, &uri, kind, body).await;
        assert!((200..300).contains(&code), "{method} {uri}: {answer}");
    }
    let options = |kind: &str, more: Value| {
        let mut options = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
        options.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
        options
    };
    let reply: Vec<(String, Value)> = world
        .server
        .seen()
        .iter()
        .map(request)
        .map(|r| (r["operation"].as_str().unwrap_or_default().to_owned(), r["options"].clone()))
        .collect();
    let expected = [
        ("CREATE", options("CreateOptions", json!({"fieldManager": "me", "fieldValidation": "Strict"}))),
        ("UPDATE", options("UpdateOptions", json!({"fieldManager": "you"}))),
        ("UPDATE", options("UpdateOptions", json!({"fieldManager": "her", "dryRun": ["All"]}))),
        ("CREATE", options("CreateOptions", json!({"fieldManager": "it"}))),
        ("UPDATE", options("UpdateOptions", json!({"fieldManager": "it"}))),
        ("DELETE", options("DeleteOptions", json!({"gracePeriodSeconds": 7, "propagationPolicy": "Orphan"}))),
        ("DELETE", options("DeleteOptions", json!({"gracePeriodSeconds": 3}))),
    ];
    assert_eq!(reply, expected.map(|(operation, options)| (operation.to_owned(), options)));
}

#[tokio::test]
async fn mutating_webhooks_run_by_name_and_see_earlier_changes() {
    let world = World::new(|seen| {
        let data = request(seen)["object"]["data"].clone();
        let step = seen.path.trim_start_matches('/').split('?').next().unwrap_or_default().to_owned();
        let so_far = data["steps"].as_str().unwrap_or_default();
        patch(
            seen,
            json!([{"op": "add", "path": "/data/steps", "value": format!("{so_far}{step}")},
            {"op": "add", "path": "/metadata/uid", "value": "forged"}, {"op": "add", "path": "/unknown", "value": 1}]),
        )
    })
    .await;
    world.mutating("2", vec![world.hook("c", |_| {})]).await;
    world.mutating("1", vec![world.hook("b", |_| {}), world.hook("a", |_| {})]).await;
    let (code, made) = world.post("m").await;
    assert_eq!((code, &made["data"]), (201, &json!({"a": "b", "steps": "bac"})));
    assert_ne!(made["metadata"]["uid"], "forged", "only the server sets the UID");
    assert!(made.get("unknown").is_none());
}

#[tokio::test]
async fn webhooks_are_reinvoked_after_later_changes() {
    // `first` asks for reinvocation, `last` changes the object; `other` does not ask.
    let world = World::new(|seen| {
        let object = request(seen)["object"].clone();
        if seen.path.starts_with("/last") && object["data"]["late"].is_null() {
            return patch(seen, json!([{"op": "add", "path": "/data/late", "value": "yes"}]));
        }
        if seen.path.starts_with("/first") && object["data"]["late"] == "yes" {
            return patch(seen, json!([{"op": "add", "path": "/data/seen", "value": "late"}]));
        }
        allow(seen)
    })
    .await;
    let again = |h: &mut Value| h["reinvocationPolicy"] = json!("IfNeeded");
    let hooks = vec![world.hook("first", again), world.hook("other", |_| {}), world.hook("last", |_| {})];
    world.mutating("r", hooks).await;
    let (_, made) = world.post("m").await;
    assert_eq!(made["data"], json!({"a": "b", "late": "yes", "seen": "late"}));
    let path = |s: &ReceivedRequest| s.path.split('?').next().unwrap_or_default().to_owned();
    let calls: Vec<String> = world.server.seen().iter().map(path).collect();
    assert_eq!(calls, ["/first", "/other", "/last", "/first"]);
}

#[tokio::test]
async fn match_conditions_select_requests() {
    let world = World::new(|seen| answer(seen, json!({"allowed": false}))).await;
    let conditioned = |expression: &str, policy: &str| {
        world.hook("c", |h| {
            h["matchConditions"] = json!([{"name": "only", "expression": expression}]);
            h["failurePolicy"] = json!(policy);
        })
    };
    world.validating("a", vec![conditioned("object != null && object.metadata.name != 'skip-me'", "Fail")]).await;
    assert_eq!(world.post("skip-me").await.0, 201);
    assert_eq!(world.post("judged").await.0, 400);
    assert_eq!(world.server.seen().len(), 1);
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/a";
    world.api.call("DELETE", path, Value::Null).await;
    world.validating("b", vec![conditioned("object.data.missing == 'x'", "Fail")]).await;
    let (code, status) = world.post("failing").await;
    let message = status["message"].as_str().unwrap_or_default();
    assert_eq!(code, 403);
    assert!(message.starts_with("configmaps \"failing\" is forbidden: expression 'object.data.missing"), "{message}");
    world.api.call("DELETE", &path.replace("configurations/a", "configurations/b"), Value::Null).await;
    world.validating("b2", vec![conditioned("object.data.missing == 'x'", "Ignore")]).await;
    assert_eq!(world.post("passed-over").await.0, 201);
    assert_eq!(world.server.seen().len(), 1);
}

#[tokio::test]
async fn a_dry_run_calls_only_webhooks_without_side_effects() {
    let world = World::new(allow).await;
    let uri = format!("{MAPS}?dryRun=All");
    let post = || world.api.call("POST", &uri, json!({"metadata": {"name": "m"}}));
    world.validating("a", vec![world.hook("a", |h| h["sideEffects"] = json!("NoneOnDryRun"))]).await;
    assert_eq!(post().await.0, 201);
    let reply = request(&world.server.seen()[0]);
    assert_eq!((&reply["dryRun"], &reply["options"]["dryRun"]), (&json!(true), &json!(["All"])));
    let some = world.hook("b", |h| {
        h["sideEffects"] = json!("Some");
        h["admissionReviewVersions"] = json!(["v1beta1"]);
    });
    // New configurations must not have such webhooks; old ones may be in stores.
    let old = json!({"metadata": {"name": "b"}, "webhooks": [some]});
    services::store(&world.api, "admissionregistration.k8s.io", "validatingwebhookconfigurations", "", "b", old).await;
    let (code, refused) = post().await;
    assert_eq!(code, 400);
    assert_eq!(refused["message"], "admission webhook \"b.example.com\" does not support dry run");
}

#[tokio::test]
async fn validating_webhooks_are_called_concurrently_and_the_first_rejection_wins() {
    let slow = Duration::from_secs(1);
    let world =
        World::new(move |seen| match answer(seen, json!({"allowed": false, "status": {"message": seen.path}})) {
            Behaviour::Answer(_, body) => Behaviour::Slow(slow, body),
            other => other,
        })
        .await;
    world.validating("v", ["a", "b", "c", "d"].map(|n| world.hook(n, |_| {})).to_vec()).await;
    let (code, refused) = world.post("m").await;
    assert!(world.server.most_at_once() > 1, "called concurrently");
    assert_eq!(code, 400);
    assert_eq!(refused["message"], "admission webhook \"a.example.com\" denied the request: /a?timeout=10s");
    assert_eq!(world.server.seen().len(), 4);
}

#[tokio::test]
async fn objects_of_another_version_are_converted_for_the_webhook() {
    let world = World::new(|seen| {
        let object = &request(seen)["object"];
        match object["apiVersion"].as_str() {
            Some("autoscaling/v1") => patch(seen, json!([{"op": "replace", "path": "/spec/maxReplicas", "value": 7}])),
            _ => allow(seen),
        }
    })
    .await;
    let rule = json!([{"operations": ["CREATE"], "apiGroups": ["autoscaling"], "apiVersions": ["v1"],
        "resources": ["horizontalpodautoscalers"]}]);
    world.mutating("m", vec![world.hook("m", |h| h["rules"] = rule)]).await;
    let uri = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    let scaler = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {"minReplicas": 1, "maxReplicas": 3,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}})
    };
    let made = world.api.create(uri, scaler("a")).await;
    assert_eq!((&made["apiVersion"], &made["spec"]["maxReplicas"]), (&json!("autoscaling/v2"), &json!(7)));
    let reply = request(&world.server.seen()[0]);
    assert_eq!((&reply["kind"]["version"], &reply["requestKind"]["version"]), (&json!("v1"), &json!("v2")));
    let exact = json!([{"op": "replace", "path": "/webhooks/0/matchPolicy", "value": "Exact"}]);
    let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/m";
    world.api.typed("PATCH", path, "application/json-patch+json", exact).await;
    assert_eq!(world.api.create(uri, scaler("b")).await["spec"]["maxReplicas"], 3);
}

#[tokio::test]
async fn admission_configurations_and_unselected_objects_are_not_sent() {
    let world = World::new(|seen| answer(seen, json!({"allowed": false}))).await;
    let everything = json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]);
    let all = world.hook("all", |h| {
        h["rules"] = everything;
        h["namespaceSelector"] = json!({"matchLabels": {"judged": "yes"}});
        h["objectSelector"] = json!({"matchExpressions": [{"key": "free", "operator": "DoesNotExist"}]});
    });
    world.validating("all", vec![all]).await;
    world.api.create("/api/v1/namespaces", json!({"metadata": {"name": "other"}})).await;
    let (code, refused) = world
        .api
        .call("POST", "/api/v1/namespaces", json!({"metadata": {"name": "n", "labels": {"judged": "yes"}}}))
        .await;
    assert_eq!(
        (code, &refused["message"]),
        (400, &json!("admission webhook \"all.example.com\" denied the request without explanation"))
    );
    let patched =
        world.api.call("PATCH", "/api/v1/namespaces/default", json!({"metadata": {"labels": {"judged": "yes"}}})).await;
    assert_eq!(patched.0, 400);
    assert_eq!(world.post("elsewhere").await.0, 201, "its namespace is not selected");
    let labelled = json!({"metadata": {"name": "node", "labels": {"free": ""}}});
    world.api.create("/api/v1/nodes", labelled).await;
    assert_eq!(world.api.call("POST", "/api/v1/nodes", json!({"metadata": {"name": "node2"}})).await.0, 400);
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/all";
    assert_eq!(world.api.call("DELETE", path, Value::Null).await.0, 200, "configurations can always be deleted");
    world.api.create("/api/v1/nodes", json!({"metadata": {"name": "node2"}})).await;
}

#[tokio::test]
async fn connections_are_admitted_and_counted() {
    let world = World::new(|seen| answer(seen, json!({"allowed": false}))).await;
    let rule =
        json!([{"operations": ["CONNECT"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/exec"]}]);
    world.validating("exec", vec![world.hook("exec", |h| h["rules"] = rule)]).await;
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    world.api.create("/api/v1/namespaces/default/pods", pod).await;
    let exec = "/api/v1/namespaces/default/pods/p/exec?command=ls&stdout=true";
    let (code, _) = world.api.call("POST", exec, Value::Null).await;
    assert_eq!(code, 400);
    let reply = request(&world.server.seen()[0]);
    assert_eq!((&reply["subResource"], &reply["object"]["kind"]), (&json!("exec"), &json!("PodExecOptions")));
    assert_eq!((&reply["object"]["command"], &reply["options"]), (&json!(["ls"]), &Value::Null));
    let response = world.api.raw("GET", "/metrics", &[], "").await;
    let text = response.into_body().collect().await.expect("body").to_bytes();
    let text = String::from_utf8_lossy(&text);
    for line in [
        "apiserver_admission_webhook_rejection_count{error_type=\"no_error\",name=\"exec.example.com\",operation=\"CONNECT\",\
         rejection_code=\"400\",type=\"validating\"} 1",
        "apiserver_admission_webhook_request_total{code=\"400\",name=\"exec.example.com\",operation=\"CONNECT\",\
         rejected=\"true\",type=\"validating\"} 1",
        "apiserver_admission_step_admission_duration_seconds_count{operation=\"CONNECT\",rejected=\"true\",type=\"validate\"} 1",
        "apiserver_admission_controller_admission_duration_seconds_count{name=\"ValidatingAdmissionWebhook\",\
         operation=\"CONNECT\",rejected=\"true\",type=\"validate\"} 1",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}
