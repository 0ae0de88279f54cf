//! The counters of a daemon set's status. Pure.
use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::manage::{self, PodCriteria};
use super::rolling::NodePods;
use crate::shared::pods::until_available;
use crate::views::DaemonSetStatus;
use kelson_meta::tree::put_unless;

/// Returns the counters, and the delay of the next sync if pods become available by time. Of several pods of a node the
/// first in the order of [`manage::sort`] counts. Other fields are those of `old`.
pub fn status(
    old: DaemonSetStatus,
    nodes: &BTreeMap<String, NodePods>,
    criteria: &PodCriteria,
) -> (DaemonSetStatus, Option<Duration>) {
    let mut s = DaemonSetStatus {
        observed_generation: old.observed_generation,
        collision_count: old.collision_count,
        ..DaemonSetStatus::default()
    };
    let mut again: Option<Duration> = None;
    for node in nodes.values().filter(|n| n.exists) {
        let mut pods = node.pods.clone();
        manage::sort(&mut pods);
        let Some(pod) = pods.first() else {
            s.desired_number_scheduled += i32::from(node.fit.run);
            continue;
        };
        if !node.fit.run {
            s.number_misscheduled += 1;
            continue;
        }
        s.desired_number_scheduled += 1;
        s.current_number_scheduled += 1;
        s.updated_number_scheduled += i32::from(criteria.is_updated(pod));
        match until_available(pod, criteria.min_ready, criteria.now) {
            None => {}
            Some(Duration::ZERO) => {
                s.number_ready += 1;
                s.number_available += 1;
            }
            Some(wait) => {
                s.number_ready += 1;
                again = Some(again.map_or(wait, |a| a.min(wait)));
            }
        }
    }
    s.number_unavailable = s.desired_number_scheduled - s.number_available;
    (s, again)
}

/// Writes a status into a tree. Zero values of optional fields are omitted, as in the API.
pub fn put(tree: &mut Value, s: &DaemonSetStatus) {
    if !tree.is_object() {
        *tree = json!({});
    }
    tree["currentNumberScheduled"] = json!(s.current_number_scheduled);
    tree["numberMisscheduled"] = json!(s.number_misscheduled);
    tree["desiredNumberScheduled"] = json!(s.desired_number_scheduled);
    tree["numberReady"] = json!(s.number_ready);
    let optional = [
        ("observedGeneration", s.observed_generation),
        ("updatedNumberScheduled", s.updated_number_scheduled.into()),
        ("numberAvailable", s.number_available.into()),
        ("numberUnavailable", s.number_unavailable.into()),
    ];
    for (name, n) in optional {
        put_unless(tree, name, json!(n), n == 0);
    }
    put_unless(tree, "collisionCount", json!(s.collision_count), s.collision_count.is_none());
}

#[cfg(test)]
mod tests {
    use super::super::manage::tests::{criteria, pod};
    use super::super::placement::Fit;
    use super::*;

    #[test]
    fn counts() {
        let node = |run: bool, pods: &str| NodePods {
            exists: true,
            fit: Fit { run, stay: true },
            pods: pods.split_whitespace().map(pod).collect(),
        };
        let nodes = BTreeMap::from([
            ("a".to_owned(), node(true, "p.new.ready")),
            ("b".to_owned(), node(true, "p.ready q.new.unbound")),
            ("c".to_owned(), node(true, "p.new")),
            ("d".to_owned(), node(true, "")),
            ("e".to_owned(), node(false, "p.ready")),
            ("f".to_owned(), node(false, "")),
            ("gone".to_owned(), NodePods { exists: false, ..node(false, "p.ready") }),
        ]);
        let old = DaemonSetStatus { observed_generation: 7, collision_count: Some(2), ..DaemonSetStatus::default() };
        let mut w = criteria(false);
        let (s, again) = status(old, &nodes, &w);
        let want = DaemonSetStatus {
            current_number_scheduled: 3,
            number_misscheduled: 1,
            desired_number_scheduled: 4,
            number_ready: 2,
            observed_generation: 7,
            updated_number_scheduled: 2,
            number_available: 2,
            number_unavailable: 2,
            collision_count: Some(2),
        };
        assert_eq!((s, again), (want, None));
        w.min_ready = 3700;
        let (s, again) = status(old, &nodes, &w);
        assert_eq!((s.number_ready, s.number_available, again), (2, 0, Some(Duration::from_secs(100))));
    }
}
