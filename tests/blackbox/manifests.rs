//! Files in a server's manifest directory: applied at startup and when they change, retried, skipped, pruned on
//! request.
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::{Needs::OwnServer, Outcome, Process, Subject, Test, eventually};

/// A change is detected within a second; a loaded debug build takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn tests() -> Vec<Test> {
    vec![Test { name: "manifests::files_become_objects", needs: OwnServer, run: files_become_objects }]
}

const DEFINITION: &str = "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";
const WIDGET: &str = "apiVersion: example.com/v1
kind: Widget
metadata: {name: w, namespace: shop}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: plain, namespace: shop}
data: {a: \"1\"}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: opted
  namespace: shop
  annotations: {manifests.kelson.dev/prune: \"true\"}
";

fn files_become_objects(_: &Subject) -> Outcome {
    let server = Process::start(&["--disable-agent"], Path::new("/nonexistent"))?;
    let (k, dir) = (server.kubectl(), server.dir.join("manifests"));
    let write = |name: &str, content: &str| {
        let file = dir.join(name);
        std::fs::create_dir_all(file.parent().context("a directory")?)?;
        std::fs::write(&file, content).with_context(|| file.display().to_string())
    };
    let map = |name: &str| k.run(&["-n", "shop", "get", "configmap", name, "-o", "jsonpath={.data.a}"]);
    let is = |name: &str, value: Option<&str>| {
        eventually(name, PATIENCE, || {
            let out = map(name)?;
            let found = (out.code == 0).then_some(out.stdout.as_str());
            ensure!(found == value, "{name}: {found:?}, expected {value:?}");
            Ok(())
        })
    };
    // A dependency comes in a later file, and in a subdirectory.
    write("10-widget.yaml", WIDGET)?;
    write("deep/20-definition.yml", DEFINITION)?;
    write("30-shop.json", r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}"#)?;
    is("plain", Some("1"))?;
    eventually("the widget", PATIENCE, || k.ok(&["-n", "shop", "get", "widgets.example.com", "w"]).map(drop))?;
    let managers = k.ok(&[
        "-n",
        "shop",
        "get",
        "configmap",
        "plain",
        "-o",
        "jsonpath={.metadata.managedFields[*].manager}",
        "--show-managed-fields",
    ])?;
    ensure!(managers == "kelson-manifests", "{managers}");
    // An error is an event, and the other files are applied.
    write("40-broken.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: [")?;
    eventually("the event", PATIENCE, || {
        let events = k.ok(&[
            "-n",
            "kube-system",
            "get",
            "events",
            "-o",
            "jsonpath={range .items[*]}{.reason} {.message}{\"\\n\"}{end}",
        ])?;
        ensure!(events.contains("ParseManifestFailed") && events.contains("40-broken.yaml"), "{events}");
        Ok(())
    })?;
    std::fs::remove_file(dir.join("40-broken.yaml"))?;
    // A skipped file is ignored, whatever its content.
    write("10-widget.yaml.skip", "")?;
    write("10-widget.yaml", &WIDGET.replace("\"1\"", "\"2\""))?;
    write(
        "50-other.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other, namespace: shop}\ndata: {a: x}\n",
    )?;
    is("other", Some("x"))?;
    is("plain", Some("1"))?;
    std::fs::remove_file(dir.join("10-widget.yaml.skip"))?;
    is("plain", Some("2"))?;
    // While the server is down its files are removed: only objects with the prune annotation are deleted.
    server.terminate()?;
    std::fs::remove_file(dir.join("10-widget.yaml"))?;
    server.launch()?;
    is("opted", None)?;
    is("plain", Some("2"))?;
    server.finish(false)
}
