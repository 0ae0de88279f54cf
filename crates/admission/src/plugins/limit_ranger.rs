//! LimitRanger: applies default requests and limits of a namespace's LimitRanges to containers, and enforces minimum,
//! maximum and ratio.
use std::collections::BTreeMap;
use std::sync::Arc;

use kelson_auth::Objects;
use kelson_meta::{Quantity, Status};
use serde_json::Value;

use crate::containers::aggregate;
use crate::containers::{ContainerKind, containers_mut};
use crate::{Attributes, Dependencies, Notes, Operation, Operations, Plugin};
use kelson_meta::tree::path::{at, list, object_mut, set, strings, text};

const ANNOTATION: &str = "kubernetes.io/limit-ranger";

type Resources = BTreeMap<String, Quantity>;

/// The plugin; see the module.
pub struct LimitRanger {
    objects: Arc<dyn Objects>,
    /// Whether the feature PodLevelResources is enabled.
    pod_level: bool,
}

fn resources(value: &Value, path: &[&str]) -> Resources {
    strings(value, path).filter_map(|(k, q)| Some((k.to_owned(), q.parse().ok()?))).collect()
}

impl LimitRanger {
    /// Creates the plugin, which reads LimitRanges through the dependencies.
    pub fn new(d: &Dependencies) -> Self {
        Self { objects: d.objects.clone(), pod_level: d.gates.enabled("PodLevelResources") }
    }

    fn ranges(&self, namespace: &str) -> Vec<Arc<Value>> {
        self.objects.trees("", "limitranges", namespace)
    }
}

/// New pods, new and updated claims, and resizes; containers of running pods cannot change otherwise.
fn concerns(a: &Attributes<'_>) -> bool {
    let op = a.operation;
    (a.is_main("", "pods") && op == Operation::Create)
        || (a.is("", "pods") && a.subresource == "resize" && op == Operation::Update)
        || a.is_main("", "persistentvolumeclaims")
}

/// Applies the defaults of one LimitRange to every container that may request resources, and records them in the pod's annotation.
fn apply_defaults(range: &Value, pod: &mut Value) {
    let defaults = |field: &str| -> BTreeMap<String, String> {
        list(range, &["spec", "limits"])
            .iter()
            .filter(|l| text(l, &["type"]) == "Container")
            .flat_map(|l| strings(l, &[field]).map(|(k, v)| (k.to_owned(), v.to_owned())))
            .collect()
    };
    let (requests, limits) = (defaults("defaultRequest"), defaults("default"));
    if requests.is_empty() && limits.is_empty() {
        return;
    }
    let Some(spec) = pod.get_mut("spec") else { return };
    let mut words: Vec<(ContainerKind, String)> = Vec::new();
    containers_mut(spec, |kind, _, container| {
        match kind {
            ContainerKind::Init | ContainerKind::Regular => {}
            // Ephemeral containers may not request resources.
            ContainerKind::Ephemeral => return,
        }
        let name = text(container, &["name"]).to_owned();
        for (what, field, defaults) in [("request", "requests", &requests), ("limit", "limits", &limits)] {
            let Some(own) = object_mut(container, &["resources", field]).filter(|_| !defaults.is_empty()) else {
                continue;
            };
            let added: Vec<&str> = defaults.keys().filter(|k| !own.contains_key(*k)).map(String::as_str).collect();
            for key in &added {
                own.insert((*key).to_owned(), defaults[*key].as_str().into());
            }
            if !added.is_empty() {
                words.push((kind, format!("{} {what} for {} {name}", added.join(", "), kind.words())));
            }
        }
    });
    if words.is_empty() {
        return;
    }
    // Upstream lists main containers first.
    words.sort_by_key(|(kind, _)| *kind != ContainerKind::Regular);
    let words: Vec<String> = words.into_iter().map(|(_, w)| w).collect();
    let note = format!("LimitRanger plugin set: {}", words.join("; "));
    set(pod, &["metadata", "annotations", ANNOTATION], note.into());
}

/// A subject of limits: a container, a pod's total, or a claim.
struct LimitedResources {
    requests: Resources,
    limits: Resources,
}

fn check_min(kind: &str, asked: &LimitedResources, min: &Resources, faults: &mut Vec<String>) {
    for (r, enforced) in min {
        let head = format!("minimum {r} usage per {kind} is {enforced}");
        match (asked.requests.get(r), asked.limits.get(r)) {
            (None, _) => faults.push(format!("{head}.  No request is specified")),
            (Some(q), _) if q < enforced => faults.push(format!("{head}, but request is {q}")),
            (_, Some(l)) if l < enforced => faults.push(format!("{head}, but limit is {l}")),
            _ => {}
        }
    }
}

