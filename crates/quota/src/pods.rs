//! The usage of a pod: its requests and limits while it runs, and one object while it is stored.
use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use kelson_meta::Quantity;
use kelson_meta::tree::{entries, int, items, text};
use serde_json::Value;

use crate::amounts::Amounts;

/// Whether the resources of the pod as a whole (`spec.resources`) count: the feature gate PodLevelResources
/// (KEP-2837).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodLevel {
    /// The pod's resources replace the sum of its containers, which then need not have any.
    #[default]
    Counted,
    /// Only the sum of the containers counts.
    Ignored,
}

impl PodLevel {
    /// Converts the state of the feature gate.
    pub fn of(enabled: bool) -> Self {
        if enabled { Self::Counted } else { Self::Ignored }
    }
}

/// The resource names of quotas that count pods.
pub const NAMES: &[&str] = &[
    "count/pods",
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
];
/// The resource names that require a value in every container if a quota limits them (upstream's `validationSet`).
const REQUIRED: &[&str] = &["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];
const HUGE_PAGES: &str = "hugepages-";
const DEVICE_CLASS: &str = "deviceclass.resource.kubernetes.io/";

/// Returns whether a name is an extended resource, such as `example.com/gpu`.
fn is_extended(name: &str) -> bool {
    (name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests."))
        || name.starts_with(DEVICE_CLASS)
}

/// Returns whether a resource name of a quota counts pods.
pub fn counts(name: &str) -> bool {
    NAMES.contains(&name)
        || name.starts_with(HUGE_PAGES)
        || name.strip_prefix("requests.").is_some_and(|r| r.starts_with(HUGE_PAGES))
        || counts_extended(name)
}

/// Returns whether a resource name of a quota counts pods' requests of an extended resource.
pub fn counts_extended(name: &str) -> bool {
    name.strip_prefix("requests.").is_some_and(is_extended)
}

/// Returns whether the pod has a deadline (`activeDeadlineSeconds`).
pub fn is_terminating(pod: &Value) -> bool {
    int(&pod["spec"]["activeDeadlineSeconds"]).is_some_and(|s| s >= 0)
}

/// Returns whether the pod has neither requests nor limits of CPU and memory. If the pod as a whole has resources,
/// only those count.
pub fn is_best_effort(pod: &Value, level: PodLevel) -> bool {
    let class = text(&pod["status"]["qosClass"]);
    if !class.is_empty() {
        return class == "BestEffort";
    }
    let spec = &pod["spec"];
    let asks = |resources: &Value| {
        ["requests", "limits"].into_iter().any(|f| {
            let list = Amounts::read(&resources[f]);
            list.0.iter().any(|(name, amount)| matches!(name.as_str(), "cpu" | "memory") && amount.signum() > 0)
        })
    };
    if level == PodLevel::Counted && !spec["resources"].is_null() {
        return !asks(&spec["resources"]);
    }
    let mut containers = items(&spec["containers"]).iter().chain(items(&spec["initContainers"]));
    !containers.any(|c| asks(&c["resources"]))
}

/// Returns whether an affinity term of the pod selects pods in other namespaces.
pub fn looks_across_namespaces(pod: &Value) -> bool {
    let affinity = &pod["spec"]["affinity"];
    ["podAffinity", "podAntiAffinity"].into_iter().any(|kind| {
        let required = items(&affinity[kind]["requiredDuringSchedulingIgnoredDuringExecution"]).iter();
        let preferred = items(&affinity[kind]["preferredDuringSchedulingIgnoredDuringExecution"]).iter();
        required
            .chain(preferred.map(|p| &p["podAffinityTerm"]))
            .any(|term| !items(&term["namespaces"]).is_empty() || !term["namespaceSelector"].is_null())
    })
}

/// Returns whether the pod has ended, or its grace period is over. It then uses no resources of the node.
fn is_over(pod: &Value, now: Timestamp) -> bool {
    if matches!(text(&pod["status"]["phase"]), "Failed" | "Succeeded") {
        return true;
    }
    let deleted = text(&pod["metadata"]["deletionTimestamp"]).parse::<Timestamp>();
    let grace = int(&pod["metadata"]["deletionGracePeriodSeconds"]);
    let (Ok(deleted), Some(grace)) = (deleted, grace) else { return false };
    deleted.checked_add(SignedDuration::from_secs(grace)).is_ok_and(|end| now > end)
}

/// Returns the `requests` or `limits` (`field`) of a container. For a running container, its actual and allocated
/// resources also count while they are larger.
fn of_container(container: &Value, pod: &Value, field: &str) -> Amounts {
    let mut out = Amounts::read(&container["resources"][field]);
    let status = &pod["status"];
    let all = items(&status["containerStatuses"]).iter().chain(items(&status["initContainerStatuses"]));
    let Some(running) = all.into_iter().find(|s| s["name"] == container["name"] && !s["resources"].is_null()) else {
        return out;
    };
    let refused = |c: &Value| c["type"] == "PodResizePending" && c["reason"] == "Infeasible";
    if items(&status["conditions"]).iter().any(refused) {
        out = Amounts::default();
    }
    out.raise_to(&Amounts::read(&running["resources"][field]));
    if field == "requests" {
        out.raise_to(&Amounts::read(&running["allocatedResources"]));
    }
    out
}

/// Returns the sum of a pod: the larger of the sum of containers and sidecars and the maximum of the init containers,
/// plus the pod's overhead. Actual resources count for containers and sidecars only, not for init containers that have
/// finished.
fn of_pod(pod: &Value, field: &str, level: PodLevel) -> Amounts {
    let spec = &pod["spec"];
    let mut sum = Amounts::default();
    for container in items(&spec["containers"]) {
        sum.add(&of_container(container, pod, field));
    }
    let (mut sidecars, mut starting) = (Amounts::default(), Amounts::default());
    for container in items(&spec["initContainers"]) {
        if container["restartPolicy"] == "Always" {
            let own = of_container(container, pod, field);
            sum.add(&own);
            sidecars.add(&own);
            starting.raise_to(&sidecars);
        } else {
            let mut own = Amounts::read(&container["resources"][field]);
            own.add(&sidecars);
            starting.raise_to(&own);
        }
    }
    sum.raise_to(&starting);
    if level == PodLevel::Counted {
        let of_all = Amounts::read(&spec["resources"][field]);
        for (name, amount) in of_all.0.iter().filter(|(name, _)| is_pod_level(name)) {
            sum.set(name.clone(), *amount);
        }
    }
    let overhead = Amounts::read(&spec["overhead"]);
    // A limit is raised only if there is one.
    let is_limited = |name: &str| sum.0.get(name).is_some_and(|amount| amount.signum() != 0);
    sum.add(&overhead.only(|name| field == "requests" || is_limited(name)));
    sum
}

/// Returns the requests of a pod by resource name, without its actual resources.
pub fn wanted(pod: &Value) -> Amounts {
    of_pod(&serde_json::json!({"spec": pod["spec"]}), "requests", PodLevel::Counted)
}

fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with(HUGE_PAGES)
}

/// Converts requests and limits to the resource names of quotas.
fn named(requests: &Amounts, limits: &Amounts) -> Amounts {
    let mut out = Amounts::default();
    out.set("pods", Quantity::from_i64(1));
    for (name, amount) in &requests.0 {
        let native = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || name.starts_with(HUGE_PAGES);
        if native {
            out.set(name.clone(), *amount);
        }
        if native || is_extended(name) {
            out.set(format!("requests.{name}"), *amount);
        }
    }
    for (name, amount) in limits.0.iter().filter(|(n, _)| matches!(n.as_str(), "cpu" | "memory" | "ephemeral-storage"))
    {
        out.set(format!("limits.{name}"), *amount);
    }
    out
}

/// Returns the usage of a pod at the time `now`.
pub fn usage(pod: &Value, level: PodLevel, now: Timestamp) -> Amounts {
    let mut out = Amounts::one_each(["count/pods".to_owned()]);
    if !is_over(pod, now) {
        out.add(&named(&of_pod(pod, "requests", level), &of_pod(pod, "limits", level)));
    }
    out
}

/// Checks whether every container specifies the resources that the quota limits. If the pod as a whole specifies them,
/// containers need not.
///
/// # Errors
/// Returns the message that lists containers and missing resources.
pub fn constraints<'a>(limited: impl Iterator<Item = &'a str>, pod: &Value, level: PodLevel) -> Result<(), String> {
    let spec = &pod["spec"];
    let of_all = |f: &str| entries(&spec["resources"][f]).any(|(name, _)| is_pod_level(name));
    if level == PodLevel::Counted && (of_all("requests") || of_all("limits")) {
        return Ok(());
    }
    let required: Vec<&str> = limited.filter(|n| REQUIRED.contains(n)).collect();
    let mut missing: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for container in items(&spec["containers"]).iter().chain(items(&spec["initContainers"])) {
        let (requests, limits) = (&container["resources"]["requests"], &container["resources"]["limits"]);
        let says = named(&Amounts::read(requests), &Amounts::read(limits));
        for name in required.iter().filter(|n| !says.0.contains_key(**n)) {
            missing.entry(name).or_default().push(text(&container["name"]));
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let words = missing.into_iter().map(|(name, mut containers)| {
        containers.sort_unstable();
        containers.dedup();
        format!("{name} for: {}", containers.join(","))
    });
    Err(format!("must specify {}", words.collect::<Vec<_>>().join("; ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn container(name: &str, cpu: &str) -> Value {
        json!({"name": name, "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": "2"}}})
    }

    #[test]
    fn what_pods_use() {
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        let mut sidecar = container("s", "1");
        sidecar["restartPolicy"] = json!("Always");
        let full = "count/pods=1,cpu=500m,limits.cpu=2,pods=1,requests.cpu=500m";
        let rows = [
            (json!({"spec": {"containers": [container("a", "500m")]}}), full),
            (json!({"spec": {"containers": [container("a", "500m")]}, "status": {"phase": "Failed"}}), "count/pods=1"),
            (
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30},
                    "spec": {"containers": [container("a", "500m")]}}),
                "count/pods=1",
            ),
            (
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:59:50Z", "deletionGracePeriodSeconds": 30},
                    "spec": {"containers": [container("a", "500m")]}}),
                full,
            ),
            (
                json!({"spec": {"containers": [container("a", "500m")], "initContainers": [sidecar, container("i", "1")]}}),
                "count/pods=1,cpu=2,limits.cpu=4,pods=1,requests.cpu=2",
            ),
            (
                json!({"spec": {"overhead": {"cpu": "100m", "memory": "1Mi"}, "containers": [container("a", "500m")]}}),
                "count/pods=1,cpu=600m,limits.cpu=2100m,memory=1Mi,pods=1,requests.cpu=600m,requests.memory=1Mi",
            ),
            (
                json!({"spec": {"resources": {"requests": {"cpu": "3"}}, "containers": [container("a", "500m")]}}),
                "count/pods=1,cpu=3,limits.cpu=2,pods=1,requests.cpu=3",
            ),
            (
                json!({"spec": {"containers": [container("a", "500m")]}, "status": {"containerStatuses": [
                    {"name": "a", "resources": {"requests": {"cpu": "800m"}}, "allocatedResources": {"cpu": "900m"}}]}}),
                "count/pods=1,cpu=900m,limits.cpu=2,pods=1,requests.cpu=900m",
            ),
            (
                json!({"spec": {"containers": [{"name": "g", "resources": {"requests": {"example.com/gpu": "2", "hugepages-2Mi": "4Mi"}}}]}}),
                "count/pods=1,hugepages-2Mi=4Mi,pods=1,requests.example.com/gpu=2,requests.hugepages-2Mi=4Mi",
            ),
        ];
        for (pod, want) in rows {
            assert_eq!(usage(&pod, PodLevel::Counted, now).words(), want, "{pod}");
        }
    }

    #[test]
    fn what_runs_counts_for_containers_and_sidecars() {
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        let init = |policy: &str| {
            let mut init = container("i", "100m");
            init["restartPolicy"] = json!(policy);
            json!({"spec": {"containers": [container("a", "200m")], "initContainers": [init]},
                "status": {"initContainerStatuses": [{"name": "i", "resources": {"requests": {"cpu": "900m"}}}]}})
        };
        let cpu = |pod: &Value| usage(pod, PodLevel::Counted, now).0["cpu"];
        assert_eq!(cpu(&init("Always")), "1100m".parse().unwrap());
        assert_eq!(cpu(&init("Never")), "200m".parse().unwrap(), "it is over, whatever it had");
        let infeasible = json!({"spec": {"containers": [container("a", "5")]}, "status": {
            "conditions": [{"type": "PodResizePending", "reason": "Infeasible"}],
            "containerStatuses": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}]}});
        assert_eq!(cpu(&infeasible), "1".parse().unwrap());
    }

    #[test]
    fn resources_of_whole_pods_count_with_their_gate() {
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        let pod = json!({"spec": {"containers": [container("a", "500m"), {"name": "silent"}],
            "overhead": {"cpu": "1", "memory": "1Mi"},
            "resources": {"requests": {"cpu": "3", "hugepages-2Mi": "4Mi", "ephemeral-storage": "9"}, "limits": {"cpu": "0"}}}});
        let rows = [
            (
                PodLevel::Counted,
                "count/pods=1,cpu=4,hugepages-2Mi=4Mi,limits.cpu=0,memory=1Mi,pods=1,requests.cpu=4,\
                 requests.hugepages-2Mi=4Mi,requests.memory=1Mi",
                Ok(()),
            ),
            (
                PodLevel::Ignored,
                "count/pods=1,cpu=1500m,limits.cpu=3,memory=1Mi,pods=1,requests.cpu=1500m,requests.memory=1Mi",
                Err("must specify limits.cpu for: silent".to_owned()),
            ),
        ];
        for (level, used, says) in rows {
            assert_eq!(usage(&pod, level, now).words(), used);
            assert_eq!(constraints(["limits.cpu"].into_iter(), &pod, level), says);
        }
        let silent = json!({"spec": {"containers": [{"name": "a"}], "resources": {"requests": {"memory": "1Gi"}}}});
        assert!(!is_best_effort(&silent, PodLevel::Counted) && is_best_effort(&silent, PodLevel::Ignored));
        let empty = json!({"spec": {"containers": [container("a", "1")], "resources": {}}});
        assert!(is_best_effort(&empty, PodLevel::Counted) && !is_best_effort(&empty, PodLevel::Ignored));
        // Resources that a pod as a whole cannot specify are still required of containers.
        let other =
            json!({"spec": {"containers": [{"name": "a"}], "resources": {"requests": {"ephemeral-storage": "1"}}}});
        assert!(constraints(["cpu"].into_iter(), &other, PodLevel::Counted).is_err());
    }

    #[test]
    fn names_and_constraints() {
        for (name, want) in [
            ("pods", true),
            ("requests.example.com/gpu", true),
            ("example.com/gpu", false),
            ("requests.hugepages-1Gi", true),
            ("services", false),
            ("requests.storage", false),
            ("count/pods", true),
        ] {
            assert_eq!(counts(name), want, "{name}");
        }
        let pod =
            json!({"spec": {"containers": [container("b", "1"), {"name": "c"}], "initContainers": [{"name": "a"}]}});
        let check = |limited: &[&str]| constraints(limited.iter().copied(), &pod, PodLevel::Counted);
        assert_eq!(check(&["pods", "requests.ephemeral-storage"]), Ok(()));
        assert_eq!(
            check(&["requests.cpu", "limits.memory"]),
            Err("must specify limits.memory for: a,b,c; requests.cpu for: a,c".into())
        );
    }
}
