//! Defaults of pod specs in all kinds, and those of pods only (upstream `pkg/apis/core/v1/defaults.go`).
use kelson_meta::Quantity;
use serde_json::{Value, json};

use super::image;
use crate::tree::{
    at_mut, default_to, default_zero, empty, ensure, entries, flag, int0, items, items_mut, object_mut, present,
    remove, set, text,
};
use crate::volume_sources;

const DEFAULT_MODE: i32 = 0o644;

/// Sets the defaults of a pod template at `v` (`{metadata, spec}`).
pub fn template(v: &mut Value) {
    drop_init_containers(v);
    if ensure(v, "metadata").is_some()
        && let Some(spec) = ensure(v, "spec")
    {
        pod_spec(spec);
    }
}

/// Annotations that defined init containers before there was a field.
const INIT_CONTAINERS: [&str; 4] = [
    "pod.alpha.kubernetes.io/init-container-statuses",
    "pod.alpha.kubernetes.io/init-containers",
    "pod.beta.kubernetes.io/init-container-statuses",
    "pod.beta.kubernetes.io/init-containers",
];

/// Drops annotations of old clients that have no effect any more.
fn drop_init_containers(obj: &mut Value) {
    let Some(metadata) = obj.get_mut("metadata").filter(|meta| present(&meta["annotations"])) else { return };
    let Some(annotations) = metadata.get_mut("annotations") else { return };
    if INIT_CONTAINERS.iter().any(|key| annotations.get(key).is_some()) {
        INIT_CONTAINERS.iter().for_each(|key| remove(annotations, key));
        if empty(annotations) {
            remove(metadata, "annotations");
        }
    }
}

/// Sets the defaults of any pod spec.
pub fn pod_spec(spec: &mut Value) {
    default_zero(spec, "dnsPolicy", "ClusterFirst");
    default_zero(spec, "restartPolicy", "Always");
    default_to(spec, "securityContext", json!({}));
    default_to(spec, "terminationGracePeriodSeconds", 30);
    default_zero(spec, "schedulerName", "default-scheduler");
    // The old name of serviceAccountName is kept equal, whichever was set.
    let account = text(&spec["serviceAccountName"]).to_owned();
    let account = if account.is_empty() { text(&spec["serviceAccount"]).to_owned() } else { account };
    if !account.is_empty() {
        set(spec, "serviceAccountName", account.clone());
        set(spec, "serviceAccount", account);
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for c in items_mut(spec, list) {
            container(c);
        }
    }
    for v in items_mut(spec, "volumes") {
        volume(v);
    }
    if let Some(o) = at_mut(spec, &["overhead"]) {
        canonical_quantities(o);
    }
}

/// Sets the defaults that only pods get, not templates.
pub fn pod(obj: &mut Value) {
    drop_init_containers(obj);
    let Some(spec) = ensure(obj, "spec") else { return };
    pod_spec(spec);
    for list in ["containers", "initContainers"] {
        for c in items_mut(spec, list) {
            requests_from_limits(c);
        }
    }
    pod_level_resources(spec);
    // Templates keep their value.
    if int0(&spec["terminationGracePeriodSeconds"]) < 0 {
        set(spec, "terminationGracePeriodSeconds", 1);
    }
    default_to(spec, "enableServiceLinks", true);
    if flag(&spec["hostNetwork"]) {
        for list in ["containers", "initContainers"] {
            for c in items_mut(spec, list) {
                for port in items_mut(c, "ports") {
                    let number = port["containerPort"].clone();
                    if !empty(&number) {
                        default_zero(port, "hostPort", number);
                    }
                }
            }
        }
    }
}

fn container(c: &mut Value) {
    if !c.is_object() {
        return;
    }
    if text(&c["imagePullPolicy"]).is_empty() {
        let policy = pull_policy(text(&c["image"]));
        set(c, "imagePullPolicy", policy);
    }
    default_zero(c, "terminationMessagePath", "/dev/termination-log");
    default_zero(c, "terminationMessagePolicy", "File");
    if let Some(r) = ensure(c, "resources") {
        canonical_resources(r);
    }
    for p in items_mut(c, "ports") {
        default_zero(p, "protocol", "TCP");
    }
    for e in items_mut(c, "env") {
        if let Some(f) = at_mut(e, &["valueFrom", "fieldRef"]) {
            default_zero(f, "apiVersion", "v1");
        }
        if let Some(f) = at_mut(e, &["valueFrom", "resourceFieldRef"]) {
            divisor(f);
        }
        if let Some(f) = at_mut(e, &["valueFrom", "fileKeyRef"]) {
            default_to(f, "optional", false);
        }
    }
    for p in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(p) = object_mut(c, p) {
            probe(p);
        }
    }
    for hook in ["postStart", "preStop"] {
        if let Some(h) = at_mut(c, &["lifecycle", hook, "httpGet"]) {
            http_get(h);
        }
    }
}

