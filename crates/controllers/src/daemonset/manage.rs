//! The changes to the daemon pods of one node. Pure. Upstream `podsShouldBeOnNode`.
use std::sync::Arc;

use jiff::Timestamp;

use super::placement::Fit;
use crate::shared::history::HASH_LABEL;
use crate::shared::pods::until_available;
use crate::views::PodView;

/// The label with the template generation from `extensions/v1beta1`.
pub const GENERATION_LABEL: &str = "pod-template-generation";

/// The criteria by which a sync classifies the pods of its daemon set: the hash of the current template, the strategy
/// and the time of the sync.
#[derive(Clone, Debug)]
pub struct PodCriteria {
    /// Hash of the current template.
    pub hash: String,
    /// The template generation, if the set has the annotation.
    pub template_generation: Option<i64>,
    pub min_ready: i32,
    /// Whether a node may run a new pod in addition to an old one (`maxSurge`).
    pub surges: bool,
    pub now: Timestamp,
}

impl PodCriteria {
    /// Whether a pod has the current template.
    pub fn is_updated(&self, pod: &PodView) -> bool {
        let labels = &pod.metadata.labels;
        let by_generation = self.template_generation.map(|g| g.to_string());
        (!self.hash.is_empty() && labels.get(HASH_LABEL) == Some(&self.hash))
            || by_generation.is_some_and(|g| labels.get(GENERATION_LABEL) == Some(&g))
    }
    /// Whether a pod is available.
    pub fn is_available(&self, pod: &PodView) -> bool {
        until_available(pod, self.min_ready, self.now).is_some_and(|d| d.is_zero())
    }
}

/// The changes on one node.
#[derive(Clone, Debug, Default)]
pub struct NodePlan {
    /// Whether to create a pod.
    pub create: bool,
    pub delete: Vec<Arc<PodView>>,
    /// Failed pods, which are deleted after their back-off.
    pub failed: Vec<Arc<PodView>>,
    /// Succeeded pods, which are deleted, as daemons must not terminate.
    pub succeeded: Vec<Arc<PodView>>,
}

/// Sorts scheduled pods first, then by age, the oldest first.
pub fn sort(pods: &mut [Arc<PodView>]) {
    let key =
        |p: &PodView| (p.spec.node_name.is_empty(), p.metadata.creation_timestamp.clone(), p.metadata.name.clone());
    pods.sort_by_cached_key(|p| key(p));
}

/// Returns the changes for one node. `pods` are the set's pods for it.
pub fn on_node(fit: Fit, pods: &[Arc<PodView>], criteria: &PodCriteria) -> NodePlan {
    let mut plan = NodePlan::default();
    if fit.run && pods.is_empty() {
        plan.create = true;
        return plan;
    }
    let staying = pods.iter().filter(|p| !p.metadata.is_deleting());
    if !fit.stay {
        plan.delete = staying.cloned().collect();
        return plan;
    }
    let mut running = Vec::new();
    for pod in staying {
        match pod.status.phase.as_str() {
            "Failed" => plan.failed.push(Arc::clone(pod)),
            "Succeeded" => plan.succeeded.push(Arc::clone(pod)),
            _ => running.push(Arc::clone(pod)),
        }
    }
    sort(&mut running);
    if !criteria.surges {
        plan.delete = running.into_iter().skip(1).collect();
    } else if running.is_empty() {
        // The old pod is being deleted. With surge the new pod does not wait for that.
        plan.create = fit.run;
    } else if running.len() > 1 {
        plan.delete = surplus_of_surge(running, criteria);
    }
    plan
}

/// Returns the running pods to delete. The oldest new pod and the oldest old pod may run together while the old one is
/// ready and the new one is not yet available.
fn surplus_of_surge(running: Vec<Arc<PodView>>, criteria: &PodCriteria) -> Vec<Arc<PodView>> {
    let (mut new, mut old, mut delete) = (None, None, Vec::new());
    for pod in running {
        let is_new = pod.metadata.labels.get(HASH_LABEL) == Some(&criteria.hash);
        let slot = if is_new { &mut new } else { &mut old };
        match slot {
            None => *slot = Some(pod),
            Some(_) => delete.push(pod),
        }
    }
    if let (Some(new), Some(old)) = (new, old)
        && (!old.is_ready() || criteria.is_available(&new))
    {
        delete.push(old);
    }
    delete
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;

    use super::*;

    /// `text` is `NAME[.TRAIT…]`: `new` has the current hash, `ready`, `failed`, `done`, `going`, `unbound`.
    pub fn pod(text: &str) -> Arc<PodView> {
        let has = |t: &str| text.split('.').skip(1).any(|x| x == t);
        let name = text.split('.').next().unwrap();
        let phase = if has("failed") {
            "Failed"
        } else if has("done") {
            "Succeeded"
        } else {
            "Running"
        };
        let mut p = json!({"metadata": {"name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"controller-revision-hash": if has("new") { "new" } else { "old" }}},
            "spec": {"nodeName": if has("unbound") { "" } else { "n" }}, "status": {"phase": phase}});
        if has("ready") {
            p["status"]["conditions"] =
                json!([{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        }
        if has("going") {
            p["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        Arc::new(serde_json::from_value(p).unwrap())
    }

    pub fn criteria(surges: bool) -> PodCriteria {
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        PodCriteria { hash: "new".into(), template_generation: Some(2), min_ready: 0, surges, now }
    }

    #[test]
    fn plans() {
        let (yes, no) = (Fit { run: true, stay: true }, Fit { run: false, stay: false });
        let stay = Fit { run: false, stay: true };
        // Fit, surge, pods, and: create, delete, failed, succeeded.
        let rows = [
            (yes, false, "", true, "", "", ""),
            (no, false, "", false, "", "", ""),
            (stay, false, "", false, "", "", ""),
            (yes, false, "a", false, "", "", ""),
            (stay, false, "a", false, "", "", ""),
            (no, false, "a b.going", false, "a", "", ""),
            (yes, false, "a.going", false, "", "", ""),
            (yes, false, "b c a", false, "b c", "", ""),
            (yes, false, "a.unbound b", false, "a", "", ""),
            (yes, false, "a.failed b.done c", false, "", "a", "b"),
            (yes, true, "a.going", true, "", "", ""),
            (stay, true, "a.going", false, "", "", ""),
            (yes, true, "a.failed", true, "", "a", ""),
            (yes, true, "a.ready b.new", false, "", "", ""),
            (yes, true, "a b.new", false, "a", "", ""),
            (yes, true, "a.ready b.new.ready", false, "a", "", ""),
            (yes, true, "a.ready b.new c.new d", false, "c d", "", ""),
        ];
        let names = |pods: &[Arc<PodView>]| pods.iter().map(|p| p.metadata.name.as_str()).collect::<Vec<_>>().join(" ");
        for (fit, surges, pods, create, delete, failed, succeeded) in rows {
            let all: Vec<_> = pods.split_whitespace().map(pod).collect();
            let got = on_node(fit, &all, &criteria(surges));
            let got = (got.create, names(&got.delete), names(&got.failed), names(&got.succeeded));
            assert_eq!(got, (create, delete.into(), failed.into(), succeeded.into()), "{fit:?} {surges} {pods}");
        }
    }

    #[test]
    fn updated_by_hash_or_by_generation() {
        let mut p = (*pod("a.old")).clone();
        assert!(!criteria(false).is_updated(&p) && criteria(false).is_updated(&pod("a.new")));
        p.metadata = serde_json::from_value(json!({"labels": {"pod-template-generation": "2"}})).unwrap();
        assert!(criteria(false).is_updated(&p));
    }
}
