//! Limits of patches, server-side apply of a scale, and fields of disabled features.

use crate::common::Api;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const APPLY: &str = "application/apply-patch+yaml";

#[tokio::test]
async fn a_patch_cannot_change_the_kind() {
    let api = Api::start().await;
    api.create(MAPS, json!({"metadata": {"name": "x"}})).await;
    let uri = format!("{MAPS}/x?fieldManager=m");
    let odd = "no kind \"Odd\" is registered for version \"v1\"";
    for (kind, patch, code, why) in [
        (MERGE, json!({"kind": "Odd"}), 422, odd),
        (MERGE, json!({"kind": "Pod"}), 422, "converting (v1.Pod) to (core.ConfigMap): unknown conversion"),
        (MERGE, json!({"apiVersion": "v9"}), 422, "no kind \"ConfigMap\" is registered for version \"v9\""),
        (JSON, json!([{"op": "replace", "path": "/kind", "value": "Odd"}]), 422, odd),
        (MERGE, json!({"kind": null}), 200, ""),
        (STRATEGIC, json!({"kind": "Odd", "apiVersion": "v9"}), 200, ""),
        (
            APPLY,
            json!({"apiVersion": "v1", "kind": "Odd", "metadata": {"name": "x"}}),
            400,
            "invalid object type: /v1, Kind=Odd",
        ),
        (APPLY, json!({"apiVersion": "v1", "metadata": {"name": "x"}}), 400, "invalid object type: /v1, Kind="),
        (MERGE, json!({"metadata": {"name": null}}), 400, "(x based on URL) was undeterminable: name must be provided"),
        (MERGE, json!({"metadata": {"namespace": "y"}}), 400, "does not match the namespace sent on the request"),
    ] {
        let (got, answer) = api.typed("PATCH", &uri, kind, patch.clone()).await;
        assert_eq!(got, code, "{kind} {patch}: {answer}");
        assert!(answer["message"].as_str().unwrap_or("").contains(why), "{kind} {patch}: {answer}");
        let stored = api.get(&format!("{MAPS}/x")).await;
        assert_eq!((&stored["kind"], &stored["apiVersion"]), (&json!("ConfigMap"), &json!("v1")), "{kind} {patch}");
    }
    let nameless = json!({"apiVersion": "v1", "kind": "ConfigMap"});
    let (code, _) = api.typed("PATCH", &format!("{MAPS}/new?fieldManager=m"), APPLY, nameless).await;
    assert_eq!(code, 400, "an apply must contain the name");
}

#[tokio::test]
async fn a_scale_is_applied_by_the_owner_of_the_replicas() {
    let api = Api::start().await;
    let uri = "/apis/apps/v1/namespaces/default/deployments/d";
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let config = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    assert_eq!(api.typed("PATCH", &format!("{uri}?fieldManager=owner"), APPLY, config.clone()).await.0, 201);
    let scale = |n: i64| json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"}, "spec": {"replicas": n}});
    let (code, status) = api.typed("PATCH", &format!("{uri}/scale?fieldManager=scaler"), APPLY, scale(4)).await;
    let why = "Apply failed with 1 conflict: conflict with \"owner\": .spec.replicas";
    assert_eq!((code, &status["message"]), (409, &json!(why)), "{status}");
    let forced = format!("{uri}/scale?fieldManager=scaler&force=true");
    let (code, scaled) = api.typed("PATCH", &forced, APPLY, scale(4)).await;
    assert_eq!((code, &scaled["spec"]["replicas"]), (200, &json!(4)), "{scaled}");
    let owner = |object: &Value, subresource: &str| {
        let entries = object["metadata"]["managedFields"].as_array().unwrap();
        let owns = |e: &&Value| e["fieldsV1"]["f:spec"]["f:replicas"].is_object();
        let found: Vec<&Value> = entries.iter().filter(owns).collect();
        assert_eq!(found.len(), 1, "{entries:?}");
        assert_eq!(
            (&found[0]["apiVersion"], found[0]["subresource"].as_str().unwrap_or("")),
            (&json!("apps/v1"), subresource)
        );
        found[0]["manager"].as_str().unwrap().to_owned()
    };
    assert_eq!(owner(&api.get(uri).await, "scale"), "scaler");
    let (code, _) = api.typed("PATCH", &format!("{uri}?fieldManager=owner"), APPLY, config).await;
    assert_eq!(code, 409, "the scaler owns the replicas");
    // An update takes it over; a configuration with another version or name is rejected.
    let (code, _) = api.call("PATCH", &format!("{uri}/scale"), json!({"spec": {"replicas": 5}})).await;
    assert_eq!((code, owner(&api.get(uri).await, "scale").as_str()), (200, "test"));
    let mut wrong = scale(1);
    wrong["apiVersion"] = "apps/v1".into();
    assert_eq!(api.typed("PATCH", &forced, APPLY, wrong).await.0, 400);
    let mut wrong = scale(1);
    wrong["metadata"]["name"] = "e".into();
    assert_eq!(api.typed("PATCH", &forced, APPLY, wrong).await.0, 400);
}