fn probe(p: &mut Value) {
    default_zero(p, "timeoutSeconds", 1);
    default_zero(p, "periodSeconds", 10);
    default_zero(p, "successThreshold", 1);
    default_zero(p, "failureThreshold", 3);
    if let Some(h) = object_mut(p, "httpGet") {
        http_get(h);
    }
    if let Some(g) = object_mut(p, "grpc") {
        default_to(g, "service", "");
    }
}

fn http_get(h: &mut Value) {
    default_zero(h, "path", "/");
    default_zero(h, "scheme", "HTTP");
}

fn divisor(f: &mut Value) {
    // A zero divisor is written: upstream's quantity is a struct and never absent.
    default_to(f, "divisor", "0");
}

/// Returns `Always` for the tag `:latest`, explicit or implied, else `IfNotPresent`, also for invalid names.
pub fn pull_policy(image: &str) -> &'static str {
    if image::tag(image) == Some("latest") { "Always" } else { "IfNotPresent" }
}

fn volume(v: &mut Value) {
    let Some(o) = v.as_object() else { return };
    if !o.iter().any(|(k, v)| k != "name" && present(v)) {
        set(v, "emptyDir", json!({}));
        return;
    }
    volume_sources::defaults(v);
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(s) = object_mut(v, source) {
            default_to(s, "defaultMode", DEFAULT_MODE);
        }
    }
    if let Some(d) = object_mut(v, "downwardAPI") {
        downward_items(d);
    }
    for s in at_mut(v, &["projected"]).into_iter().flat_map(|p| items_mut(p, "sources")) {
        if let Some(t) = object_mut(s, "serviceAccountToken") {
            default_to(t, "expirationSeconds", 3600);
        }
        if let Some(d) = object_mut(s, "downwardAPI") {
            downward_items(d);
        }
    }
    if let Some(i) = object_mut(v, "image") {
        let policy = pull_policy(text(&i["reference"]));
        default_zero(i, "pullPolicy", policy);
    }
    if let Some(spec) = at_mut(v, &["ephemeral", "volumeClaimTemplate", "spec"]) {
        claim_spec(spec);
    }
}

fn downward_items(d: &mut Value) {
    for i in items_mut(d, "items") {
        if let Some(f) = object_mut(i, "fieldRef") {
            default_zero(f, "apiVersion", "v1");
        }
        if let Some(f) = object_mut(i, "resourceFieldRef") {
            divisor(f);
        }
    }
}

/// Sets the defaults of a volume claim's spec, in claims, templates and ephemeral volumes.
pub fn claim_spec(spec: &mut Value) {
    default_to(spec, "volumeMode", "Filesystem");
    if let Some(r) = ensure(spec, "resources") {
        canonical_resources(r);
    }
}

/// Makes the quantities in a `{limits, requests}` object canonical.
pub fn canonical_resources(r: &mut Value) {
    for k in ["limits", "requests"] {
        if let Some(list) = r.get_mut(k) {
            canonical_quantities(list);
        }
    }
}

/// Makes the quantities of a resource list canonical, rounded to milli units.
pub fn canonical_quantities(list: &mut Value) {
    if let Some(o) = list.as_object_mut() {
        for v in o.values_mut() {
            canonical_quantity(v);
        }
    }
}

/// Makes a quantity canonical, rounded up to thousandths; an invalid one is left for validation.
fn canonical_quantity(v: &mut Value) {
    const MILLI_IN_NANOS: i128 = 1_000_000;
    let given = match &*v {
        Value::String(s) => s.trim().to_owned(),
        Value::Number(n) => n.to_string(),
        _ => return,
    };
    let Ok(q) = given.parse::<Quantity>() else { return };
    let fine = q.nanos() % MILLI_IN_NANOS != 0;
    let canonical =
        if fine { Ok(Quantity::from_milli(q.milli_value()).to_string()) } else { Quantity::canonical(&given) };
    if let Ok(canonical) = canonical
        && v.as_str() != Some(&canonical)
    {
        *v = Value::String(canonical);
    }
}

fn requests_from_limits(c: &mut Value) {
    let Some(r) = object_mut(c, "resources") else { return };
    if !r.get("limits").is_some_and(Value::is_object) {
        return;
    }
    let limits = r["limits"].clone();
    let Some(requests) = ensure(r, "requests") else { return };
    for (k, v) in entries(&limits) {
        default_to(requests, k, v.clone());
    }
    if empty(requests) {
        remove(r, "requests");
    }
}

