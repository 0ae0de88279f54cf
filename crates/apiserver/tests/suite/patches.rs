//! What patches may not make of an object, the apply of a scale, and fields of features that are off.

use crate::common::Api;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const APPLY: &str = "application/apply-patch+yaml";

#[tokio::test]
async fn no_patch_makes_another_kind_of_an_object() {
    let api = Api::start().await;
    api.create(MAPS, json!({"metadata": {"name": "x"}})).await;
    let uri = format!("{MAPS}/x?fieldManager=m");
    const MERGE: &str = "application/merge-patch+json";
    const STRATEGIC: &str = "application/strategic-merge-patch+json";
    const JSON: &str = "application/json-patch+json";
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
    assert_eq!(code, 400, "what apply makes says its name");
}

#[tokio::test]
async fn a_scale_is_applied_by_who_owns_the_count() {
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
    assert_eq!(code, 409, "the count is the scaler's now");
    // A plain write takes it over, and a configuration of another version or name is refused.
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
async fn fields_of_features_that_are_off_are_dropped_unless_they_are_in_use() {
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

    // The server is started again without the feature: what has the field keeps it through updates, what is new does not get it.
    let api = Api::over(api.store.clone()).await;
    let (code, kept) = api.call("PATCH", &format!("{pods}/a"), json!({"metadata": {"labels": {"x": "y"}}})).await;
    assert_eq!((code, signal(&kept)), (200, json!("SIGUSR1")), "{kept}");
    let mut new = pod("SIGUSR1");
    new["metadata"]["name"] = "b".into();
    let made = api.create(pods, new).await;
    assert!(made["spec"]["containers"][0].get("lifecycle").is_none(), "{made}");
}