#[tokio::test]
async fn fields_of_disabled_features_are_dropped_unless_in_use() {
    let pods = "/api/v1/namespaces/default/pods";
    let pod = |signal: &str| {
        json!({"metadata": {"name": "a"}, "spec": {"os": {"name": "linux"}, "containers": [
            {"name": "c", "image": "i", "lifecycle": {"stopSignal": signal}}]}})
    };
    let signal = |pod: &Value| pod["spec"]["containers"][0]["lifecycle"]["stopSignal"].clone();
    let api = Api::with(|c| {
        c.feature_gates =
            std::sync::Arc::new(kelson_meta::gates::FeatureGates::parse(["ContainerStopSignals=true"]).expect("gates"));
    })
    .await;
    assert_eq!(signal(&api.create(pods, pod("SIGUSR1")).await), "SIGUSR1");

    // The server restarts without the feature: objects with the field keep it through updates, new objects do not get it.
    let api = Api::over(api.store.clone()).await;
    let (code, kept) = api.call("PATCH", &format!("{pods}/a"), json!({"metadata": {"labels": {"x": "y"}}})).await;
    assert_eq!((code, signal(&kept)), (200, json!("SIGUSR1")), "{kept}");
    let mut new = pod("SIGUSR1");
    new["metadata"]["name"] = "b".into();
    let made = api.create(pods, new).await;
    assert!(made["spec"]["containers"][0].get("lifecycle").is_none(), "{made}");
}

const MERGE: &str = "application/merge-patch+json";
const JSON: &str = "application/json-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/default/deployments/d";

async fn with_deployment() -> Api {
    let api = Api::start().await;
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template});
    let object = json!({"metadata": {"name": "d", "labels": {"a": "b"}}, "spec": spec});
    api.create("/apis/apps/v1/namespaces/default/deployments", object).await;
    api
}

/// Status codes of kube-apiserver 1.36.2.
#[tokio::test]
async fn patches_have_upstreams_status_codes() {
    let api = with_deployment().await;
    let replace = |path: &str, value: Value| json!([{"op": "replace", "path": path, "value": value}]);
    let test = |path: &str, value: Value| json!([{"op": "test", "path": path, "value": value}]);
    let order = |key: &str, order: Value| {
        let mut pod = json!({});
        pod[format!("$setElementOrder/{key}")] = order;
        json!({"spec": {"template": {"spec": pod}}})
    };
    for (kind, patch, code) in [
        // Patches that empty the namespace.
        (MERGE, json!({"metadata": {"namespace": null}}), 200),
        (STRATEGIC, json!({"metadata": {"namespace": ""}}), 200),
        (JSON, replace("/metadata", json!({"name": "d"})), 200),
        (STRATEGIC, json!({"metadata": {"$retainKeys": ["name"], "name": "d"}}), 200),
        (STRATEGIC, json!({"metadata": {"$patch": "replace", "name": "d"}}), 200),
        (MERGE, json!({"metadata": {"namespace": "other"}}), 400),
        // Missing members.
        (JSON, replace("/spec/template/spec/tolerations", json!([])), 200),
        (JSON, replace("/metadata/annotations", json!({"a": "b"})), 200),
        (JSON, replace("/nope", json!(1)), 200),
        (JSON, replace("/metadata/annotations/a/b", json!("x")), 422),
        (JSON, test("/metadata/labels/zz", Value::Null), 200),
        (JSON, test("/zz/yy", Value::Null), 422),
        (JSON, test("/kind/a", Value::Null), 422),
        (JSON, test("/metadata/annotations/q", Value::Null), 422),
        (JSON, test("/spec/replicas", json!(1)), 200),
        (JSON, test("/spec/replicas", json!(1.0)), 422),
        (JSON, json!([{"op": "add", "path": "/metadata/labels/n"}]), 200),
        // Floats are not integers where the object is decoded as it is spelled.
        (MERGE, json!({"spec": {"replicas": 2.0}}), 422),
        (JSON, replace("/spec/replicas", json!(2.0)), 422),
        (STRATEGIC, json!({"spec": {"replicas": 2.0}}), 200),
        (MERGE, json!({"spec": {"replicas": 1}}), 200),
        // A number that the field does not hold. The reference takes it in a strategic merge, for a field that the server sets.
        (STRATEGIC, json!({"metadata": {"generation": 9_223_372_036_854_775_808_u64}}), 422),
        (MERGE, json!({"metadata": {"generation": 9_223_372_036_854_775_808_u64}}), 422),
        (STRATEGIC, json!({"spec": {"replicas": 9_223_372_036_854_775_808_u64}}), 422),
        // An object without a type.
        (MERGE, json!({"apiVersion": ""}), 400),
        (MERGE, json!({"apiVersion": null, "kind": null}), 400),
        (JSON, replace("/apiVersion", json!("")), 400),
        (MERGE, json!({"kind": ""}), 200),
        (STRATEGIC, json!({"apiVersion": ""}), 200),
        // Orders of missing lists, or of elements without their key.
        (STRATEGIC, order("zzz", json!([])), 500),
        (STRATEGIC, order("containers/x", json!([])), 500),
        (STRATEGIC, order("containers", json!(["a"])), 500),
        (STRATEGIC, order("containers", json!([{}])), 500),
        (STRATEGIC, order("containers", json!([{"name": "c"}])), 200),
    ] {
        let uri = format!("{DEPLOYMENT}?dryRun=All");
        let (got, reply) = api.typed("PATCH", &uri, kind, patch.clone()).await;
        assert_eq!(got, code, "{kind} {patch}: {reply}");
        assert!(got != 200 || reply["metadata"]["namespace"] == "default", "{patch}: {reply}");
    }
    let uri = format!("{DEPLOYMENT}?fieldValidation=Ignore");
    assert_eq!(api.typed("PATCH", &uri, MERGE, json!([{"a": 1}])).await.0, 422, "a list is not an object");
    assert_eq!(api.typed("PATCH", &uri, MERGE, json!("text")).await.0, 400);
    // For cluster-scoped kinds, a namespace is cleared.
    api.create("/api/v1/nodes", json!({"metadata": {"name": "n"}})).await;
    let (code, node) = api.call("PATCH", "/api/v1/nodes/n", json!({"metadata": {"namespace": "other"}})).await;
    assert_eq!((code, node["metadata"].get("namespace")), (200, None), "{node}");
    let cordon = replace("/spec/unschedulable", json!(true));
    let (code, node) = api.typed("PATCH", "/api/v1/nodes/n", JSON, cordon).await;
    assert_eq!((code, &node["spec"]["unschedulable"]), (200, &json!(true)), "{node}");
}

