//! A cluster moves: upstream's API server on a real etcd, ours on the same one, and back. Only values that change with
//! time differ.
use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, ensure};
use kelson_blackbox::key_service::KeyService;
use kelson_blackbox::{Outcome, Subject};
use serde_json::{Value, json};

use super::place::{EtcdFiles, Server};

/// The number of revisions created before each move, as a history; `KELSON_REVISIONS` sets it for both moves together.
const REVISIONS: usize = 200;
/// The maximum number of revisions in one round, each of a different object.
const ROUND: usize = 1000;
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

/// Resources and names of objects that each server writes itself.
const OF_SERVERS: &[(&str, &str)] = &[
    // The running servers, and their start times.
    ("endpoints", "default/kubernetes"),
    ("endpointslices", "default/kubernetes"),
    ("leases", "kube-system/apiserver-"),
    // Events about a server's own start and end.
    ("events", "default/openshift-kube-apiserver."),
    ("events", "default/kube-apiserver."),
    // Events of upstream about a node port that ours allocated, which it records at its start.
    ("events", "default/ours."),
    // Permissions of controllers that only Kelson has.
    ("clusterroles", "/system:controller:local-path-provisioner"),
    ("clusterrolebindings", "/system:controller:local-path-provisioner"),
    ("clusterroles", "/system:controller:manifests-controller"),
    ("clusterrolebindings", "/system:controller:manifests-controller"),
    // The certificates with which this server was started, and its state of other servers.
    ("configmaps", "kube-system/extension-apiserver-authentication"),
    ("configmaps", "kube-system/kube-apiserver-legacy-service-account-token-tracking"),
];

/// The objects of a cluster by the path of their list and their name.
type Objects = BTreeMap<(String, String), Value>;

/// Returns everything that can be listed, in each version that it is served in.
fn everything(server: &Server) -> anyhow::Result<Objects> {
    let mut versions = vec!["/api/v1".to_owned()];
    for group in server.get("/apis")?["groups"].as_array().context("groups")? {
        let listed = group["versions"].as_array().into_iter().flatten();
        versions.extend(listed.filter_map(|v| Some(format!("/apis/{}", v["groupVersion"].as_str()?))));
    }
    let mut all = Objects::new();
    for version in versions {
        for resource in server.get(&version)?["resources"].as_array().context("resources")? {
            let name = resource["name"].as_str().context("name")?;
            let lists = resource["verbs"].as_array().is_some_and(|verbs| verbs.iter().any(|v| v == "list"));
            // Component statuses are computed and not stored.
            if !lists || name.contains('/') || name == "componentstatuses" {
                continue;
            }
            let path = format!("{version}/{name}");
            // Empty lists are recorded as well.
            all.insert((path.clone(), String::new()), Value::Null);
            for object in server.get(&path)?["items"].as_array().context("items")? {
                let metadata = &object["metadata"];
                let text = |field: &str| metadata[field].as_str().unwrap_or_default();
                let full = format!("{}/{}", text("namespace"), text("name"));
                if !OF_SERVERS.iter().any(|(of, begins)| *of == name && full.starts_with(begins)) {
                    all.insert((path.clone(), full), object.clone());
                }
            }
        }
    }
    Ok(all)
}

/// Returns the differences, by object, and by field if both have the object.
fn differences(before: &Objects, after: &Objects) -> Vec<String> {
    let mut found = Vec::new();
    for (key, value) in before {
        match after.get(key) {
            None => found.push(format!("{key:?} is gone")),
            Some(now) => fields(&format!("{key:?}"), value, now, &mut found),
        }
    }
    found.extend(after.keys().filter(|key| !before.contains_key(*key)).map(|key| format!("{key:?} is new")));
    found
}

fn fields(at: &str, before: &Value, after: &Value, found: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(a), Value::Object(b)) => {
            for (name, value) in a {
                fields(&format!("{at}.{name}"), value, b.get(name).unwrap_or(&Value::Null), found);
            }
            for (name, value) in b.iter().filter(|(name, _)| !a.contains_key(*name)) {
                fields(&format!("{at}.{name}"), &Value::Null, value, found);
            }
        }
        (a, b) if a != b => found.push(format!("{at}: {a} became {b}")),
        _ => {}
    }
}

fn the_same(what: &str, before: &Objects, after: &Objects) -> Outcome {
    let found = differences(before, after);
    println!("{what}: {} objects, {} differences", after.values().filter(|v| !v.is_null()).count(), found.len());
    ensure!(found.is_empty(), "{what}: {} differences\n{}", found.len(), found[..found.len().min(40)].join("\n"));
    Ok(())
}

