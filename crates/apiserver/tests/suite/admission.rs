//! Admission in the whole request path: its configuration, its explanations, and calls to the server itself.

use crate::common::Api;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kelson_admission::configuration::Parts;
use kelson_apiserver::{ApiServer, Config};
use kelson_doubles::webhook::{Behaviour, ReceivedRequest, TestServer};
use kelson_meta::gates::FeatureGates;
use kelson_store::{Store, StoreOptions};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}})
}

/// The code and the warnings of an answer.
async fn warned(api: &Api, method: &str, uri: &str, body: Value) -> (u16, Vec<String>) {
    let bytes = if body.is_null() { String::new() } else { body.to_string() };
    let answer = api.raw(method, uri, &[("content-type", "application/json")], bytes).await;
    let text = |v: &http::HeaderValue| {
        let value = v.to_str().unwrap_or_default();
        value.trim_start_matches("299 - \"").trim_end_matches('"').replace("\\\"", "\"")
    };
    (answer.status().as_u16(), answer.headers().get_all("warning").iter().map(text).collect())
}

#[tokio::test]
async fn a_dry_run_explains_admission() {
    let api = Api::with(|c| c.admission.enable = vec!["AlwaysPullImages".into()]).await;
    let uri = |query: &str| format!("{PODS}?{query}");
    let (code, reply) = warned(&api, "POST", &uri("dryRun=All&explainAdmission=true"), pod("a")).await;
    assert_eq!(code, 201);
    assert!(
        reply.contains(&"admission: AlwaysPullImages changed spec.containers[0].imagePullPolicy".to_owned()),
        "{reply:?}"
    );
    assert!(reply.contains(&"admission: DefaultTolerationSeconds changed spec.tolerations".to_owned()), "{reply:?}");
    for quiet in ["dryRun=All", "explainAdmission=true", "dryRun=All&explainAdmission=false"] {
        let (code, reply) = warned(&api, "POST", &uri(quiet), pod(&format!("q{}", quiet.len()))).await;
        assert_eq!((code, reply), (201, vec![]), "{quiet}");
    }
    let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
    api.call("PATCH", "/api/v1/namespaces/default", json!({"metadata": {"labels": labels}})).await;
    let (code, reply) = warned(&api, "POST", &uri("dryRun=All&explainAdmission=true"), pod("b")).await;
    assert_eq!(code, 403);
    assert_eq!(reply.last().unwrap(), "admission: PodSecurity denied the request");
}

#[tokio::test]
async fn the_default_priority_is_the_current_one() {
    const CLASSES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let api = Api::start().await;
    let priority = async |name: &str| {
        let made = api.create(PODS, pod(name)).await;
        (made["spec"]["priority"].clone(), made["spec"]["priorityClassName"].clone())
    };
    assert_eq!(priority("none").await, (json!(0), Value::Null));
    let class = json!({"metadata": {"name": "usual"}, "value": 7, "globalDefault": true});
    api.create(CLASSES, class).await;
    assert_eq!(priority("usual").await, (json!(7), json!("usual")));
    assert_eq!(priority("again").await, (json!(7), json!("usual")));
    api.call("DELETE", &format!("{CLASSES}/usual"), Value::Null).await;
    assert_eq!(priority("none-again").await, (json!(0), Value::Null));
}

