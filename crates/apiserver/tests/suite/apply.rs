//! Server-side apply: unknown fields are rejected at any depth, fields of other managers are kept, and nulls follow the type of their
//! field.

use crate::common::Api;
use serde_json::{Value, json};

const APPLY: &str = "application/apply-patch+yaml";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

fn config_map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": data})
}

/// The managers of an object's entries and their fields below a path, sorted.
fn owners(object: &Value, path: &[&str]) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let owned = entries.iter().filter_map(|entry| {
        let place = path.iter().fold(&entry["fieldsV1"], |place, key| &place[format!("f:{key}")]);
        let keys: Vec<&str> = place.as_object()?.keys().map(String::as_str).filter(|key| *key != ".").collect();
        Some(format!("{} {}", entry["manager"].as_str().unwrap_or(""), keys.join(",")))
    });
    let mut owned: Vec<String> = owned.collect();
    owned.sort();
    owned
}

#[tokio::test]
async fn unknown_fields_below_atomic_fields_are_rejected() {
    let api = Api::start().await;
    let check = async |uri: &str, config: Value, want: &str| {
        for validation in ["Strict", "Ignore"] {
            let uri = format!("{uri}/x?fieldManager=a&fieldValidation={validation}");
            let (code, reply) = api.typed("PATCH", &uri, APPLY, config.clone()).await;
            let message = reply["message"].as_str().unwrap_or("");
            assert_eq!((code, message.ends_with(want)), (500, true), "{config}: {reply}");
        }
        let (code, _) = api.call("GET", &format!("{uri}/x"), Value::Null).await;
        assert_eq!(code, 404, "{config}");
    };
    let policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "x"},
        "spec": {"podSelector": {}, "ingress": [{"form": [{"podSelector": {}}]}]}});
    let policies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
    check(policies, policy, ": .spec.ingress[0].form: field not declared in schema").await;
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "x"},
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceName": ["one"]}]});
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    check(roles, role, ": .rules[0].resourceName: field not declared in schema").await;
    check(MAPS, config_map(json!("text")), ": .data: expected map, got &{text}").await;
    let mut odd = config_map(json!({}));
    odd["metadata"]["labels"] = json!(["a"]);
    check(MAPS, odd, ": .metadata.labels: expected map, got &{[a]}").await;
}

#[tokio::test]
async fn a_string_instead_of_a_map_changes_nothing() {
    let api = Api::start().await;
    let uri = format!("{MAPS}/x?fieldManager=a");
    let (code, made) = api.typed("PATCH", &uri, APPLY, config_map(json!({"a": "1"}))).await;
    assert_eq!(code, 201, "{made}");
    let (code, reply) = api.typed("PATCH", &uri, APPLY, config_map(json!("x"))).await;
    assert_eq!(code, 500, "{reply}");
    assert_eq!(api.get(&format!("{MAPS}/x")).await, made);
}

#[tokio::test]
async fn kubectl_takes_over_only_what_it_applied_itself() {
    let api = Api::start().await;
    let applied = |kind: &str, data: Value| {
        let last = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "x"}, "data": data});
        last.to_string()
    };
    let start = async |kind: &str| {
        api.call("DELETE", &format!("{MAPS}/x"), Value::Null).await;
        let mut object = config_map(json!({"x": "1", "y": "1"}));
        let last = applied(kind, json!({"x": "1", "y": "1"}));
        object["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": last});
        api.create(&format!("{MAPS}?fieldManager=kubectl-client-side-apply"), object).await;
    };
    let apply = async |data: Value| {
        api.typed("PATCH", &format!("{MAPS}/x?fieldManager=kubectl"), APPLY, config_map(data)).await
    };
    start("ConfigMap").await;
    let (code, taken) = apply(json!({"x": "2", "y": "5"})).await;
    assert_eq!((code, &taken["data"]), (200, &json!({"x": "2", "y": "5"})), "{taken}");
    // Another manager has changed a field since.
    start("ConfigMap").await;
    let (code, _) = api.call("PATCH", &format!("{MAPS}/x?fieldManager=hand"), json!({"data": {"x": "9"}})).await;
    assert_eq!(code, 200);
    let (code, reply) = apply(json!({"x": "2", "y": "5"})).await;
    let why = "Apply failed with 1 conflict: conflict with \"hand\" using v1: .data.x";
    assert_eq!((code, &reply["message"]), (409, &json!(why)), "{reply}");
    assert_eq!(owners(&api.get(&format!("{MAPS}/x")).await, &["data"]), ["hand f:x", "kubectl-client-side-apply f:y"]);
    // The annotation of another kind does not apply to this object.
    start("Secret").await;
    let (code, reply) = apply(json!({"x": "2"})).await;
    assert_eq!(code, 409, "{reply}");
}