fn definition() -> Value {
    let spec =
        json!({"type": "object", "properties": {"n": {"type": "integer", "default": 3}, "s": {"type": "string"}}});
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": any}}});
    let version = |name: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage, "subresources": {"status": {}}, "schema": schema,
            "selectableFields": [{"jsonPath": ".spec.s"}],
            "additionalPrinterColumns": [{"name": "N", "type": "integer", "jsonPath": ".spec.n"}]})
    };
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [version("v1", true), version("v2", false)]}})
}

/// Creates objects of many kinds, with a name that says which server created them.
fn fill(server: &Server, by: &str) -> Outcome {
    let of = |api: &str, kind: &str, rest: Value| {
        let mut object = json!({"apiVersion": api, "kind": kind, "metadata": {"name": by, "labels": {"by": by}}});
        for (key, value) in rest.as_object().into_iter().flatten() {
            object[key] = value.clone();
        }
        object
    };
    let selector = json!({"matchLabels": {"a": by}});
    let pod = json!({"containers": [{"name": "c", "image": "x", "env": [{"name": "A", "value": "ä\u{1F980}"}],
        "resources": {"limits": {"cpu": "1500m", "memory": "1Gi"}}}]});
    let template = json!({"metadata": {"labels": {"a": by}}, "spec": pod});
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": by});
    let path = json!({"path": "/", "pathType": "Prefix", "backend": {"service": {"name": by, "port": {"number": 80}}}});
    let lease = json!({"holderIdentity": "h", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000001Z"});
    let involved = json!({"kind": "Pod", "namespace": "default", "name": by});
    let namespaced = "namespaces/default";
    for (path, object) in [
        ("/api/v1/namespaces".to_owned(), of("v1", "Namespace", json!({}))),
        (format!("/api/v1/{namespaced}/secrets"), of("v1", "Secret", json!({"stringData": {"word": by}}))),
        (format!("/api/v1/{namespaced}/configmaps"), of("v1", "ConfigMap", json!({"binaryData": {"b": "AAH/"}}))),
        (format!("/api/v1/{namespaced}/serviceaccounts"), of("v1", "ServiceAccount", json!({}))),
        (format!("/api/v1/{namespaced}/pods"), of("v1", "Pod", json!({"spec": pod}))),
        (
            format!("/api/v1/{namespaced}/services"),
            of("v1", "Service", json!({"spec": {"type": "NodePort", "ports": [{"port": 80}], "selector": {"a": by}}})),
        ),
        (
            format!("/api/v1/{namespaced}/events"),
            of("v1", "Event", json!({"involvedObject": involved, "reason": "Moved", "message": by, "type": "Normal"})),
        ),
        (
            format!("/api/v1/{namespaced}/resourcequotas"),
            of("v1", "ResourceQuota", json!({"spec": {"hard": {"pods": "99"}}})),
        ),
        (
            format!("/apis/apps/v1/{namespaced}/deployments"),
            of("apps/v1", "Deployment", json!({"spec": {"selector": selector, "template": template}})),
        ),
        (
            format!("/apis/apps/v1/{namespaced}/statefulsets"),
            of(
                "apps/v1",
                "StatefulSet",
                json!({"spec": {"serviceName": by, "selector": selector, "template": template}}),
            ),
        ),
        (
            format!("/apis/autoscaling/v1/{namespaced}/horizontalpodautoscalers"),
            of(
                "autoscaling/v1",
                "HorizontalPodAutoscaler",
                json!({"spec": {"scaleTargetRef": target, "maxReplicas": 3, "targetCPUUtilizationPercentage": 40}}),
            ),
        ),
        (
            format!("/apis/policy/v1/{namespaced}/poddisruptionbudgets"),
            of("policy/v1", "PodDisruptionBudget", json!({"spec": {"minAvailable": "50%", "selector": selector}})),
        ),
        (
            format!("/apis/networking.k8s.io/v1/{namespaced}/ingresses"),
            of(
                "networking.k8s.io/v1",
                "Ingress",
                json!({"spec": {"rules": [{"host": "a.b", "http": {"paths": [path]}}]}}),
            ),
        ),
        (
            format!("/apis/coordination.k8s.io/v1/{namespaced}/leases"),
            of("coordination.k8s.io/v1", "Lease", json!({"spec": lease})),
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterroles".to_owned(),
            of("rbac.authorization.k8s.io/v1", "ClusterRole", json!({"rules": rules})),
        ),
        (
            "/apis/scheduling.k8s.io/v1/priorityclasses".to_owned(),
            of("scheduling.k8s.io/v1", "PriorityClass", json!({"value": 7})),
        ),
        (
            "/apis/storage.k8s.io/v1/storageclasses".to_owned(),
            of("storage.k8s.io/v1", "StorageClass", json!({"provisioner": "example.com/none"})),
        ),
        (WIDGETS.to_owned(), of("example.com/v1", "Widget", json!({"spec": {"s": by}}))),
    ] {
        server.create(&path, &object).with_context(|| path.clone())?;
    }
    Ok(())
}

/// Creates objects with a history: many revisions, several managers, a pending deletion, a status.
fn live(server: &Server, by: &str, revisions: usize) -> Outcome {
    let map = format!("/api/v1/namespaces/default/configmaps/{by}");
    past(server, by, revisions)?;
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": by}, "data": {"applied": by}});
    server.patch("application/apply-patch+yaml", &format!("{map}?fieldManager={by}"), &applied)?;
    let widget = format!("{WIDGETS}/{by}");
    server.patch(
        "application/merge-patch+json",
        &widget,
        &json!({"metadata": {"finalizers": ["example.com/waits"]}}),
    )?;
    server.patch(
        "application/merge-patch+json",
        &format!("{widget}/status"),
        &json!({"status": {"ok": true, "f": 1.5}}),
    )?;
    let (code, answer) = server.call("DELETE", &widget, &Value::Null)?;
    ensure!(code == 200 && !answer["metadata"]["deletionTimestamp"].is_null(), "{widget}: {code} {answer}");
    Ok(())
}

/// Creates revisions of leases and of a custom resource, as by heartbeats of nodes and status updates of an operator.
fn past(server: &Server, by: &str, wanted: usize) -> Outcome {
    let objects = ROUND.min(wanted / 2).max(1);
    let of = |n: &str| format!("/apis/coordination.k8s.io/v1/namespaces/default/leases/{by}-{n}?fieldManager=past");
    let spec = |n: usize| json!({"spec": {"holderIdentity": "h", "leaseDurationSeconds": 40, "leaseTransitions": n}});
    let begun = server.revision()?;
    for n in 1..=objects {
        let name = format!("{by}-{n}");
        let mut lease = spec(0);
        lease["apiVersion"] = "coordination.k8s.io/v1".into();
        lease["kind"] = "Lease".into();
        lease["metadata"] = json!({"name": name});
        server.create("/apis/coordination.k8s.io/v1/namespaces/default/leases", &lease)?;
    }
    let every = of(&format!("[1-{objects}]"));
    for n in 1.. {
        server.patch_all("application/merge-patch+json", &every, objects, &spec(n))?;
        let widget = json!({"status": {"round": n}});
        server.patch("application/merge-patch+json", &format!("{WIDGETS}/{by}/status"), &widget)?;
        if server.revision()?.saturating_sub(begun) >= wanted as u64 {
            break;
        }
    }
    println!("{by}: revisions {begun} to {}", server.revision()?);
    Ok(())
}

/// Changes and deletes what another server wrote.
fn take_over(server: &Server, of: &str) -> Outcome {
    let secret = format!("/api/v1/namespaces/default/secrets/{of}");
    let patched = server.patch("application/merge-patch+json", &secret, &json!({"stringData": {"more": "of it"}}))?;
    ensure!(patched["data"]["more"] == "b2YgaXQ=", "{patched}");
    let applied =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": of}, "data": {"applied": "anew"}});
    let map = format!("/api/v1/namespaces/default/configmaps/{of}?fieldManager={of}");
    let patched = server.patch("application/apply-patch+yaml", &map, &applied)?;
    ensure!(patched["data"]["applied"] == "anew", "{patched}");
    let done = json!({"metadata": {"finalizers": null}});
    server.patch("application/merge-patch+json", &format!("{WIDGETS}/{of}"), &done)?;
    let (code, _) = server.call("GET", &format!("{WIDGETS}/{of}"), &Value::Null)?;
    ensure!(code == 404, "what was to go is there: {code}");
    let service = format!("/api/v1/namespaces/default/services/{of}");
    let ip = server.get(&service)?["spec"]["clusterIP"].take();
    let address = format!("/apis/networking.k8s.io/v1/ipaddresses/{}", ip.as_str().unwrap_or_default());
    server.get(&address).context("a service's address is an object")?;
    let (code, answer) = server.call("DELETE", &service, &Value::Null)?;
    ensure!(code == 200, "{service}: {code} {answer}");
    let (code, _) = server.call("GET", &address, &Value::Null)?;
    ensure!(code == 404, "the address of a service that is gone is there: {code}");
    Ok(())
}

pub fn there_and_back(_: &Subject) -> Outcome {
    let scratch = tempfile::tempdir()?;
    let place = EtcdFiles::new(scratch.path())?;
    let _etcd = place.etcd()?;
    let keys = KeyService::start(&scratch.path().join("kms"))?;
    let encryption = scratch.path().join("encryption.json");
    let aes = json!({"aescbc": {"keys": [{"name": "one", "secret": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="}]}});
    let config = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration", "resources": [
        {"resources": ["secrets"], "providers": [keys.provider()]},
        {"resources": ["widgets.example.com", "configmaps"], "providers": [aes, {"identity": {}}]}]});
    fs::write(&encryption, config.to_string())?;
    let flag = format!("--encryption-provider-config={}", encryption.display());
    let flags = [&*flag, "--advertise-address=192.0.2.1"];
    let asked: Option<usize> =
        std::env::var("KELSON_REVISIONS").ok().map(|n| n.parse()).transpose().context("KELSON_REVISIONS")?;
    let before_a_move = asked.map_or(REVISIONS, |both| both / 2);

    let theirs = place.reference("theirs", &flags)?;
    theirs.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition())?;
    theirs.until_served(WIDGETS)?;
    fill(&theirs, "theirs")?;
    live(&theirs, "theirs", before_a_move)?;
    let made = everything(&theirs)?;
    theirs.running.stop()?;

    let ours = place.server_with("ours", &flags)?;
    the_same("from the reference to ours", &made, &everything(&ours)?)?;
    take_over(&ours, "theirs")?;
    fill(&ours, "ours")?;
    live(&ours, "ours", before_a_move)?;
    for (kind, begins) in [("secrets", "k8s:enc:kms:v2:tests:"), ("configmaps", "k8s:enc:aescbc:v1:one:")] {
        let stored = place.stored(&format!("/registry/{kind}/default/ours"))?;
        ensure!(stored.starts_with(begins), "{kind}: {stored}");
    }
    let made = everything(&ours)?;
    ours.running.stop()?;

    let theirs = place.reference("again", &flags)?;
    the_same("from ours back to the reference", &made, &everything(&theirs)?)?;
    take_over(&theirs, "ours")?;
    // Side by side: writes of either are visible through the other.
    let beside = place.server_with("beside", &[&flag, "--advertise-address=192.0.2.2"])?;
    fill(&theirs, "side")?;
    beside.get(&format!("{WIDGETS}/side"))?;
    live(&beside, "side", REVISIONS)?;
    let named = json!([{"ip": "192.0.2.1"}, {"ip": "192.0.2.2"}]);
    for server in [&theirs, &beside] {
        kelson_blackbox::eventually("both are named", crate::envtest::PATIENCE, || {
            let endpoints = server.get("/api/v1/namespaces/default/endpoints/kubernetes")?;
            ensure!(endpoints["subsets"][0]["addresses"] == named, "{endpoints}");
            Ok(())
        })?;
    }
    the_same("ours beside the reference", &everything(&theirs)?, &everything(&beside)?)?;
    pages(&theirs, &beside)
}

/// A list that one server began is continued by the other.
fn pages(theirs: &Server, ours: &Server) -> Outcome {
    const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles?limit=7";
    const LEASES: &str = "/api/v1/namespaces/default/configmaps?limit=1";
    for path in [ROLES, LEASES, "/api/v1/configmaps?limit=2"] {
        let names = |first: &Server, second: &Server| -> anyhow::Result<Vec<Value>> {
            let (mut all, mut token, mut turn) = (Vec::new(), String::new(), 0);
            loop {
                let server = if turn % 2 == 0 { first } else { second };
                let list = server.get(&format!("{path}&continue={token}"))?;
                all.extend(list["items"].as_array().into_iter().flatten().map(|i| i["metadata"]["name"].clone()));
                token = list["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
                if token.is_empty() {
                    return Ok(all);
                }
                turn += 1;
            }
        };
        let whole = names(theirs, theirs)?;
        ensure!(names(theirs, ours)? == whole && names(ours, theirs)? == whole, "{path}: pages of two differ");
    }
    Ok(())
}