fn check_max(kind: &str, asked: &LimitedResources, max: &Resources, only_requests: bool, faults: &mut Vec<String>) {
    for (r, enforced) in max {
        let head = format!("maximum {r} usage per {kind} is {enforced}");
        let (request, limit) = (asked.requests.get(r), asked.limits.get(r));
        match (request, limit) {
            (None, _) if only_requests => faults.push(format!("{head}.  No request is specified")),
            (_, None) if !only_requests => faults.push(format!("{head}.  No limit is specified")),
            (_, Some(l)) if !only_requests && l > enforced => faults.push(format!("{head}, but limit is {l}")),
            (Some(q), _) if q > enforced => faults.push(format!("{head}, but request is {q}")),
            _ => {}
        }
    }
}

fn check_ratio(kind: &str, asked: &LimitedResources, ratios: &Resources, faults: &mut Vec<String>) {
    for (r, enforced) in ratios {
        let head = format!("{r} max limit to request ratio per {kind} is {enforced}");
        let amount = |m: &Resources| m.get(r).map(|q| q.nanos()).filter(|n| *n != 0);
        let Some(request) = amount(&asked.requests) else {
            faults.push(format!("{head}, but no request is specified or request is 0"));
            continue;
        };
        let Some(limit) = amount(&asked.limits) else {
            faults.push(format!("{head}, but no limit is specified or limit is 0"));
            continue;
        };
        let ratio = limit as f64 / request as f64;
        if ratio > enforced.nanos() as f64 / 1e9 {
            faults.push(format!("{head}, but provided ratio is {ratio:.6}"));
        }
    }
}

/// Checks every limit of one type for one subject.
fn check(kind: &str, limit: &Value, asked: &LimitedResources, faults: &mut Vec<String>) {
    let claim = kind == "PersistentVolumeClaim";
    check_min(kind, asked, &resources(limit, &["min"]), faults);
    check_max(kind, asked, &resources(limit, &["max"]), claim, faults);
    if !claim {
        check_ratio(kind, asked, &resources(limit, &["maxLimitRequestRatio"]), faults);
    }
}

fn of_container(container: &Value) -> LimitedResources {
    LimitedResources {
        requests: resources(container, &["resources", "requests"]),
        limits: resources(container, &["resources", "limits"]),
    }
}

fn add(sum: &mut Resources, more: &Resources) {
    for (k, q) in more {
        sum.entry(k.clone()).and_modify(|s| *s = s.plus(*q)).or_insert(*q);
    }
}

fn raise(to: &mut Resources, other: &Resources) {
    for (k, q) in other {
        to.entry(k.clone()).and_modify(|s| *s = (*s).max(*q)).or_insert(*q);
    }
}

/// Returns the total of a pod: containers and sidecars together, or the maximum while an init container runs; pod-level
/// resources take precedence if set.
fn of_pod(pod: &Value, pick: fn(LimitedResources) -> Resources, field: &str, pod_level: bool) -> Resources {
    let mut total = Resources::new();
    for c in list(pod, &["spec", "containers"]) {
        add(&mut total, &pick(of_container(c)));
    }
    let (mut sidecars, mut peak) = (Resources::new(), Resources::new());
    for c in list(pod, &["spec", "initContainers"]) {
        let own = pick(of_container(c));
        if text(c, &["restartPolicy"]) == "Always" {
            add(&mut total, &own);
            add(&mut sidecars, &own);
            raise(&mut peak, &sidecars);
        } else {
            let mut during = own;
            add(&mut during, &sidecars);
            raise(&mut peak, &during);
        }
    }
    raise(&mut total, &peak);
    if pod_level {
        total.extend(resources(pod, &["spec", "resources", field]));
    }
    total
}

fn check_range(range: &Value, object: &Value, is_pod: bool, pod_level: bool, faults: &mut Vec<String>) {
    for limit in list(range, &["spec", "limits"]) {
        match text(limit, &["type"]) {
            "Container" if is_pod => {
                let lists = [list(object, &["spec", "containers"]), list(object, &["spec", "initContainers"])];
                for container in lists.into_iter().flatten() {
                    check("Container", limit, &of_container(container), faults);
                }
            }
            "Pod" if is_pod => {
                let asked = LimitedResources {
                    requests: of_pod(object, |a| a.requests, "requests", pod_level),
                    limits: of_pod(object, |a| a.limits, "limits", pod_level),
                };
                check("Pod", limit, &asked, faults);
            }
            "PersistentVolumeClaim" if !is_pod => {
                let requests = resources(object, &["spec", "resources", "requests"]);
                let asked = LimitedResources { requests, limits: Resources::new() };
                check("PersistentVolumeClaim", limit, &asked, faults);
            }
            _ => {}
        }
    }
}