/// Sets pod-level requests from the containers' and from the pod-level limits (KEP-2837).
fn pod_level_resources(spec: &mut Value) {
    if !spec.get("resources").is_some_and(Value::is_object) {
        return;
    }
    if let Some(r) = object_mut(spec, "resources") {
        canonical_resources(r);
    }
    if empty(&spec["resources"]["limits"]) && empty(&spec["resources"]["requests"]) {
        return;
    }
    for (k, q) in aggregate(spec, "limits") {
        if k.starts_with("hugepages-") && !present(&spec["resources"]["requests"][k.as_str()]) {
            let Some(limits) = object_mut(spec, "resources").and_then(|r| ensure(r, "limits")) else { return };
            default_to(limits, &k, q.to_string());
        }
    }
    if empty(&spec["resources"]["limits"]) {
        return;
    }
    let from_containers = aggregate(spec, "requests");
    let limits = spec["resources"]["limits"].clone();
    let Some(requests) = object_mut(spec, "resources").and_then(|r| ensure(r, "requests")) else { return };
    for (k, q) in from_containers {
        if matches!(k.as_str(), "cpu" | "memory") {
            default_to(requests, &k, q.to_string());
        }
    }
    for (k, v) in entries(&limits) {
        if matches!(k.as_str(), "cpu" | "memory") || k.starts_with("hugepages-") {
            default_to(requests, k, v.clone());
        }
    }
}

/// Returns the total of a pod's containers: the sum of containers and sidecars, or the maximum while an init container
/// runs.
pub fn aggregate(spec: &Value, which: &str) -> std::collections::BTreeMap<String, Quantity> {
    use std::collections::BTreeMap;
    let read = |c: &Value| -> Vec<(String, Quantity)> {
        entries(&c["resources"][which])
            .filter_map(|(k, v)| v.as_str().and_then(|s| s.parse().ok()).map(|q| (k.clone(), q)))
            .collect()
    };
    let add = |to: &mut BTreeMap<String, Quantity>, c: &Value| {
        for (k, q) in read(c) {
            let sum = to.get(&k).map_or(q, |have| have.plus(q));
            to.insert(k, sum);
        }
    };
    let mut total = BTreeMap::new();
    for c in items(&spec["containers"]) {
        add(&mut total, c);
    }
    let (mut sidecars, mut peak) = (BTreeMap::new(), BTreeMap::<String, Quantity>::new());
    for c in items(&spec["initContainers"]) {
        let mut at_this_point = sidecars.clone();
        add(&mut at_this_point, c);
        if text(&c["restartPolicy"]) == "Always" {
            add(&mut total, c);
            sidecars.clone_from(&at_this_point);
        }
        for (k, q) in at_this_point {
            let max = peak.get(&k).map_or(q, |p| (*p).max(q));
            peak.insert(k, max);
        }
    }
    for (k, q) in peak {
        let max = total.get(&k).map_or(q, |t: &Quantity| (*t).max(q));
        total.insert(k, max);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_policies() {
        for (image, want) in [
            ("nginx", "Always"),
            ("nginx:latest", "Always"),
            ("nginx:1.2", "IfNotPresent"),
            ("reg:5000/a/nginx", "Always"),
            ("reg:5000/a/nginx:1", "IfNotPresent"),
            ("nginx@sha256:abc", "IfNotPresent"),
            ("nginx:latest@sha256:abc", "IfNotPresent"),
            ("Foo", "IfNotPresent"),
            ("", "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), want, "{image}");
        }
    }

    #[test]
    fn a_small_pod() {
        let mut p = json!({"spec": {"hostNetwork": true, "containers": [{"name": "c", "image": "x:1",
            "ports": [{"containerPort": 80}], "livenessProbe": {"httpGet": {"port": 80}},
            "resources": {"limits": {"cpu": "0.5", "memory": 1024}}}], "volumes": [{"name": "v"},
            {"name": "s", "secret": {"secretName": "s"}}]}});
        pod(&mut p);
        let spec = &p["spec"];
        assert_eq!(
            spec["containers"][0]["resources"],
            json!({
            "limits": {"cpu": "500m", "memory": "1024"}, "requests": {"cpu": "500m", "memory": "1024"}})
        );
        assert_eq!(spec["containers"][0]["ports"][0], json!({"containerPort": 80, "hostPort": 80, "protocol": "TCP"}));
        assert_eq!(spec["volumes"][0], json!({"name": "v", "emptyDir": {}}));
        assert_eq!(spec["volumes"][1]["secret"]["defaultMode"], 420);
        assert_eq!(spec["terminationGracePeriodSeconds"], 30);
        assert_eq!(
            spec["containers"][0]["livenessProbe"]["httpGet"],
            json!({"port": 80, "path": "/", "scheme": "HTTP"})
        );
        let once = p.clone();
        pod(&mut p);
        assert_eq!(p, once);
    }
}