async fn with_widgets() -> Api {
    let api = Api::start().await;
    let text = json!({"type": "string"});
    let texts = json!({"type": "object", "additionalProperties": text});
    let keyed = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "items": {"type": "object", "required": ["name"], "properties": {"name": text, "value": text}}});
    let atomic = json!({"type": "array", "x-kubernetes-list-type": "atomic", "items": {"type": "object", "properties": {"name": text}}});
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "gran": texts, "plain": text, "count": {"type": "integer"}, "set": {"type": "array", "x-kubernetes-list-type": "set", "items": text},
            "keyed": keyed, "atomicList": atomic, "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "atom": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"name": text}},
            "port": {"x-kubernetes-int-or-string": true}}},
        "status": {"type": "object", "properties": {"conditions": keyed}}}});
    define(&api, schema).await;
    api
}

async fn define(api: &Api, schema: Value) {
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema}}]}});
    api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await;
}

fn widget(spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": spec})
}

#[tokio::test]
async fn a_null_removes_nothing_of_other_managers() {
    let api = with_widgets().await;
    let apply = async |manager: &str, spec: Value| {
        let (code, reply) =
            api.typed("PATCH", &format!("{WIDGETS}/w?fieldManager={manager}"), APPLY, widget(spec)).await;
        assert!(matches!(code, 200 | 201), "{reply}");
        reply
    };
    for (field, first, second) in [
        ("gran", json!({"a": "1"}), json!({"b": "1"})),
        ("any", json!({"a": {"x": 1}}), json!({"b": {"y": 1}})),
        ("set", json!(["a"]), json!(["b"])),
        ("keyed", json!([{"name": "a", "value": "1"}]), json!([{"name": "b", "value": "1"}])),
    ] {
        for nothing in [json!({field: null}), Value::Null] {
            api.call("DELETE", &format!("{WIDGETS}/w"), Value::Null).await;
            apply("one", json!({field: first})).await;
            let before = apply("two", json!({field: second})).await;
            let mine = |object: &Value| {
                owners(object, &["spec"]).into_iter().filter(|o| o.starts_with("two")).collect::<Vec<_>>()
            };
            let after = apply("one", nothing.clone()).await;
            assert_eq!(after["spec"][field], second, "{field} {nothing}");
            assert_eq!(mine(&after), mine(&before), "{field} {nothing}");
        }
    }
    // A null for a field of another manager is not a conflict.
    let after = apply("three", json!({"keyed": null})).await;
    assert_eq!(after["spec"]["keyed"], json!([{"name": "b", "value": "1"}]));
    let status = async |manager: &str, conditions: Value| {
        let config = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "status": {"conditions": conditions}});
        let (code, reply) =
            api.typed("PATCH", &format!("{WIDGETS}/w/status?fieldManager={manager}"), APPLY, config).await;
        assert_eq!(code, 200, "{reply}");
        reply
    };
    status("one", json!([{"name": "a"}])).await;
    status("two", json!([{"name": "b"}])).await;
    assert_eq!(status("one", Value::Null).await["status"]["conditions"], json!([{"name": "b"}]));
}