impl Plugin for LimitRanger {
    fn name(&self) -> &'static str {
        "LimitRanger"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::WRITE.contains(op)
    }
    fn admit(&self, a: &mut Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if !concerns(a) || !a.is("", "pods") {
            return Ok(());
        }
        for range in self.ranges(a.namespace) {
            if let Some(pod) = a.object.as_mut() {
                apply_defaults(&range, pod);
            }
        }
        Ok(())
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        // An object that is being deleted may still be updated.
        let dying = !at(a.stored(), &["metadata", "deletionTimestamp"]).is_null();
        if !concerns(a) || (a.operation == Operation::Update && dying) {
            return Ok(());
        }
        for range in self.ranges(a.namespace) {
            let mut faults = Vec::new();
            check_range(&range, a.new_object(), a.is("", "pods"), self.pod_level, &mut faults);
            if !faults.is_empty() {
                return Err(a.forbidden(&aggregate(&faults)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, dependencies, object};
    use serde_json::json;

    fn range(limits: Value) -> Dependencies {
        dependencies(&[("limitranges/a/l", json!({"spec": {"limits": limits}}))])
    }

    #[tokio::test]
    async fn defaults() {
        let d = range(
            json!([{"type": "Container", "default": {"cpu": "200m", "memory": "1Gi"}, "defaultRequest": {"cpu": "100m"}}]),
        );
        let pod = json!({"spec": {"initContainers": [{"name": "i", "resources": {"requests": {"cpu": "1m"}, "limits": {"cpu": "1m", "memory": "1"}}}],
            "containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}], "ephemeralContainers": [{"name": "e"}]}});
        let out = object(LimitRanger::new(&d), Ask::pod(pod)).await.unwrap();
        assert_eq!(
            out["spec"]["containers"][0]["resources"],
            json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "100m"}})
        );
        assert_eq!(out["spec"]["initContainers"][0]["resources"]["limits"]["memory"], "1");
        assert!(out["spec"]["ephemeralContainers"][0].get("resources").is_none());
        assert_eq!(
            out["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: cpu request for container c; memory limit for container c"
        );
        let none = dependencies(&[]);
        let bare = json!({"spec": {"containers": [{"name": "c"}]}});
        assert_eq!(object(LimitRanger::new(&none), Ask::pod(bare.clone())).await.unwrap(), bare);
    }

    #[tokio::test]
    async fn bounds() {
        let d = range(json!([
            {"type": "Container", "min": {"cpu": "50m"}, "max": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "4"}},
            {"type": "Pod", "max": {"memory": "1Gi"}},
            {"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}}]));
        let pod = |request: &str, limit: &str, memory: &str| {
            let r = json!({"requests": {"cpu": request, "memory": memory}, "limits": {"cpu": limit, "memory": memory}});
            Ask::pod(
                json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "resources": r}, {"name": "b", "resources": r}]}}),
            )
        };
        let ask = |a| object(LimitRanger::new(&d), a);
        assert!(ask(pod("500m", "1", "512Mi")).await.is_ok());
        let e = ask(pod("500m", "1", "513Mi")).await.unwrap_err();
        assert_eq!(e, "pods \"p\" is forbidden: maximum memory usage per Pod is 1Gi, but limit is 1026Mi");
        assert!(
            ask(pod("10m", "40m", "1Mi"))
                .await
                .unwrap_err()
                .contains("minimum cpu usage per Container is 50m, but request is 10m")
        );
        assert!(
            ask(pod("1", "2", "1Mi"))
                .await
                .unwrap_err()
                .contains("maximum cpu usage per Container is 1, but limit is 2")
        );
        assert!(
            ask(pod("100m", "1", "1Mi"))
                .await
                .unwrap_err()
                .contains("cpu max limit to request ratio per Container is 4, but provided ratio is 10.000000")
        );
        let claim = |size: &str| {
            Ask::create("/persistentvolumeclaims", json!({"spec": {"resources": {"requests": {"storage": size}}}}))
        };
        assert!(ask(claim("1Gi")).await.is_ok());
        assert!(
            ask(claim("3Gi"))
                .await
                .unwrap_err()
                .contains("maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi")
        );
        assert!(
            ask(claim("1Mi"))
                .await
                .unwrap_err()
                .contains("minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 1Mi")
        );
    }

    #[test]
    fn init_containers_and_sidecars() {
        let c = |cpu: &str, policy: Value| json!({"restartPolicy": policy, "resources": {"requests": {"cpu": cpu}}});
        let pod = json!({"spec": {"containers": [c("1", Value::Null)],
            "initContainers": [c("1", json!("Always")), c("3", Value::Null), c("2", json!("Always"))]}});
        let sum = of_pod(&pod, |a| a.requests, "requests", true);
        assert_eq!(sum["cpu"].value(), 4, "1 + 1 + 2 while running, 1 + 3 while starting");
        let whole = json!({"spec": {"containers": [c("1", Value::Null)], "resources": {"requests": {"cpu": "9"}}}});
        for (pod_level, cpu) in [(true, 9), (false, 1)] {
            assert_eq!(of_pod(&whole, |a| a.requests, "requests", pod_level)["cpu"].value(), cpu);
        }
    }
}
