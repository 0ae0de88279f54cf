//! Shows that a new plugin is one file and one row: this is such a file, and the row is in [`with_it`]. It filters,
//! scores, limits the nodes and requeues without a change to any other line of the crate.
use serde_json::json;
use tokio::time::Instant;

use super::{decide, node, on, pod};
use crate::cluster::NodeState;
use crate::core::{Core, Step};
use crate::plugins::change::Change;
use crate::plugins::plugin::{Normalize, Plugin};
use crate::plugins::table::Row;
use crate::profile::Profile;
use crate::reason::{Reason, Refusal};
use crate::view::PodSpec;

/// Rejects nodes that pods have slept on, and prefers nodes with more dreams (a label).
#[derive(Debug)]
struct Dreams;

impl Plugin for Dreams {
    fn name(&self) -> &'static str {
        "Dreams"
    }
    fn filter(&self, _: &PodSpec, node: &NodeState) -> Option<Refusal> {
        let slept = node.pods.iter().any(|p| p.spec.labels.contains_key("slept"));
        slept.then(|| Refusal::one(true, Reason::fixed("node(s) were slept on")))
    }
    fn score(&self, _: &PodSpec, node: &NodeState) -> i64 {
        node.node.labels.get("dreams").and_then(|n| n.parse().ok()).unwrap_or(0)
    }
    fn normalize(&self) -> Normalize {
        Normalize::ToHighest
    }
    fn weight(&self) -> i64 {
        100
    }
    fn requeues_on(&self, change: Change) -> bool {
        change == Change::VolumeUpdate
    }
}

fn with_it() -> Core {
    let row: &'static dyn Plugin = &Dreams;
    let mut profile = Profile::default();
    profile.rows.push(Row::from(row));
    let mut core = Core::with_profiles(vec![profile], 1, kelson_metrics::Registry::new());
    let dreams = |n: &str| json!({"metadata": {"labels": {"dreams": n}}});
    for (name, n) in [("a", "1"), ("b", "9"), ("c", "3")] {
        core.put_node(&node(name, dreams(n)), Instant::now());
    }
    core
}

fn sleeper(name: &str) -> std::sync::Arc<crate::view::Pod> {
    pod(name, json!({"metadata": {"labels": {"slept": "yes"}}}))
}

#[test]
fn a_new_plugin_scores_filters_and_explains() {
    let mut core = with_it();
    let plain = |name: &str| pod(name, json!({}));
    assert_eq!(decide(&mut core, plain("p")), Ok("b".into()), "its score counts");
    core.put_pod(on("b", sleeper("s")), Instant::now());
    assert_eq!(decide(&mut core, plain("q")), Ok("c".into()), "its refusal counts, and only on the node that changed");
    for n in ["a", "c"] {
        core.put_pod(on(n, sleeper(n)), Instant::now());
    }
    let said = decide(&mut core, plain("r")).unwrap_err();
    assert!(
        said.starts_with("0/3 nodes are available: 3 node(s) were slept on. no new claims to deallocate, preemption:"),
        "{said}"
    );
}

#[test]
fn a_new_plugin_says_which_changes_requeue_its_pods() {
    let mut core = with_it();
    let now = Instant::now();
    for n in ["a", "b", "c"] {
        core.put_pod(on(n, sleeper(n)), now);
    }
    core.put_pod(pod("p", json!({})), now);
    assert!(matches!(core.step(now), Step::Report(_)));
    let waits = |core: &mut Core| matches!(core.step(now), Step::Idle(_));
    core.changed(Change::Namespaces, None, now);
    assert!(waits(&mut core), "not to it");
    core.changed(Change::VolumeUpdate, None, now);
    assert!(!waits(&mut core), "it said so");
}