#[tokio::test]
async fn plugins_are_configured_by_their_sections() {
    let part = json!({"apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration",
        "defaults": {"enforce": "restricted"}, "exemptions": {"namespaces": ["kube-system"]}});
    let api = Api::with(|c| {
        c.admission.configuration = Parts::from([("PodSecurity".to_owned(), part)]);
        c.admission.toleration_seconds.not_ready_seconds = 7;
        c.admission.enable = vec!["NamespaceAutoProvision".into()];
    })
    .await;
    let (code, refused) = api.call("POST", PODS, pod("a")).await;
    assert_eq!(code, 403);
    assert!(refused["message"].as_str().unwrap().contains("violates PodSecurity \"restricted:latest\""), "{refused}");
    let made = api.create("/api/v1/namespaces/kube-system/pods", pod("a")).await;
    assert_eq!(made["spec"]["tolerations"][0]["tolerationSeconds"], 7);
    api.create("/api/v1/namespaces/new/configmaps", json!({"metadata": {"name": "m"}})).await;
    let namespace = api.get("/api/v1/namespaces/new").await;
    assert_eq!(namespace["metadata"]["labels"]["kubernetes.io/metadata.name"], "new", "created like any other");
    let (code, refused) =
        api.call("POST", "/api/v1/namespaces/UPPER/configmaps", json!({"metadata": {"name": "m"}})).await;
    assert_eq!(code, 403, "{refused}");
}

#[tokio::test]
async fn every_object_of_a_collection_delete_adds_its_warning() {
    let api = Api::start().await;
    for name in ["a", "b"] {
        api.create(MAPS, json!({"metadata": {"name": name}})).await;
    }
    let rules = json!({"resourceRules": [{"operations": ["DELETE"], "apiGroups": [""], "apiVersions": ["v1"],
        "resources": ["configmaps"]}]});
    let policy = json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": rules,
        "validations": [{"expression": "false", "messageExpression": "'lost: ' + request.name"}]}});
    api.create(&format!("{GROUP}/validatingadmissionpolicies"), policy).await;
    let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Warn"]}});
    api.create(&format!("{GROUP}/validatingadmissionpolicybindings"), binding).await;
    let (code, reply) = warned(&api, "DELETE", MAPS, Value::Null).await;
    assert_eq!(code, 200);
    let ends: Vec<&str> = reply.iter().filter_map(|t| t.rsplit(": ").next()).collect();
    assert_eq!(ends, ["a", "b"], "{reply:?}");
}

#[tokio::test]
async fn a_webhook_on_the_server_itself_is_called_in_process() {
    let api = Api::start().await;
    let hook = json!({"name": "own.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": {"namespace": "default", "name": "kubernetes", "path": MAPS}},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"]}]});
    let configuration = json!({"metadata": {"name": "own"}, "webhooks": [hook]});
    api.create(&format!("{GROUP}/validatingwebhookconfigurations"), configuration).await;
    let secret = json!({"metadata": {"name": "s"}});
    let (code, refused) = api.call("POST", "/api/v1/namespaces/default/secrets", secret).await;
    // No review is served at this path. The error shows that the server itself was called with sufficient rights.
    assert_eq!(code, 500);
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("AdmissionReview in version \"v1\" cannot be handled as a ConfigMap"), "{message}");
}

#[tokio::test]
async fn a_webhook_that_would_block_its_own_pods_gets_a_warning() {
    let api = Api::start().await;
    let service =
        json!({"metadata": {"name": "hook"}, "spec": {"selector": {"app": "hook"}, "ports": [{"port": 443}]}});
    api.create("/api/v1/namespaces/default/services", service).await;
    let configuration = |name: &str, selector: Value| {
        let hook = json!({"name": "h.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"service": {"namespace": "default", "name": "hook"}}, "namespaceSelector": selector,
            "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]});
        json!({"metadata": {"name": name}, "webhooks": [hook]})
    };
    let not_here = json!({"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn",
        "values": ["default"]}]});
    for kind in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
        let path = format!("{GROUP}/{kind}?dryRun=All");
        let (code, reply) = warned(&api, "POST", &path, configuration("a", json!({}))).await;
        assert_eq!((code, reply.len()), (201, 1), "{kind}: {reply:?}");
        assert!(reply[0].starts_with("webhook \"h.example.com\" matches pods of its service default/hook"));
        assert_eq!(warned(&api, "POST", &path, configuration("b", not_here.clone())).await, (201, vec![]));
    }
}