#[tokio::test]
async fn a_null_is_not_a_string_number_or_atomic_value() {
    let api = with_widgets().await;
    for (spec, field, code) in [
        (json!({"plain": null}), "spec.plain", 422),
        (json!({"count": null}), "spec.count", 422),
        (json!({"port": null}), "spec.port", 422),
        (json!({"atom": null}), "spec.atom", 422),
        (json!({"atomicList": null}), "spec.atomicList", 422),
        (json!({"atomicList": [{"name": "a", "foo": 1}]}), "", 500),
        (json!({"atom": {"foo": 1}}), "", 500),
        (json!({"keyed": {}}), "", 500),
        (json!({"count": "x"}), "", 500),
        (json!({"gran": "x"}), "", 500),
        (json!({"port": []}), "", 500),
        (json!({"port": "http"}), "", 201),
    ] {
        let (got, reply) =
            api.typed("PATCH", &format!("{WIDGETS}/w?fieldManager=a"), APPLY, widget(spec.clone())).await;
        assert_eq!(got, code, "{spec}: {reply}");
        assert_eq!(reply["details"]["causes"][0]["field"].as_str().unwrap_or(""), field, "{spec}: {reply}");
    }
    // Other writes ignore such a null.
    let (code, _) = api.call("PATCH", &format!("{WIDGETS}/w"), json!({"spec": {"plain": "a"}})).await;
    assert_eq!(code, 200);
    let patch = json!([{"op": "replace", "path": "/spec/plain", "value": null}]);
    let (code, now) = api.typed("PATCH", &format!("{WIDGETS}/w"), "application/json-patch+json", patch).await;
    assert_eq!((code, now["spec"].get("plain")), (200, None), "{now}");
}

#[tokio::test]
async fn an_apply_sets_the_namespace_and_requires_the_name() {
    let api = Api::start().await;
    let uri = format!("{MAPS}/x?fieldManager=a");
    let with =
        |metadata: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "1"}});
    for (metadata, code) in [
        (json!({"name": "x", "namespace": null}), 201),
        (json!({"name": "x", "namespace": ""}), 200),
        (json!({"name": "x", "namespace": "other"}), 400),
        (json!({"name": null}), 400),
        (json!({"name": ""}), 400),
        (json!({"name": "y"}), 400),
        (json!({}), 200),
    ] {
        let (got, reply) = api.typed("PATCH", &uri, APPLY, with(metadata.clone())).await;
        assert_eq!(got, code, "{metadata}: {reply}");
        assert!(got >= 400 || reply["metadata"]["namespace"] == "default", "{metadata}: {reply}");
    }
    // A valid version is ignored if the object does not exist.
    let with = |name: &str, version: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "resourceVersion": version}});
    let apply = async |name: &str, version: &str| {
        api.typed("PATCH", &format!("{MAPS}/{name}?fieldManager=a"), APPLY, with(name, version)).await.0
    };
    assert_eq!((apply("new", "5").await, apply("odd", "x").await), (201, 500));
    // Duplicate keys in the YAML are checked during the merge.
    let (code, _) = api.call("PATCH", &format!("{MAPS}/x?fieldManager=b"), json!({"data": {"a": "2"}})).await;
    assert_eq!(code, 200);
    let twice = "{apiVersion: v1, kind: ConfigMap, metadata: {name: x}, data: {a: '3', a: '4'}}";
    let put = async |manager: &str| {
        let uri = format!("{MAPS}/x?fieldManager={manager}&fieldValidation=Strict");
        api.raw("PATCH", &uri, &[("content-type", APPLY)], twice).await.status().as_u16()
    };
    assert_eq!(put("a").await, 409);
    let (code, _) = api.call("PATCH", &format!("{MAPS}/x"), json!({"data": {"a": null}})).await;
    assert_eq!((code, put("a").await), (200, 400));
}

const AUTOSCALER: &str = "namespaces/default/horizontalpodautoscalers/x?fieldManager=a";

fn autoscaler(version: &str, more: Value) -> Value {
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"});
    let mut object = json!({"apiVersion": version, "kind": "HorizontalPodAutoscaler", "metadata": {"name": "x"},
        "spec": {"maxReplicas": 3, "scaleTargetRef": target}});
    for (key, value) in more.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    object
}

