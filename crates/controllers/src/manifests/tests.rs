//! Manifests on the API server in memory: applied, tried again, pruned.
use std::sync::Arc;

use kelson_metrics::Registry;
use kelson_simulation::Api;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::desired::PRUNE;
use super::parent::{NAME, NAMESPACE};
use crate::testing::run;
use crate::{Config, ManifestError, ManifestFile, ManifestSet, Running};

const MAPS: &str = "v1/configmaps";

fn map(namespace: &str, name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": {"a": value}})
}

fn file(name: &str, objects: &[Value]) -> ManifestFile {
    let mut digest = [0; 32];
    let text = serde_json::to_string(objects).unwrap();
    text.bytes().enumerate().for_each(|(at, byte)| digest[at % 32] ^= byte.rotate_left(at as u32 / 32));
    let objects = objects.iter().cloned().map(Arc::new).collect();
    ManifestFile { name: name.to_owned(), digest, skipped: false, objects: Ok(objects) }
}

fn set(files: &[ManifestFile]) -> Arc<ManifestSet> {
    Arc::new(ManifestSet { files: files.to_vec(), complete: true, prunes: false })
}

struct Fixture {
    api: Api,
    files: watch::Sender<Arc<ManifestSet>>,
    metrics: Registry,
    running: Running,
}

async fn fixture(first: Arc<ManifestSet>) -> Fixture {
    let api = Api::start().await;
    api.namespace("n").await;
    with(api, first).await
}

async fn with(api: Api, first: Arc<ManifestSet>) -> Fixture {
    let (files, manifests) = watch::channel(first);
    let metrics = Registry::of_component();
    let config = Config { manifests, metrics: metrics.clone(), ..Config::default() };
    let running = run(&api, &["manifests-controller"], config).await;
    Fixture { api, files, metrics, running }
}

async fn data(api: &Api, name: &str) -> Option<String> {
    Some(api.get(MAPS, "n", name).await?["data"]["a"].as_str()?.to_owned())
}

async fn becomes(api: &Api, name: &str, value: Option<&str>) {
    let what = format!("{name} is {value:?}");
    api.until(&what, async |api| (data(api, name).await.as_deref() == value).then_some(())).await;
}

async fn status(api: &Api) -> String {
    let parent = api.get(MAPS, NAMESPACE, NAME).await.unwrap_or_default();
    parent["data"]["status"].as_str().unwrap_or_default().to_owned()
}

async fn status_is(api: &Api, part: &str) -> String {
    api.until(part, async |api| Some(status(api).await).filter(|status| status.contains(part))).await
}