/// The answer of a webhook that injects a proxy container, like those of service meshes.
fn inject(seen: &ReceivedRequest) -> Behaviour {
    let review: Value = serde_json::from_slice(&seen.body).expect("JSON");
    let pod = &review["request"]["object"];
    let proxy =
        json!({"name": "proxy", "image": "mesh/proxy", "env": [{"name": "POD", "value": pod["metadata"]["name"]}]});
    let operations = json!([
        {"op": "add", "path": "/spec/containers/-", "value": proxy},
        {"op": "add", "path": "/spec/initContainers", "value": [{"name": "init", "image": "mesh/init",
            "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}}]},
        {"op": "add", "path": "/metadata/annotations", "value": {"mesh/status": "injected"}},
    ]);
    let response = json!({"uid": review["request"]["uid"], "allowed": true, "patchType": "JSONPatch",
        "patch": STANDARD.encode(operations.to_string())});
    let answer = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response});
    Behaviour::Answer(200, answer.to_string().into_bytes())
}

#[tokio::test]
async fn a_sidecar_injector_works_after_its_ca_bundle_is_patched_in() {
    let api = Api::start().await;
    let server = TestServer::start(&["injector.mesh.svc"], inject).await;
    let url = format!("https://127.0.0.1:{}/inject", server.address.port());
    // As installed: without CA bundle, with selectors for namespaces and pods, and reinvoked when another webhook changes the pod.
    let hook = json!({"name": "sidecar.mesh.io", "sideEffects": "None", "admissionReviewVersions": ["v1beta1", "v1"],
        "clientConfig": {"url": url}, "reinvocationPolicy": "IfNeeded", "failurePolicy": "Fail",
        "namespaceSelector": {"matchLabels": {"mesh-injection": "enabled"}},
        "objectSelector": {"matchExpressions": [{"key": "mesh/inject", "operator": "NotIn", "values": ["false"]}]},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]});
    let path = format!("{GROUP}/mutatingwebhookconfigurations");
    api.create(&path, json!({"metadata": {"name": "mesh"}, "webhooks": [hook]})).await;
    api.create(PODS, pod("elsewhere")).await;
    let labels = json!({"metadata": {"labels": {"mesh-injection": "enabled"}}});
    api.call("PATCH", "/api/v1/namespaces/default", labels).await;
    let (code, failed) = api.call("POST", PODS, pod("early")).await;
    assert_eq!(code, 500, "without a CA bundle the injector is not trusted: {failed}");
    let bundle =
        json!([{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": STANDARD.encode(server.ca())}]);
    let patched = api.typed("PATCH", &format!("{path}/mesh"), "application/json-patch+json", bundle).await;
    assert_eq!(patched.0, 200, "{}", patched.1);
    let made = api.create(PODS, pod("injected")).await;
    let names = |list: &Value| list.as_array().unwrap().iter().map(|c| c["name"].clone()).collect::<Vec<_>>();
    assert_eq!(names(&made["spec"]["containers"]), ["c", "proxy"]);
    assert_eq!(names(&made["spec"]["initContainers"]), ["init"]);
    assert_eq!(made["spec"]["containers"][1]["imagePullPolicy"], "Always", "injected containers get defaults");
    assert_eq!(made["metadata"]["annotations"]["mesh/status"], "injected");
    let mut out = pod("out");
    out["metadata"]["labels"] = json!({"mesh/inject": "false"});
    assert_eq!(api.create(PODS, out).await["spec"]["containers"].as_array().unwrap().len(), 1);
    let fresh = server.change_authority(&["injector.mesh.svc"]);
    let bundle =
        json!([{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": STANDARD.encode(fresh)}]);
    api.typed("PATCH", &format!("{path}/mesh"), "application/json-patch+json", bundle).await;
    assert_eq!(api.create(PODS, pod("rotated")).await["spec"]["containers"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn policies_as_policy_engines_write_them() {
    let api = Api::start().await;
    let on = |group: &str, resource: &str| {
        json!({"resourceRules": [{"operations": ["CREATE", "UPDATE"],
        "apiGroups": [group], "apiVersions": ["*"], "resources": [resource]}]})
    };
    let containers = "object.spec.containers + object.spec.?initContainers.orValue([])";
    let policies = [
        (
            "require-labels",
            on("", "pods"),
            json!([{"expression": "'app' in object.metadata.?labels.orValue({})",
            "message": "the label app is required"}]),
        ),
        (
            "no-latest",
            on("", "pods"),
            json!([{
            "expression": format!("({containers}).all(c, c.image.contains(':') && !c.image.endsWith(':latest'))"),
            "message": "images need a tag that is not latest"}]),
        ),
        (
            "known-registry",
            on("", "pods"),
            json!([{
            "expression": format!("({containers}).all(c, c.image.startsWith('registry.example.com/'))"),
            "messageExpression": format!("'not from the registry: ' + ({containers}).filter(c, \
                !c.image.startsWith('registry.example.com/')).map(c, c.image).join(', ')"), "reason": "Forbidden"}]),
        ),
        (
            "no-host-path",
            on("", "pods"),
            json!([{
            "expression": "!has(object.spec.volumes) || object.spec.volumes.all(v, !has(v.hostPath))"}]),
        ),
        (
            "replicas",
            on("apps", "deployments"),
            json!([{"expression": "object.spec.replicas <= 3 || \
            authorizer.group('apps').resource('deployments').namespace(object.metadata.namespace).check('scale').allowed()"}]),
        ),
    ];
    for (name, constraints, validations) in policies {
        let policy = json!({"metadata": {"name": name}, "spec": {"matchConstraints": constraints,
            "validations": validations}});
        api.create(&format!("{GROUP}/validatingadmissionpolicies"), policy).await;
        let binding = json!({"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}});
        api.create(&format!("{GROUP}/validatingadmissionpolicybindings"), binding).await;
    }
    let pod = |image: &str, labels: Value, volumes: Value| {
        json!({"metadata": {"name": "p", "labels": labels},
        "spec": {"containers": [{"name": "c", "image": image}], "volumes": volumes}})
    };
    let good = "registry.example.com/app:1";
    let (app, none) = (|| json!({"app": "x"}), || json!([]));
    for (asked, code, want) in [
        (pod(good, app(), none()), 201, ""),
        (
            pod(good, json!({}), none()),
            422,
            "'require-labels' with binding 'require-labels' denied request: the label app is required",
        ),
        (pod("registry.example.com/app:latest", app(), none()), 422, "images need a tag that is not latest"),
        (pod("other/app:1", app(), none()), 403, "not from the registry: other/app:1"),
        (
            pod(good, app(), json!([{"name": "v", "hostPath": {"path": "/"}}])),
            422,
            "failed expression: !has(object.spec.volumes)",
        ),
    ] {
        let (got, answer) = api.call("POST", &format!("{PODS}?dryRun=All"), asked).await;
        assert_eq!(got, code, "{answer}");
        assert!(answer["message"].as_str().unwrap_or_default().contains(want), "{answer}");
    }
    let template =
        json!({"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": good}]}});
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"replicas": 9, "selector": {"matchLabels": {"app": "x"}},
        "template": template}});
    let made = api.call("POST", "/apis/apps/v1/namespaces/default/deployments", deployment).await;
    assert_eq!(made.0, 201, "the administrator may: {}", made.1);
}

#[tokio::test]
async fn a_quota_holds_against_64_concurrent_writers() {
    let api = Arc::new(Api::start().await);
    const LIMIT: usize = 10;
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/configmaps": LIMIT.to_string()}}});
    api.create("/api/v1/namespaces/default/resourcequotas", quota).await;
    let mut reply = api.get("/api/v1/namespaces/default/resourcequotas/q").await;
    reply["status"] = json!({"hard": {"count/configmaps": LIMIT.to_string()}, "used": {"count/configmaps": "0"}});
    assert_eq!(api.call("PUT", "/api/v1/namespaces/default/resourcequotas/q/status", reply).await.0, 200);
    let made = Arc::new(Mutex::new(0));
    let writers = (0..64).map(|i| {
        let (api, made) = (Arc::clone(&api), Arc::clone(&made));
        tokio::spawn(async move {
            let map = json!({"metadata": {"name": format!("m{i}")}});
            let (code, answer) = api.call("POST", MAPS, map).await;
            match code {
                201 => *made.lock() += 1,
                _ => assert!(answer["message"].as_str().unwrap().contains("exceeded quota: q"), "{answer}"),
            }
        })
    });
    for writer in futures::future::join_all(writers).await {
        writer.unwrap();
    }
    assert_eq!(*made.lock(), LIMIT);
    assert_eq!(api.get(MAPS).await["items"].as_array().unwrap().len(), LIMIT);
    let used = api.get("/api/v1/namespaces/default/resourcequotas/q").await["status"]["used"].clone();
    assert_eq!(used, json!({"count/configmaps": LIMIT.to_string()}));
}

fn static_policy(name: &str, expression: &str) -> String {
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": format!("{name}.static.k8s.io")}, "spec": {"matchConstraints": {"resourceRules": [{
            "operations": ["CREATE"], "apiGroups": ["admissionregistration.k8s.io"], "apiVersions": ["v1"],
            "resources": ["validatingwebhookconfigurations"]}]}, "validations": [{"expression": expression}]}});
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": format!("{name}.static.k8s.io")},
        "spec": {"policyName": format!("{name}.static.k8s.io"), "validationActions": ["Deny"]}});
    format!("{policy}\n---\n{binding}\n")
}

