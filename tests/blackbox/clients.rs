//! Clients other than kubectl: one that only uses protobuf, the Python client, and controllers with users on
//! controller-runtime and `kube` (separate programs, in `tests/go` and `tests/kube`).
use std::process::Command;

use anyhow::{Context as _, ensure};
use kelson_blackbox::{
    Needs::{Api, Clients},
    Outcome, Output, Raw, Subject, Test, program,
};

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "clients::protobuf_alone", needs: Api, run: protobuf_alone },
        Test { name: "clients::python", needs: Api, run: python },
        Test { name: "clients::controller_runtime", needs: Clients, run: |s| whole_program(s, "controller") },
        Test { name: "clients::kube", needs: Clients, run: |s| whole_program(s, "kelson-kube-client") },
    ]
}

/// The part of protocol buffers that a ConfigMap needs: fields of bytes, each with its number.
mod wire {
    /// Encodes a field of bytes.
    pub fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2];
        let mut length = bytes.len();
        while length > 0x7f {
            out.push(u8::try_from(length & 0x7f).unwrap_or(0) | 0x80);
            length >>= 7;
        }
        out.push(u8::try_from(length).unwrap_or(0));
        out.extend(bytes);
        out
    }

    fn number(bytes: &mut &[u8]) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = bytes.split_first()?;
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// Returns the fields of bytes in a message, in order; others are skipped.
    pub fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, &[u8])>> {
        let mut out = Vec::new();
        while !bytes.is_empty() {
            let tag = number(&mut bytes)?;
            match tag & 7 {
                0 => drop(number(&mut bytes)?),
                2 => {
                    let length = usize::try_from(number(&mut bytes)?).ok()?;
                    out.push((tag >> 3, bytes.get(..length)?));
                    bytes = bytes.get(length..)?;
                }
                _ => return None,
            }
        }
        Some(out)
    }

    /// Returns the first field with this number.
    pub fn get(bytes: &[u8], wanted: u64) -> Option<&[u8]> {
        fields(bytes)?.into_iter().find(|(number, _)| *number == wanted).map(|(_, bytes)| bytes)
    }
}

const MAGIC: &[u8; 4] = b"k8s\0";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Encodes a document: its version and kind, and the message.
fn document(version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let meta = [wire::field(1, version.as_bytes()), wire::field(2, kind.as_bytes())].concat();
    [MAGIC.to_vec(), wire::field(1, &meta), wire::field(2, message)].concat()
}

/// Decodes a document to its kind and its message.
fn opened(document: &[u8]) -> Option<(String, &[u8])> {
    let body = document.strip_prefix(MAGIC)?;
    let kind = wire::get(wire::get(body, 1)?, 2)?;
    Some((String::from_utf8_lossy(kind).into_owned(), wire::get(body, 2)?))
}

/// Encodes a ConfigMap with this name, version and data (`metadata` 1: name 1, namespace 3, resourceVersion 6; `data`
/// 2).
fn config_map(name: &str, version: &str, data: &[(&str, &str)]) -> Vec<u8> {
    let mut metadata = [wire::field(1, name.as_bytes()), wire::field(3, b"default")].concat();
    if !version.is_empty() {
        metadata.extend(wire::field(6, version.as_bytes()));
    }
    let mut out = wire::field(1, &metadata);
    for (key, value) in data {
        out.extend(wire::field(2, &[wire::field(1, key.as_bytes()), wire::field(2, value.as_bytes())].concat()));
    }
    out
}

fn text(bytes: Option<&[u8]>) -> String {
    String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned()
}

/// Returns name, resourceVersion and data of a ConfigMap.
fn reported(message: &[u8]) -> anyhow::Result<(String, String, Vec<(String, String)>)> {
    let metadata = wire::get(message, 1).context("metadata")?;
    let entries = wire::fields(message).context("a message")?.into_iter().filter(|(number, _)| *number == 2);
    let data = entries.map(|(_, entry)| (text(wire::get(entry, 1)), text(wire::get(entry, 2)))).collect();
    Ok((text(wire::get(metadata, 1)), text(wire::get(metadata, 6)), data))
}

