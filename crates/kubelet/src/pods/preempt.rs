//! Selects the pods that end for a critical pod: as few as possible, lower QoS classes first (upstream: `pkg/kubelet/preemption`). Pure;
//! the manager ends the pods.
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::admit::{Shortage, wanted};
use crate::pod;

/// Missing amounts by resource, all greater than zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing(Vec<(String, i64)>);

impl Missing {
    /// Creates it from the insufficient resources.
    pub fn of(short: &[Shortage]) -> Self {
        Self(short.iter().map(|s| (s.resource.clone(), s.missing)).collect())
    }

    /// Returns the resources that are still missing after `pods` have ended.
    pub fn without<'a>(&self, pods: impl IntoIterator<Item = &'a Arc<Pod>> + Clone) -> Self {
        let left = |(resource, amount): &(String, i64)| {
            let freed = pods.clone().into_iter().fold(0i64, |sum, p| sum.saturating_add(wanted(p, resource)));
            (resource.clone(), amount.saturating_sub(freed))
        };
        Self(self.0.iter().map(left).filter(|(_, amount)| *amount > 0).collect())
    }

    /// Normalized distance to the missing amounts after the pod ended. Each resource has the same weight.
    fn distance(&self, pod: &Pod) -> f64 {
        let of = |(resource, amount): &(String, i64)| {
            let left = amount.saturating_sub(wanted(pod, resource)).max(0);
            (left as f64 / *amount as f64).powi(2)
        };
        self.0.iter().map(of).sum()
    }

    fn refused(&self) -> String {
        let list: String =
            self.0.iter().map(|(resource, amount)| format!("(res: {resource}, q: {amount}), ")).collect();
        format!("no set of running pods found to reclaim resources: [{list}]")
    }
}

/// Returns whether a pod may be ended for another.
fn yields(pod: &Pod, to: &Pod) -> bool {
    let given = |p: &Pod| p.spec.as_ref().and_then(|s| s.priority);
    pod::is_critical(to) && !pod::is_critical(pod) || given(to).zip(given(pod)).is_some_and(|(to, pod)| to > pod)
}

/// Selects pods of `running` whose end frees what `pod` misses.
///
/// # Errors
/// What would still be missing if all candidates ended.
pub fn victims(pod: &Pod, running: &[Arc<Pod>], missing: &Missing) -> Result<Vec<Arc<Pod>>, String> {
    let of = |class: &str| -> Vec<Arc<Pod>> {
        running.iter().filter(|p| yields(p, pod) && pod::qos_class(p) == class).cloned().collect()
    };
    let (best_effort, burstable, guaranteed) = (of("BestEffort"), of("Burstable"), of("Guaranteed"));
    let still = missing.without(best_effort.iter().chain(&burstable).chain(&guaranteed));
    if !still.0.is_empty() {
        return Err(still.refused());
    }
    // For each class, first assumes that all pods of lower classes end; the lower classes are then reduced by what the higher ones free.
    let guaranteed = nearest(guaranteed, missing.without(best_effort.iter().chain(&burstable)))?;
    let burstable = nearest(burstable, missing.without(best_effort.iter().chain(&guaranteed)))?;
    let best_effort = nearest(best_effort, missing.without(burstable.iter().chain(&guaranteed)))?;
    Ok([best_effort, burstable, guaranteed].concat())
}

/// Repeatedly selects the pod that frees most of what is missing; on a tie the one with the smaller request.
fn nearest(mut pods: Vec<Arc<Pod>>, mut missing: Missing) -> Result<Vec<Arc<Pod>>, String> {
    let mut taken = Vec::new();
    while !missing.0.is_empty() {
        let size = |p: &Pod| (wanted(p, "memory"), wanted(p, "cpu"));
        let order = |a: &Pod, b: &Pod| missing.distance(a).total_cmp(&missing.distance(b)).then(size(a).cmp(&size(b)));
        let best = (0..pods.len()).min_by(|a, b| order(&pods[*a], &pods[*b])).ok_or_else(|| missing.refused())?;
        let pod = pods.swap_remove(best);
        missing = missing.without([&pod]);
        taken.push(pod);
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, spec: Value) -> Arc<Pod> {
        Arc::new(serde_json::from_value(json!({"metadata":{"name":name,"uid":name},"spec":spec})).expect("pod"))
    }

    /// A pod of a QoS class with requests in millicores and MiB.
    fn asks(name: &str, class: &str, (cpu, memory): (u32, u32)) -> Arc<Pod> {
        let amounts = json!({"cpu": format!("{cpu}m"), "memory": format!("{memory}Mi")});
        let resources = match class {
            "g" => json!({"requests": amounts, "limits": amounts}),
            "b" => json!({"requests": amounts}),
            _ => json!({}),
        };
        pod(name, json!({"priority": 0, "containers": [{"name": "c", "resources": resources}]}))
    }

    fn missing(of: &[(&str, i64)]) -> Missing {
        Missing(of.iter().map(|(resource, amount)| ((*resource).to_owned(), *amount)).collect())
    }

    #[test]
    fn as_few_pods_as_possible_are_preempted() {
        const MIB: i64 = 1 << 20;
        let critical = pod("critical", json!({"priority": 2_000_000_000, "containers": []}));
        let running = [
            asks("e1", "e", (0, 0)),
            asks("e2", "e", (0, 0)),
            asks("b-small", "b", (100, 100)),
            asks("b-large", "b", (300, 300)),
            asks("g-small", "g", (100, 100)),
            asks("g-large", "g", (500, 500)),
            pod(
                "static",
                json!({"priority": 2_000_000_000, "containers": [{"name": "c", "resources":
                {"requests": {"cpu": "8"}}}]}),
            ),
        ];
        let cases: [(&str, &[(&str, i64)], &[&str]); 8] = [
            ("nothing is missing", &[], &[]),
            ("a place is what any pod frees", &[("pods", 1)], &["e1"]),
            ("the smaller one that is enough", &[("cpu", 100)], &["b-small"]),
            ("one rather than two", &[("cpu", 200)], &["b-large"]),
            ("both before any promise is broken", &[("cpu", 400)], &["b-large", "b-small"]),
            (
                "a promise where the rest is not enough, and the rest is spared",
                &[("cpu", 600)],
                &["b-small", "g-large"],
            ),
            ("each resource counts alike", &[("cpu", 100), ("memory", 300 * MIB)], &["b-large"]),
            ("all", &[("cpu", 1000)], &["b-large", "b-small", "g-large", "g-small"]),
        ];
        for (what, short, expected) in cases {
            let mut got: Vec<_> = victims(&critical, &running, &missing(short))
                .expect(what)
                .iter()
                .map(|p| pod::name(p).to_owned())
                .collect();
            got.sort();
            assert_eq!(got, expected, "{what}");
        }
        let error = victims(&critical, &running, &missing(&[("cpu", 1001)])).expect_err("the other is critical too");
        assert_eq!(error, "no set of running pods found to reclaim resources: [(res: cpu, q: 1), ]");
    }

    #[test]
    fn a_critical_pod_is_preempted_only_for_a_higher_priority() {
        let of = |priority: i64| pod("p", json!({"priority": priority, "containers": []}));
        let (system, node) = (of(2_000_000_000), of(2_000_001_000));
        assert!(yields(&system, &node) && !yields(&node, &system) && !yields(&system, &system));
        assert!(yields(&of(1), &of(2)), "as upstream, where only critical pods preempt");
    }
}