#[tokio::test(start_paused = true)]
async fn files_are_applied_at_the_start_and_when_they_change() {
    let f = fixture(set(&[file("a.yaml", &[map("n", "one", "1")])])).await;
    becomes(&f.api, "one", Some("1")).await;
    let managed = f.api.get(MAPS, "n", "one").await.unwrap()["metadata"]["managedFields"].clone();
    assert_eq!((&managed[0]["manager"], &managed[0]["operation"]), (&json!("kelson-manifests"), &json!("Apply")));
    // What others change stays until the file changes.
    f.api.change(MAPS, "n", "one", |v| v["data"]["a"] = json!("user's")).await;
    f.files.send_replace(set(&[file("a.yaml", &[map("n", "one", "1")]), file("b.yaml", &[map("n", "two", "1")])]));
    becomes(&f.api, "two", Some("1")).await;
    assert_eq!(data(&f.api, "one").await.as_deref(), Some("user's"));
    f.files.send_replace(set(&[file("a.yaml", &[map("n", "one", "2")])]));
    becomes(&f.api, "one", Some("2")).await;
    f.api.settle().await;
    assert_eq!(data(&f.api, "two").await.as_deref(), Some("1"), "an object stays when its file goes");
    assert_eq!(status(&f.api).await, "a.yaml: 1 objects applied");
    assert!(f.api.events().await.iter().any(|e| e.contains("AppliedManifest")));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_without_manifests() {
    let f = fixture(set(&[])).await;
    f.api.settle().await;
    assert!(f.api.get(MAPS, NAMESPACE, NAME).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn namespaces_come_first_and_definitions_before_their_objects() {
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
    });
    let widget =
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w", "namespace": "shop"}});
    let shop = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
    let f =
        fixture(set(&[file("1.yaml", &[widget, map("shop", "m", "1")]), file("2.yaml", &[definition, shop])])).await;
    let definitions = "apiextensions.k8s.io/v1/customresourcedefinitions";
    f.api
        .until("the kind is served", async |api| {
            let definition = api.get(definitions, "", "widgets.example.com").await?;
            let conditions = definition["status"]["conditions"].as_array()?.clone();
            conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True").then_some(())
        })
        .await;
    f.api.until("the widget", async |api| api.get("example.com/v1/widgets", "shop", "w").await).await;
    f.api.until("what comes after it", async |api| api.get(MAPS, "shop", "m").await).await;
}

#[tokio::test(start_paused = true)]
async fn what_fails_is_tried_again_and_reported_once() {
    let f = fixture(set(&[file("a.yaml", &[map("later", "one", "1"), map("n", "two", "1")])])).await;
    becomes(&f.api, "two", Some("1")).await;
    let said = status_is(&f.api, "later").await;
    assert!(said.starts_with("a.yaml: ConfigMap later/one: namespaces \"later\" not found"), "{said}");
    assert!(f.metrics.text().contains("kelson_manifest_failing_files 1"), "{}", f.metrics.text());
    tokio::time::sleep(std::time::Duration::from_secs(300)).await;
    let failures = f.api.events().await.into_iter().filter(|e| e.contains("ApplyManifestFailed")).count();
    assert_eq!(failures, 1, "the same failure is one event");
    f.api.namespace("later").await;
    status_is(&f.api, "2 objects applied").await;
    assert!(f.api.get(MAPS, "later", "one").await.is_some());
    f.api
        .until("the metric", async |_| f.metrics.text().contains("kelson_manifest_failing_files 0").then_some(()))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_file_that_cannot_be_read_is_reported_and_the_others_are_applied() {
    let broken =
        ManifestFile { objects: Err(ManifestError::Syntax("line 3: no YAML".into())), ..file("broken.yaml", &[]) };
    let skipped = ManifestFile { skipped: true, ..file("left.yaml", &[map("n", "left", "1")]) };
    let f = fixture(set(&[broken, file("a.yaml", &[map("n", "one", "1")]), skipped])).await;
    becomes(&f.api, "one", Some("1")).await;
    let said = status_is(&f.api, "a.yaml").await;
    assert_eq!(said, "broken.yaml: line 3: no YAML\na.yaml: 1 objects applied\nleft.yaml: skipped");
    assert!(f.api.events().await.iter().any(|e| e.contains("ParseManifestFailed") && e.contains("line 3")));
    assert!(data(&f.api, "left").await.is_none());
}

#[tokio::test(start_paused = true)]
async fn only_what_asks_for_it_is_pruned() {
    let opted = |name: &str| {
        let mut object = map("n", name, "1");
        object["metadata"]["annotations"] = json!({PRUNE: "true"});
        object
    };
    let first = [file("a.yaml", &[opted("gone"), map("n", "stays", "1")]), file("b.yaml", &[opted("kept")])];
    let f = fixture(set(&first)).await;
    for name in ["gone", "stays", "kept"] {
        becomes(&f.api, name, Some("1")).await;
    }
    status_is(&f.api, "a.yaml: 2").await;
    // As long as a file cannot be read, it is not known what is in it.
    let unknown = ManifestFile { objects: Err(ManifestError::Syntax("no YAML".into())), ..file("a.yaml", &[]) };
    f.files.send_replace(set(&[unknown, first[1].clone()]));
    status_is(&f.api, "no YAML").await;
    assert!(data(&f.api, "gone").await.is_some());
    let skipped = ManifestFile { skipped: true, ..first[1].clone() };
    f.files.send_replace(set(&[skipped]));
    becomes(&f.api, "gone", None).await;
    f.api.settle().await;
    assert!(data(&f.api, "stays").await.is_some() && data(&f.api, "kept").await.is_some());
    let parent = f.api.get(MAPS, NAMESPACE, NAME).await.unwrap();
    assert_eq!(parent["metadata"]["annotations"]["applyset.kubernetes.io/contains-group-kinds"], "ConfigMap");
}

#[tokio::test(start_paused = true)]
async fn what_went_while_the_server_was_down_is_pruned_at_its_start() {
    let all = |files: &[ManifestFile]| Arc::new(ManifestSet { prunes: true, files: files.to_vec(), complete: true });
    let mut exempt = map("n", "exempt", "1");
    exempt["metadata"]["annotations"] = json!({PRUNE: "false"});
    let f = fixture(all(&[file("a.yaml", &[map("n", "gone", "1"), exempt])])).await;
    status_is(&f.api, "a.yaml: 2").await;
    let Fixture { api, running, .. } = f;
    running.shutdown().await;
    let f = with(api, all(&[])).await;
    becomes(&f.api, "gone", None).await;
    assert!(data(&f.api, "exempt").await.is_some());
}

#[test]
fn long_reasons_are_cut() {
    assert_eq!(super::shortened("äöü", 3), "äöü");
    assert_eq!(super::shortened("äöüß", 3), "äöü…");
}