fn protobuf_alone(s: &Subject) -> Outcome {
    let raw = Raw::open(&s.kubectl)?;
    let path = "/api/v1/namespaces/default/configmaps";
    let (accept, kind) = (format!("Accept: {PROTOBUF}"), format!("Content-Type: {PROTOBUF}"));
    let ask = |method: &str, path: &str, body: &[u8]| raw.send(method, path, &[&accept, &kind], body);
    let made = ask("POST", path, &document("v1", "ConfigMap", &config_map("binary", "", &[("a", "1"), ("b", "ü")])))?;
    ensure!(made.code == 201 && made.kind == PROTOBUF, "{} {}", made.code, made.kind);
    let (name, message) = opened(&made.body).context("a document")?;
    ensure!(name == "ConfigMap", "{name}");
    let (name, version, data) = reported(message)?;
    let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
    ensure!(name == "binary" && data == [pair("a", "1"), pair("b", "ü")], "{name} {data:?}");
    let one = format!("{path}/binary");
    let changed = document("v1", "ConfigMap", &config_map("binary", &version, &[("a", "2")]));
    let put = ask("PUT", &one, &changed)?;
    ensure!(put.code == 200, "{}", put.code);
    let stale = ask("PUT", &one, &changed)?;
    ensure!(stale.code == 409 && opened(&stale.body).is_some_and(|(kind, _)| kind == "Status"), "{}", stale.code);
    let got = ask("GET", &one, b"")?;
    let (_, newer, data) = reported(opened(&got.body).context("a document")?.1)?;
    ensure!(data == [pair("a", "2")] && newer != version, "{data:?}");
    let list = ask("GET", &format!("{path}?fieldSelector=metadata.name%3Dbinary"), b"")?;
    let (kind_of_list, list_message) = opened(&list.body).context("a list")?;
    let items: Vec<_> = wire::fields(list_message).context("items")?.into_iter().filter(|(n, _)| *n == 2).collect();
    ensure!(
        kind_of_list == "ConfigMapList" && items.len() == 1 && reported(items[0].1)?.0 == "binary",
        "{kind_of_list}"
    );
    // Frames of a watch: four bytes of length, then a WatchEvent (1: type, 2: the object as raw bytes).
    let query =
        format!("{path}?watch=1&resourceVersion={version}&fieldSelector=metadata.name%3Dbinary&timeoutSeconds=2");
    let watch = raw.send("GET", &query, &[&format!("Accept: {PROTOBUF};stream=watch")], b"")?;
    ensure!(watch.kind.starts_with(&format!("{PROTOBUF};stream=watch")), "{}", watch.kind);
    let length =
        watch.body.get(..4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]) as usize).context("a frame")?;
    let (event_kind, event) =
        opened_frame(watch.body.get(4..4 + length).context("a whole frame")?).context("an event")?;
    ensure!(event_kind == "MODIFIED" && reported(opened(event).context("an object")?.1)?.1 == newer, "{event_kind}");
    let gone = ask("DELETE", &one, b"")?;
    ensure!(gone.code == 200 && opened(&gone.body).is_some_and(|(kind, _)| kind == "Status"), "{}", gone.code);
    let none = ask("GET", &one, b"")?;
    ensure!(none.code == 404 && none.kind == PROTOBUF, "{} {}", none.code, none.kind);
    let wrong = ask("POST", path, b"no protobuf")?;
    let why = "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]";
    ensure!(
        wrong.code == 400 && String::from_utf8_lossy(&wrong.body).contains(why),
        "{}",
        String::from_utf8_lossy(&wrong.body)
    );
    Ok(())
}

/// Returns type and object of a frame of a watch, which is a document or a plain message.
fn opened_frame(frame: &[u8]) -> Option<(String, &[u8])> {
    let message = if frame.starts_with(MAGIC) { wire::get(frame.strip_prefix(MAGIC)?, 2)? } else { frame };
    Some((text(wire::get(message, 1)), wire::get(wire::get(message, 2)?, 1)?))
}

/// Typical use of the Python client. Arguments: the URL of the API.
const PYTHON: &str = r#"
import sys, threading
from kubernetes import client, dynamic, watch
from kubernetes.client.rest import ApiException

configuration = client.Configuration()
configuration.host = sys.argv[1]
api = client.ApiClient(configuration)
core, apps, custom = client.CoreV1Api(api), client.AppsV1Api(api), client.CustomObjectsApi(api)
extensions = client.ApiextensionsV1Api(api)
namespace = "python"
core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=namespace)))

labels = {"app": "py"}
template = client.V1PodTemplateSpec(metadata=client.V1ObjectMeta(labels=labels),
    spec=client.V1PodSpec(containers=[client.V1Container(name="c", image="none.invalid/none:1", image_pull_policy="Never")]))
deployment = client.V1Deployment(metadata=client.V1ObjectMeta(name="d", labels=labels),
    spec=client.V1DeploymentSpec(replicas=0, selector=client.V1LabelSelector(match_labels=labels), template=template))
