//! Migrations of custom and built-in resources, undisturbed and with each write failing once.
use std::sync::Arc;

use kelson_meta::gates::FeatureGates;
use kelson_simulation::{Api, Failure, at_every_request_with, features};
use serde_json::{Value, json};

use crate::testing::run;
use crate::{Config, Running};

const DEFINITIONS: &str = "apiextensions.k8s.io/v1/customresourcedefinitions";
const MIGRATIONS: &str = "storagemigration.k8s.io/v1beta1/storageversionmigrations";
const GATE: &str = "StorageVersionMigrator=true";
const SERVED: &str = "storagemigration.k8s.io/v1beta1=true";

async fn migrator(api: &Api) -> Running {
    let config = Config { feature_gates: Arc::new(FeatureGates::parse([GATE]).unwrap()), ..Config::default() };
    run(api, &["storage-version-migrator-controller"], config).await
}

/// A definition with two versions, of which one is stored.
fn definition(stored: &str) -> Value {
    let version = |name: &str| {
        json!({"name": name, "served": true, "storage": name == stored, "schema": {"openAPIV3Schema": {
            "type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}})
    };
    json!({"metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"}, "versions": [version("v1"), version("v2")]}})
}

fn migration(name: &str, group: &str, resource: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"resource": {"group": group, "resource": resource}}})
}

fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let all = object["status"]["conditions"].as_array();
    all.and_then(|all| all.iter().find(|c| c["type"] == kind)).unwrap_or(&Value::Null)
}

/// Waits until a migration is finished and its status is written.
async fn over(api: &Api, name: &str) -> Value {
    api.until("the end of a migration", async |api: &Api| {
        let m = api.get(MIGRATIONS, "", name).await?;
        let ended = ["Succeeded", "Failed"].iter().any(|kind| condition(&m, kind)["status"] == "True");
        (ended && condition(&m, "Running")["status"] == "False").then_some(m)
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn custom_objects_are_stored_in_the_version_of_now() {
    // A conflict would mean that another client has rewritten the object.
    let failures = [Failure::Refused, Failure::LostAnswer];
    at_every_request_with(&features(GATE, SERVED), &failures, async |api: Api| {
        api.create(DEFINITIONS, definition("v1")).await;
        let kind = "example.com/v2/widgets";
        api.until("the kind", async |api: &Api| {
            api.client().call(http::Method::GET, "/apis/example.com/v2/widgets", "", bytes::Bytes::new()).await.ok()
        })
        .await;
        for name in ["a", "b"] {
            let metadata = json!({"name": name, "namespace": "default"});
            let widget =
                json!({"apiVersion": "example.com/v2", "kind": "Widget", "metadata": metadata, "spec": {"size": 1}});
            api.create(kind, widget).await;
        }
        let version =
            async |name: &str| api.get(kind, "default", name).await.unwrap()["metadata"]["resourceVersion"].clone();
        let before = [version("a").await, version("b").await];
        api.change(DEFINITIONS, "", "widgets.example.com", |d| {
            d["spec"]["versions"] = definition("v2")["spec"]["versions"].clone()
        })
        .await;
        let of_definition = async || api.get(DEFINITIONS, "", "widgets.example.com").await.unwrap();
        assert_eq!(of_definition().await["status"]["storedVersions"], json!(["v1", "v2"]));
        // Written before the migration starts, so it is already stored in the new version.
        api.patch(kind, "default", "b", "", json!({"metadata": {"labels": {"x": "y"}}})).await;
        let b = version("b").await;

        let _running = migrator(&api).await;
        api.create(MIGRATIONS, migration("first", "example.com", "widgets")).await;
        let first = over(&api, "first").await;
        assert_eq!(condition(&first, "Succeeded")["reason"], "StorageVersionMigrationSucceeded");
        assert_eq!(condition(&first, "Running")["reason"], "MigrationCompleted");
        assert!(first["status"]["resourceVersion"].is_string(), "{first}");
        assert_ne!(version("a").await, before[0]);
        assert_eq!(version("b").await, b);
        assert_ne!(b, before[1]);
        let a = api.get(kind, "default", "a").await.unwrap();
        let managers = a["metadata"]["managedFields"].as_array().unwrap();
        assert!(managers.iter().all(|m| m["manager"] != super::MANAGER), "who owns nothing is not listed: {a}");
        let reported = of_definition().await;
        assert_eq!(reported["status"]["storedVersions"], json!(["v2"]));
        let migrating = condition(&reported, "StorageMigrating");
        assert_eq!((&migrating["status"], &migrating["reason"]), (&json!("False"), &json!("MigrationSucceeded")));
        assert_eq!(migrating["observedGeneration"], reported["metadata"]["generation"]);

        // There is nothing left to be done for another one.
        let stored = version("a").await;
        api.create(MIGRATIONS, migration("second", "example.com", "widgets")).await;
        over(&api, "second").await;
        assert_eq!(version("a").await, stored);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_runs_after_the_other_and_what_cannot_be_migrated_fails() {
    let api = Api::with(features(GATE, SERVED)).await;
    for name in ["c", "a", "b"] {
        api.create(MIGRATIONS, migration(name, "", "configmaps")).await;
    }
    api.create(MIGRATIONS, migration("components", "", "componentstatuses")).await;
    api.create(MIGRATIONS, migration("unknown", "example.org", "things")).await;
    let _running = migrator(&api).await;
    let mut positions = Vec::new();
    for name in ["a", "b", "c"] {
        let m = over(&api, name).await;
        assert_eq!(condition(&m, "Succeeded")["status"], "True", "{m}");
        positions.push(m["status"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap());
    }
    // All were made in one second: their names say who is first, and each begins when the one before it is over.
    assert!(positions.is_sorted_by(|x, y| x < y), "{positions:?}");
    let failed = |m: &Value| condition(m, "Failed")["message"].as_str().unwrap_or("").to_owned();
    let why =
        r#"resource "/v1, Resource=componentstatuses" does not support discovery operations: [update patch list]"#;
    assert_eq!(failed(&over(&api, "components").await), why);
    assert_eq!(failed(&over(&api, "unknown").await), "resource does not exist in discovery");
}

#[tokio::test(start_paused = true)]
async fn a_definition_that_changed_meanwhile_keeps_its_versions() {
    let api = Api::with(features(GATE, SERVED)).await;
    api.create(DEFINITIONS, definition("v1")).await;
    api.change(DEFINITIONS, "", "widgets.example.com", |d| {
        d["spec"]["versions"] = definition("v2")["spec"]["versions"].clone()
    })
    .await;
    // It started with the first version of the definition and is finished, but the definition's status is not written
    // yet.
    let mut status = api.get(DEFINITIONS, "", "widgets.example.com").await.unwrap()["status"].clone();
    status["conditions"].as_array_mut().unwrap().push(json!({"type": "StorageMigrating", "status": "True",
        "reason": "MigrationRunning", "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}));
    api.patch(DEFINITIONS, "", "widgets.example.com", "status", json!({"status": status})).await;
    let ended = json!({"conditions": [
        {"type": "Running", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        {"type": "Succeeded", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    let mut first = migration("first", "example.com", "widgets");
    first["status"] = ended;
    api.create(MIGRATIONS, first).await;
    let _running = migrator(&api).await;
    over(&api, "first").await;
    let reported = api.get(DEFINITIONS, "", "widgets.example.com").await.unwrap();
    assert_eq!(reported["status"]["storedVersions"], json!(["v1", "v2"]));
    let message = condition(&reported, "StorageMigrating")["message"].as_str().unwrap_or("");
    assert!(message.ends_with("due to a generation mismatch"), "{reported}");
}
