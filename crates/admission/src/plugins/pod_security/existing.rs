//! Existing pods that violate a namespace's new level: they continue to run, and the client gets warnings about them
//! (upstream `EvaluatePodsInNamespace`).
use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use bytes::Bytes;
use kelson_meta::tree::path::{at, list, text};
use serde_json::Value;

use super::configuration::SecurityConfiguration;
use super::level::Demand;
use super::rules;

/// The maximum number of pods to evaluate.
const PODS_MAX: usize = 3000;
/// The time limit for the evaluation.
const TIME_MAX: Duration = Duration::from_secs(1);
/// The number of pods evaluated before the task yields.
const AT_ONCE: usize = 32;

/// The number of pods with the same violations, and the first of their names.
struct Count {
    pod: String,
    pods: usize,
}

/// Returns the warnings: at most one for each set of violations, and two more.
pub(super) async fn warnings(
    namespace: &str,
    demand: Demand,
    pods: Vec<Bytes>,
    configuration: &SecurityConfiguration,
) -> Vec<String> {
    let begun = Instant::now();
    let (mut broken, mut controllers) = (BTreeMap::<String, Count>::new(), HashSet::new());
    let (mut looked, mut total, mut of_known_controllers) = (0, 0, Vec::new());
    // The first pod of each controller is evaluated before the others, which are most likely equal.
    for (i, bytes) in pods.iter().enumerate() {
        if i % AT_ONCE == AT_ONCE - 1 {
            tokio::task::yield_now().await;
        }
        let pod: Value = serde_json::from_slice(bytes).unwrap_or_default();
        if configuration.exempts_class(text(&pod, &["spec", "runtimeClassName"])) {
            continue;
        }
        total += 1;
        let controller = controller(&pod);
        if !controller.is_empty() && !controllers.insert(controller.to_owned()) {
            of_known_controllers.push(bytes);
        } else if looked < PODS_MAX && begun.elapsed() < TIME_MAX {
            looked += 1;
            note(&mut broken, demand, &pod);
        }
    }
    for (i, bytes) in of_known_controllers.into_iter().enumerate() {
        if looked == PODS_MAX || begun.elapsed() >= TIME_MAX {
            break;
        }
        if i % AT_ONCE == AT_ONCE - 1 {
            tokio::task::yield_now().await;
        }
        looked += 1;
        note(&mut broken, demand, &kelson_meta::from_json(bytes).unwrap_or_default());
    }
    let mut all = Vec::new();
    if looked < total {
        all.push(format!(
            "new PodSecurity enforce level only checked against the first {looked} of {total} existing pods"
        ));
    }
    if !broken.is_empty() {
        let demand = demand.to_string();
        all.push(format!(
            "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level {demand:?}"
        ));
    }
    let mut each: Vec<String> = broken.into_iter().map(|(reasons, count)| count.words(&reasons)).collect();
    each.sort();
    all.extend(each);
    all
}

impl Count {
    fn words(&self, reasons: &str) -> String {
        match self.pods {
            0 | 1 => format!("{}: {reasons}", self.pod),
            2 => format!("{} (and 1 other pod): {reasons}", self.pod),
            n => format!("{} (and {} other pods): {reasons}", self.pod, n - 1),
        }
    }
}

/// Returns the UID of the pod's controller; empty for none.
fn controller(pod: &Value) -> &str {
    let owners = list(pod, &["metadata", "ownerReferences"]);
    owners.iter().find(|o| at(o, &["controller"]) == true).map_or("", |o| text(o, &["uid"]))
}

fn note(broken: &mut BTreeMap<String, Count>, demand: Demand, pod: &Value) {
    let faults = rules::faults(demand, at(pod, &["metadata"]), at(pod, &["spec"]));
    if faults.is_empty() {
        return;
    }
    let reasons: Vec<String> = faults.into_iter().map(|f| f.reason).collect();
    let name = text(pod, &["metadata", "name"]);
    let count = broken.entry(reasons.join(", ")).or_insert_with(|| Count { pod: name.to_owned(), pods: 0 });
    count.pods += 1;
    if name < count.pod.as_str() {
        name.clone_into(&mut count.pod);
    }
}