made = apps.create_namespaced_deployment(namespace, deployment)
assert made.spec.strategy.type == "RollingUpdate", made
apps.patch_namespaced_deployment("d", namespace, {"metadata": {"annotations": {"a": "b"}}})
assert apps.read_namespaced_deployment("d", namespace).metadata.annotations["a"] == "b"
scale = apps.read_namespaced_deployment_scale("d", namespace)
assert scale.spec.replicas in (0, None), scale
assert [d.metadata.name for d in apps.list_namespaced_deployment(namespace, label_selector="app=py").items] == ["d"]

for i in range(5):
    core.create_namespaced_config_map(namespace, client.V1ConfigMap(metadata=client.V1ObjectMeta(name=f"m{i}", labels=labels), data={"i": str(i)}))
first = core.list_namespaced_config_map(namespace, label_selector="app", limit=2)
rest = core.list_namespaced_config_map(namespace, label_selector="app", limit=10, _continue=first.metadata._continue)
assert len(first.items) == 2 and len(rest.items) == 3, (len(first.items), len(rest.items))
try:
    core.create_namespaced_config_map(namespace, client.V1ConfigMap(metadata=client.V1ObjectMeta(name="m1")))
    raise AssertionError("made twice")
except ApiException as e:
    assert e.status == 409, e

version = core.list_namespaced_config_map(namespace).metadata.resource_version
core.delete_namespaced_config_map("m0", namespace)
core.patch_namespaced_config_map("m1", namespace, {"data": {"i": "x"}})
seen = []
for event in watch.Watch().stream(core.list_namespaced_config_map, namespace, resource_version=version, label_selector="app", timeout_seconds=30):
    seen.append((event["type"], event["object"].metadata.name))
    if len(seen) == 2:
        break
assert seen == [("DELETED", "m0"), ("MODIFIED", "m1")], seen

names = client.V1CustomResourceDefinitionNames(plural="pythons", kind="Python")
schema = client.V1JSONSchemaProps(type="object", properties={"spec": client.V1JSONSchemaProps(type="object", properties={
    "size": client.V1JSONSchemaProps(type="integer", minimum=1)})})
extensions.create_custom_resource_definition(client.V1CustomResourceDefinition(
    metadata=client.V1ObjectMeta(name="pythons.py.example.com"),
    spec=client.V1CustomResourceDefinitionSpec(group="py.example.com", scope="Namespaced", names=names, versions=[
        client.V1CustomResourceDefinitionVersion(name="v1", served=True, storage=True,
            schema=client.V1CustomResourceValidation(open_apiv3_schema=schema))])))
for event in watch.Watch().stream(extensions.list_custom_resource_definition, field_selector="metadata.name=pythons.py.example.com", timeout_seconds=60):
    conditions = event["object"].status.conditions or []
    if any(c.type == "Established" and c.status == "True" for c in conditions):
        break
import time
for attempt in range(300):
    try:
        custom.list_namespaced_custom_object("py.example.com", "v1", namespace, "pythons")
        break
    except ApiException as e:
        assert e.status == 404, e
        time.sleep(0.1)
python = {"apiVersion": "py.example.com/v1", "kind": "Python", "metadata": {"name": "p"}, "spec": {"size": 3}}
custom.create_namespaced_custom_object("py.example.com", "v1", namespace, "pythons", python)
custom.patch_namespaced_custom_object("py.example.com", "v1", namespace, "pythons", "p", {"spec": {"size": 4}})
assert custom.get_namespaced_custom_object("py.example.com", "v1", namespace, "pythons", "p")["spec"]["size"] == 4
try:
    custom.patch_namespaced_custom_object("py.example.com", "v1", namespace, "pythons", "p", {"spec": {"size": 0}})
    raise AssertionError("too small")
except ApiException as e:
    assert e.status == 422 and "should be greater than or equal to 1" in e.body, e
found = dynamic.DynamicClient(api).resources.get(api_version="py.example.com/v1", kind="Python")
assert [p.metadata.name for p in found.get(namespace=namespace).items] == ["p"]
extensions.delete_custom_resource_definition("pythons.py.example.com")
core.delete_namespace(namespace)
print("done")
"#;

fn python(s: &Subject) -> Outcome {
    let raw = Raw::open(&s.kubectl)?;
    // Debian's own interpreter finds Debian's package of the client.
    let out = Command::new("/usr/bin/python3").args(["-c", PYTHON, raw.url()]).output().context("start python3")?;
    let (printed, reported) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    ensure!(out.status.success() && printed.trim() == "done", "{printed}{reported}");
    Ok(())
}

/// Runs a program that is a controller and its user, and prints `done` at the end when everything worked.
fn whole_program(s: &Subject, name: &str) -> Outcome {
    let out = Output::of(s.kubectl.other_program(&program(name)?))?;
    ensure!(out.code == 0 && out.stdout.lines().last() == Some("done"), "{}{}", out.stdout, out.stderr);
    Ok(())
}