/// The version that a manager continues in has a default for what it does not name any more, so the value stays as it was.
#[tokio::test]
async fn a_metric_that_a_manager_names_in_v1_alone_is_kept_in_v2() {
    let api = Api::start().await;
    let first = json!({"targetCPUUtilizationPercentage": 50});
    for (version, spec) in [("autoscaling/v1", first), ("autoscaling/v2", json!({})), ("autoscaling/v1", json!({}))] {
        let uri = format!("/apis/{version}/{AUTOSCALER}");
        let (code, answer) = api.typed("PATCH", &uri, APPLY, autoscaler(version, spec)).await;
        assert!(code < 300, "{answer}");
        let now = api.get("/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers/x").await;
        assert_eq!(now["spec"]["targetCPUUtilizationPercentage"], 50, "{version}: {now}");
    }
}

/// Applied values are pruned together with the map that contains them, and a missing map has no defaults, as in the
/// reference.
#[tokio::test]
async fn a_null_for_all_that_was_applied_takes_the_map_around_it() {
    let api = Api::start().await;
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "size": {"type": "integer", "default": 3},
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}}}}});
    define(&api, schema).await;
    let widget = |tags: Value| {
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "x"},
        "spec": {"tags": tags}})
    };
    let uri = format!("{WIDGETS}/x?fieldManager=a");
    let (code, made) = api.typed("PATCH", &uri, APPLY, widget(json!(["a"]))).await;
    assert_eq!(code, 201, "{made}");
    let (code, now) = api.typed("PATCH", &uri, APPLY, widget(Value::Null)).await;
    assert_eq!((code, now.get("spec")), (200, None), "{now}");
    let more = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "x"}, "spec": {}});
    let (code, now) = api.typed("PATCH", &uri, APPLY, more).await;
    assert_eq!((code, &now["spec"]["size"]), (200, &json!(3)), "{now}");
}

#[tokio::test]
async fn no_manager_owns_what_a_service_loses_as_an_alias() {
    let api = Api::start().await;
    let uri = "/api/v1/namespaces/default/services/x";
    for kind in ["NodePort", "ClusterIP"] {
        let spec = json!({"type": kind, "ports": [{"port": 80}]});
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": spec});
        let (code, answer) = api.typed("PATCH", &format!("{uri}?fieldManager=a"), APPLY, service).await;
        assert!(code < 300, "{answer}");
    }
    let patch = json!({"spec": {"type": "ExternalName", "externalName": "example.com"}});
    let merge = "application/merge-patch+json";
    let (code, now) = api.typed("PATCH", &format!("{uri}?fieldManager=b"), merge, patch).await;
    assert_eq!(code, 200, "{now}");
    let b = owners(&now, &["spec"]).into_iter().find(|owned| owned.starts_with("b "));
    assert_eq!(b.as_deref(), Some("b f:externalName,f:type"), "{now}");
}

/// The time is the server's, and the patch changes nothing. The reference gives it to who sent the patch.
#[tokio::test]
async fn no_manager_owns_a_deletion_time() {
    let api = Api::start().await;
    let mut held = config_map(json!({"a": "1"}));
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.create(MAPS, held).await;
    let (code, going) = api.call("DELETE", &format!("{MAPS}/x"), Value::Null).await;
    assert_eq!(code, 200, "{going}");
    let patch = json!({"metadata": {"deletionTimestamp": "2020-01-01T00:00:00Z"}});
    let merge = "application/merge-patch+json";
    let (code, now) = api.typed("PATCH", &format!("{MAPS}/x?fieldManager=b"), merge, patch).await;
    assert_eq!(code, 200, "{now}");
    assert_eq!(owners(&now, &["metadata"]), ["test f:finalizers"], "{now}");
    assert_ne!(now["metadata"]["deletionTimestamp"], "2020-01-01T00:00:00Z");
}