#[tokio::test]
async fn policies_from_files_also_apply_to_admission_configurations() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("policy.yaml");
    std::fs::write(&file, static_policy("names", "object.metadata.name != 'bad'")).unwrap();
    let part = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "ValidatingAdmissionPolicyConfiguration",
        "staticManifestsDir": dir.path()});
    let parts = || Parts::from([("ValidatingAdmissionPolicy".to_owned(), part.clone())]);
    let gates = Arc::new(FeatureGates::parse(["ManifestBasedAdmissionControlConfig=true"]).unwrap());
    let api = Api::with(|c| (c.admission.configuration, c.feature_gates) = (parts(), Arc::clone(&gates))).await;
    let path = format!("{GROUP}/validatingwebhookconfigurations");
    let post = async |name: &str| api.call("POST", &path, json!({"metadata": {"name": name}})).await;
    let (code, refused) = post("bad").await;
    assert_eq!(code, 422);
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("ValidatingAdmissionPolicy 'names.static.k8s.io' with binding"), "{message}");
    assert_eq!(post("good").await.0, 201);
    let listed = api.get(&format!("{GROUP}/validatingadmissionpolicies")).await;
    assert_eq!(listed["items"], json!([]), "static policies are not API objects");
    std::fs::write(&file, static_policy("names", "object.metadata.name != 'worse'")).unwrap();
    api.running.server().admission.reload().await;
    assert_eq!((post("bad").await.0, post("worse").await.0), (201, 422));
    std::fs::write(&file, static_policy("names", "object.name(").replace("spec", "spek")).unwrap();
    api.running.server().admission.reload().await;
    assert_eq!(post("worse").await.0, 422, "the policy that was loaded before stays in force");
    let mut config = Config::new(Store::in_memory(StoreOptions::default()));
    (config.admission.configuration, config.feature_gates) = (parts(), gates);
    let why = ApiServer::start(config).await.err().expect("does not start").to_string();
    assert!(why.contains("policy.yaml") && why.contains("unknown field \"spek\""), "{why}");
}