/// Media types are compared without regard to case (RFC 9110, 8.3.1), and may have space around them; the reference answers 415.
#[tokio::test]
async fn patch_types_are_media_types() {
    let api = with_deployment().await;
    let uri = format!("{DEPLOYMENT}?dryRun=All");
    for (kind, code) in [
        ("APPLICATION/MERGE-PATCH+JSON", 200),
        (" application/merge-patch+json ;x=y", 200),
        ("application/merge-patch", 415),
        ("", 415),
    ] {
        let (got, answer) = api.typed("PATCH", &uri, kind, json!({"spec": {"replicas": 2}})).await;
        assert_eq!(got, code, "{kind:?}: {answer}");
    }
}

#[tokio::test]
async fn a_merge_patch_puts_no_nulls_into_lists() {
    let api = Api::start().await;
    let limit = |max: Value| json!({"limits": [{"type": "Container", "max": max}]});
    let uri = "/api/v1/namespaces/default/limitranges";
    api.create(uri, json!({"metadata": {"name": "l"}, "spec": limit(json!({"cpu": "1", "memory": "1Gi"}))})).await;
    let patch = json!({"spec": limit(json!({"cpu": "2", "memory": null}))});
    let (code, now) = api.call("PATCH", &format!("{uri}/l"), patch).await;
    assert_eq!((code, &now["spec"]["limits"][0]["max"]), (200, &json!({"cpu": "2"})), "{now}");
}

