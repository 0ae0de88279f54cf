//! Custom resources: a definition serves its kinds when the POST is answered, takes names that are free, and takes its
//! objects along when it goes.
mod common;

use common::{Api, Lines};
use serde_json::{Value, json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn definition(plural: &str, kind: &str, versions: Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.example.com")},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind, "shortNames": [&plural[..1]], "categories": ["all"]},
            "versions": versions,
        },
    })
}

fn version(name: &str, storage: bool) -> Value {
    json!({"name": name, "served": true, "storage": storage,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
}

fn one_version() -> Value {
    json!([version("v1", true)])
}

fn path(version: &str, plural: &str) -> String {
    format!("/apis/example.com/{version}/namespaces/default/{plural}")
}

fn object(version: &str, kind: &str, name: &str) -> Value {
    json!({"apiVersion": format!("example.com/{version}"), "kind": kind, "metadata": {"name": name}, "spec": {"n": 1}})
}

fn condition(definition: &Value, kind: &str) -> String {
    let all = definition["status"]["conditions"].as_array().expect("conditions");
    let found = all.iter().find(|c| c["type"] == kind);
    let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
    found.map_or("none".into(), |c| format!("{} {}", text(&c["status"]), text(&c["reason"])))
}

/// Waits for an object to be as wanted, by its watch.
async fn until(api: &Api, uri: &str, name: &str, wanted: impl Fn(&str, &Value) -> bool) -> Value {
    let watch = format!("{uri}?watch=1&fieldSelector=metadata.name%3D{name}");
    let mut lines = Lines::new(api.raw("GET", &watch, &[], "").await);
    loop {
        let event = lines.next().await.expect("an event");
        if wanted(event["type"].as_str().unwrap_or(""), &event["object"]) {
            return event["object"].clone();
        }
    }
}

#[tokio::test]
async fn a_kind_is_served_when_its_definition_is_answered() {
    let api = Api::start().await;
    let made = api.create(DEFINITIONS, definition("widgets", "Widget", one_version())).await;
    assert_eq!(condition(&made, "NamesAccepted"), "True NoConflicts");
    assert_eq!(condition(&made, "Established"), "True InitialNamesAccepted");
    assert_eq!(made["status"]["acceptedNames"], made["spec"]["names"]);
    assert_eq!(made["status"]["storedVersions"], json!(["v1"]));
    let created = api.create(&path("v1", "widgets"), object("v1", "Widget", "a")).await;
    assert_eq!(created["metadata"]["generation"], 1);
    let groups = api.get("/apis").await;
    let last = groups["groups"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&last["name"], &last["preferredVersion"]["version"]), (&json!("example.com"), &json!("v1")));
    let resources = api.get("/apis/example.com/v1").await;
    let entry = &resources["resources"][0];
    assert_eq!((&entry["shortNames"], &entry["categories"]), (&json!(["w"]), &json!(["all"])));
    assert_eq!(entry["singularName"], "widget");
    assert_eq!(entry["storageVersionHash"].as_str().map(str::len), Some(12));
    let index = api.get("/openapi/v3").await;
    assert!(index["paths"]["apis/example.com/v1"].is_object());
}

#[tokio::test]
async fn definitions_are_served_again_after_a_restart() {
    let api = Api::start().await;
    api.create(DEFINITIONS, definition("widgets", "Widget", one_version())).await;
    api.create(&path("v1", "widgets"), object("v1", "Widget", "a")).await;
    let again = Api::over(api.store.clone()).await;
    assert_eq!(again.get(&path("v1", "widgets")).await["items"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_name_belongs_to_one_definition_of_its_group() {
    let api = Api::start().await;
    api.create(DEFINITIONS, definition("widgets", "Widget", one_version())).await;
    let second = api.create(DEFINITIONS, definition("gadgets", "Widget", one_version())).await;
    assert_eq!(condition(&second, "NamesAccepted"), "False ListKindConflict");
    assert_eq!(condition(&second, "Established"), "False NotAccepted");
    let (code, _) = api.call("GET", &path("v1", "gadgets"), Value::Null).await;
    assert_eq!(code, 404);
    let (code, _) = api.call("DELETE", &format!("{DEFINITIONS}/widgets.example.com"), Value::Null).await;
    assert_eq!(code, 200);
    let established = |_: &str, d: &Value| condition(d, "Established") == "True InitialNamesAccepted";
    until(&api, DEFINITIONS, "gadgets.example.com", established).await;
    api.get(&path("v1", "gadgets")).await;
}

#[tokio::test]
async fn a_definition_takes_its_objects_along() {
    let api = Api::start().await;
    api.create(DEFINITIONS, definition("widgets", "Widget", one_version())).await;
    api.create(&path("v1", "widgets"), object("v1", "Widget", "a")).await;
    let mut held = object("v1", "Widget", "held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.create(&path("v1", "widgets"), held).await;
    let (code, marked) = api.call("DELETE", &format!("{DEFINITIONS}/widgets.example.com"), Value::Null).await;
    assert_eq!((code, condition(&marked, "Terminating").as_str()), (200, "True InstanceDeletionPending"));
    assert_eq!(marked["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    let (code, why) = api.call("POST", &path("v1", "widgets"), object("v1", "Widget", "late")).await;
    assert_eq!(code, 403, "{why}");
    assert!(
        why["message"]
            .as_str()
            .unwrap()
            .ends_with("create not allowed while custom resource definition is terminating")
    );
    let underway = |_: &str, d: &Value| condition(d, "Terminating") == "True InstanceDeletionInProgress";
    until(&api, DEFINITIONS, "widgets.example.com", underway).await;
    let held = format!("{}/held", path("v1", "widgets"));
    let (code, _) = api.call("PATCH", &held, json!({"metadata": {"finalizers": null}})).await;
    assert_eq!(code, 200);
    until(&api, DEFINITIONS, "widgets.example.com", |event, _| event == "DELETED").await;
    let (code, _) = api.call("GET", &path("v1", "widgets"), Value::Null).await;
    assert_eq!(code, 404);
    let (code, _) = api.call("GET", "/apis/example.com", Value::Null).await;
    assert_eq!(code, 404, "the group went with its last kind");
    assert_eq!(api.store.count(kelson_store::Resource::new("example.com", "widgets")), 0);
}

#[tokio::test]
async fn versions_come_and_go_with_updates_of_the_definition() {
    let api = Api::start().await;
    api.create(DEFINITIONS, definition("widgets", "Widget", one_version())).await;
    api.create(&path("v1", "widgets"), object("v1", "Widget", "a")).await;
    let name = format!("{DEFINITIONS}/widgets.example.com");
    let mut first = version("v1", false);
    first["deprecated"] = true.into();
    let patch = json!({"spec": {"versions": [first, version("v2", true)]}});
    let (code, changed) = api.call("PATCH", &name, patch).await;
    assert_eq!((code, &changed["status"]["storedVersions"]), (200, &json!(["v1", "v2"])), "{changed}");
    assert_eq!(changed["metadata"]["generation"], 2);
    let read = api.get(&format!("{}/a", path("v2", "widgets"))).await;
    assert_eq!((&read["apiVersion"], &read["spec"]["n"]), (&json!("example.com/v2"), &json!(1)));
    let old = api.raw("GET", &format!("{}/a", path("v1", "widgets")), &[], "").await;
    let warning = old.headers().get("warning").and_then(|w| w.to_str().ok());
    assert_eq!(warning, Some("299 - \"example.com/v1 Widget is deprecated; use example.com/v2 Widget\""));
    // A write stores the object in the version that is stored now, and watchers of both versions see it in theirs.
    let mut watch = Lines::new(api.raw("GET", &format!("{}?watch=1", path("v1", "widgets")), &[], "").await);
    assert_eq!(watch.next().await.expect("an event")["object"]["apiVersion"], "example.com/v1");
    let (code, _) = api.call("PATCH", &format!("{}/a", path("v2", "widgets")), json!({"spec": {"n": 2}})).await;
    assert_eq!(code, 200);
    let event = watch.next().await.expect("an event");
    assert_eq!((&event["object"]["apiVersion"], &event["object"]["spec"]["n"]), (&json!("example.com/v1"), &json!(2)));
    let resource = kelson_store::Resource::new("example.com", "widgets");
    let stored = api.store.get(resource, "default", "a").expect("stored");
    assert!(stored.bytes().starts_with(b"{\"apiVersion\":\"example.com/v2\""));
    let groups = api.get("/apis/example.com").await;
    assert_eq!(groups["preferredVersion"]["version"], "v2");
    let mut unserved = version("v1", false);
    unserved["served"] = false.into();
    let (code, _) = api.call("PATCH", &name, json!({"spec": {"versions": [unserved, version("v2", true)]}})).await;
    assert_eq!(code, 200);
    let (code, _) = api.call("GET", &path("v1", "widgets"), Value::Null).await;
    assert_eq!(code, 404);
}
