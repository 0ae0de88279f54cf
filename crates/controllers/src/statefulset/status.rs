//! The status of a stateful set. Pure.
use std::time::Duration;

use serde_json::{Value, json};

use super::plan::{Observation, is_running_and_ready, revision_of};
use crate::shared::pods::until_available;
use crate::views::{StatefulSetStatus, StatefulSetView};
use kelson_meta::tree::put_unless;

/// Returns the status, and the delay of the next sync if pods become available by time. `current` is the name of the
/// revision before the update.
pub fn status(seen: &Observation<'_>, current: &str, collisions: i32) -> (StatefulSetStatus, Option<Duration>) {
    let set = seen.set;
    let mut s = StatefulSetStatus {
        observed_generation: set.metadata.generation,
        current_revision: current.to_owned(),
        update_revision: seen.update_revision.to_owned(),
        collision_count: Some(collisions),
        ..StatefulSetStatus::default()
    };
    let mut again: Option<Duration> = None;
    for pod in seen.pods.values() {
        s.replicas += 1;
        if is_running_and_ready(pod) {
            s.ready_replicas += 1;
            match until_available(pod, set.spec.min_ready_seconds, seen.now) {
                Some(Duration::ZERO) => s.available_replicas += 1,
                Some(wait) => again = Some(again.map_or(wait, |a| a.min(wait))),
                None => {}
            }
        }
        if !pod.metadata.is_deleting() {
            s.current_replicas += i32::from(revision_of(pod) == current);
            s.updated_replicas += i32::from(revision_of(pod) == seen.update_revision);
        }
    }
    (s, again)
}

/// Completes a rolling update whose pods are all updated.
pub fn complete(set: &StatefulSetView, s: &mut StatefulSetStatus) {
    let all = |n: i32| i64::from(n) == set.replicas();
    if set.spec.update_strategy.r#type == "RollingUpdate"
        && all(s.updated_replicas)
        && all(s.ready_replicas)
        && all(s.replicas)
    {
        s.current_replicas = s.updated_replicas;
        s.current_revision.clone_from(&s.update_revision);
    }
}

/// Writes a status into a tree. Zero values of optional fields are omitted, as in the API.
pub fn put(tree: &mut Value, s: &StatefulSetStatus) {
    if !tree.is_object() {
        *tree = json!({});
    }
    tree["replicas"] = json!(s.replicas);
    tree["availableReplicas"] = json!(s.available_replicas);
    let numbers = [
        ("observedGeneration", s.observed_generation),
        ("readyReplicas", s.ready_replicas.into()),
        ("currentReplicas", s.current_replicas.into()),
        ("updatedReplicas", s.updated_replicas.into()),
    ];
    for (name, n) in numbers {
        put_unless(tree, name, json!(n), n == 0);
    }
    put_unless(tree, "currentRevision", json!(s.current_revision), s.current_revision.is_empty());
    put_unless(tree, "updateRevision", json!(s.update_revision), s.update_revision.is_empty());
    put_unless(tree, "collisionCount", json!(s.collision_count), s.collision_count.is_none());
}