#[tokio::test]
async fn empty_managed_fields_reset_them() {
    let api = Api::start().await;
    let managers = |object: &Value| {
        let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        entries.iter().map(|entry| entry["manager"].as_str().unwrap_or("").to_owned()).collect::<Vec<_>>()
    };
    let made =
        api.create(&format!("{MAPS}?fieldManager=first"), json!({"metadata": {"name": "x"}, "data": {"a": "1"}})).await;
    assert_eq!(managers(&made), ["first"]);
    let uri = format!("{MAPS}/x?fieldManager=second");
    for empty in [json!([]), json!([{}])] {
        let mut wanted = made.clone();
        wanted["metadata"]["managedFields"] = empty.clone();
        wanted["metadata"]["resourceVersion"] = "".into();
        let (code, now) = api.call("PUT", &format!("{uri}&dryRun=All"), wanted.clone()).await;
        assert_eq!((code, managers(&now)), (200, Vec::<String>::new()), "{empty}: {now}");
        let yaml = [("content-type", "application/yaml")];
        let response = api.raw("PUT", &uri, &yaml, wanted.to_string()).await;
        assert_eq!(response.status(), 200);
        assert_eq!(managers(&api.get(&format!("{MAPS}/x")).await), Vec::<String>::new(), "{empty}");
        // A patch that does not empty them keeps them.
        let (_, now) = api.call("PUT", &uri, made_again(&made)).await;
        assert_eq!(managers(&now), ["first"], "{now}");
    }
    for (kind, patch) in [
        (MERGE, json!({"metadata": {"managedFields": []}})),
        (JSON, json!([{"op": "replace", "path": "/metadata/managedFields", "value": []}])),
    ] {
        let (code, now) = api.typed("PATCH", &format!("{uri}&dryRun=All"), kind, patch.clone()).await;
        assert_eq!((code, managers(&now)), (200, Vec::<String>::new()), "{patch}: {now}");
    }
    // Entries of unknown versions are dropped.
    let entry = |version: &str| json!({"manager": version, "operation": "Update", "apiVersion": version, "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:z": {}}}});
    let object = json!({"metadata": {"name": "y", "managedFields": [entry("v9"), entry("v1")]}, "data": {"a": "1"}});
    let made = api.create(&format!("{MAPS}?fieldManager=first"), object).await;
    assert_eq!(managers(&made), ["v1", "first"]);
}

fn made_again(made: &Value) -> Value {
    let mut again = made.clone();
    again["metadata"]["resourceVersion"] = "".into();
    again
}

#[tokio::test]
async fn a_scale_is_written_only_to_the_object_in_its_path() {
    let api = with_deployment().await;
    let scale = |metadata: Value| json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata, "spec": {"replicas": 3}});
    let uri = format!("{DEPLOYMENT}/scale");
    for (metadata, code) in [
        (json!({"name": "d", "namespace": "kube-system"}), 400),
        (json!({"name": "d", "namespace": "default", "uid": "other"}), 409),
        (json!({"name": "d", "resourceVersion": "1"}), 409),
        (json!({"name": "d", "namespace": "default"}), 200),
    ] {
        let (got, reply) = api.call("PUT", &uri, scale(metadata.clone())).await;
        assert_eq!(got, code, "{metadata}: {reply}");
    }
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let response = api.raw("GET", &uri, &accept, "").await;
    let body = http_body_util::BodyExt::collect(response.into_body()).await.expect("a body").to_bytes();
    let table: Value = serde_json::from_slice(&body).expect("JSON");
    let names: Vec<&Value> = table["columnDefinitions"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
    assert_eq!(names, ["Name", "Desired", "Available", "Age"]);
    let cells = &table["rows"][0]["cells"];
    assert_eq!((&cells[0], &cells[1], &cells[2]), (&json!("d"), &json!(3), &json!(0)));
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let (code, reply) = api.call("PATCH", &uri, json!({"metadata": {"uid": "other"}})).await;
    assert_eq!(code, 409, "{reply}");
    let (code, reply) = api.call("PATCH", &uri, json!({"spec": {"replicas": -1}})).await;
    assert_eq!((code, &reply["details"]["causes"][0]["field"]), (422, &json!("spec.replicas")), "{reply}");
}

#[tokio::test]
async fn a_deleted_object_is_created_again_by_a_put_of_its_last_version() {
    let api = Api::start().await;
    let uri = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l";
    let lease = |version: &str| json!({"metadata": {"name": "l", "resourceVersion": version}, "spec": {}});
    let (code, reply) = api.call("PUT", uri, lease("x")).await;
    assert_eq!(code, 500, "{reply}");
    let (code, made) = api.call("PUT", uri, lease("999999")).await;
    assert_eq!(code, 201, "{made}");
}

#[tokio::test]
async fn older_versions_of_an_eviction_are_accepted() {
    let api = Api::start().await;
    let map = json!({"apiVersion": "/v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
    assert_eq!(api.create(MAPS, map).await["apiVersion"], "v1");
    let (code, _) =
        api.call("POST", MAPS, json!({"apiVersion": "/v2", "kind": "ConfigMap", "metadata": {"name": "n"}})).await;
    assert_eq!(code, 400);
    let pods = "/api/v1/namespaces/default/pods";
    api.create(pods, json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})).await;
    let eviction = |version: &str| json!({"apiVersion": version, "kind": "Eviction", "metadata": {"name": "p"}});
    for (version, code) in [("policy/v1beta2", 400), ("policy/v1beta1", 201)] {
        let (got, reply) = api.call("POST", &format!("{pods}/p/eviction"), eviction(version)).await;
        assert_eq!(got, code, "{version}: {reply}");
    }
}
