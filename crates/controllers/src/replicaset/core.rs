//! The decisions of replica sets. No I/O here. Upstream `pkg/controller/replicaset`.
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kelson_meta::format_seconds;

use crate::shared::pods::until_available;
use crate::views::condition::{self, Condition};
use crate::views::{PodView, ReplicaStatus, uid_number};

/// The maximum number of pods created or deleted in one sync.
pub const BURST_MAX: usize = 500;
/// The condition of a replica set that fails to create or delete pods.
pub const REPLICA_FAILURE: &str = "ReplicaFailure";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// The change of the number of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Hold,
    /// Create this many pods.
    Create(usize),
    /// Delete this many pods.
    Delete(usize),
}

/// Compares desired and active pods.
pub fn step(active: usize, desired: i32) -> Step {
    let desired = usize::try_from(desired).unwrap_or(0);
    match active.cmp(&desired) {
        Ordering::Less => Step::Create((desired - active).min(BURST_MAX)),
        Ordering::Equal => Step::Hold,
        Ordering::Greater => Step::Delete((active - desired).min(BURST_MAX)),
    }
}

/// The pods to delete first. `related` are the pods of all sets under the same owner: a pod that shares its node with
/// more ready relatives goes before one that shares it with fewer.
pub fn choose_victims(
    mut pods: Vec<Arc<PodView>>,
    related: &[Arc<PodView>],
    count: usize,
    now: Timestamp,
) -> Vec<Arc<PodView>> {
    if count < pods.len() {
        let mut per_node: HashMap<&str, usize> = HashMap::new();
        for p in related.iter().filter(|p| p.is_active() && p.is_ready()) {
            *per_node.entry(p.spec.node_name.as_str()).or_default() += 1;
        }
        let neighbors = |p: &PodView| per_node.get(p.spec.node_name.as_str()).copied().unwrap_or(0);
        pods.sort_by_cached_key(|p| DeletionRank::new(p, neighbors(p), now));
    }
    pods.truncate(count);
    pods
}

/// The place of a pod in the order of deletion; the smallest goes first. The order of the fields is the order of the
/// criteria, which are those of upstream's `ActivePodsWithRanks`, so the order is total whatever the pods are.
///
/// Upstream compares ages by order of magnitude alone (feature `LogarithmicScaleDown`) and lets the UID decide between
/// different times of one magnitude, but not between equal times. Such an order has circles, and a sort may panic on it.
/// Here the UID decides last, in both cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DeletionRank {
    has_node: bool,
    phase: u8,
    ready: bool,
    /// The annotation `controller.kubernetes.io/pod-deletion-cost`.
    cost: i32,
    /// Ready pods of related sets on the same node.
    neighbors: Reverse<usize>,
    /// The time for which the pod has been ready. `None` where it is not, or where it is unknown.
    ready_for: Option<i64>,
    restarts: Reverse<i32>,
    age: Option<i64>,
    uid: u128,
}

impl DeletionRank {
    fn new(p: &PodView, neighbors: usize, now: Timestamp) -> Self {
        Self {
            has_node: !p.spec.node_name.is_empty(),
            phase: phase_rank(&p.status.phase),
            ready: p.is_ready(),
            cost: deletion_cost(p),
            neighbors: Reverse(neighbors),
            ready_for: p.ready_since().map(|t| magnitude(t, now)),
            restarts: Reverse(restarts(p)),
            age: p.created().map(|t| magnitude(t, now)),
            uid: uid_number(&p.metadata.uid),
        }
    }
}

/// The order of magnitude of the time since `t`: the binary logarithm of its seconds; -1 for less than a second.
fn magnitude(t: Timestamp, now: Timestamp) -> i64 {
    let seconds = now.duration_since(t).as_secs();
    if seconds <= 0 { -1 } else { i64::from(seconds.ilog2()) }
}

fn phase_rank(phase: &str) -> u8 {
    match phase {
        "Pending" | "" => 0,
        "Unknown" => 1,
        _ => 2,
    }
}

fn deletion_cost(p: &PodView) -> i32 {
    p.metadata.annotations.get(DELETION_COST).and_then(|v| v.parse().ok()).unwrap_or(0)
}

fn restarts(p: &PodView) -> i32 {
    p.status.container_statuses.iter().map(|c| c.restart_count).max().unwrap_or(0)
}

/// The input of the status.
pub struct Observed<'a> {
    /// Pods that are neither terminated nor being deleted.
    pub active: &'a [Arc<PodView>],
    /// The number of pods that are being deleted.
    pub terminating: usize,
    /// Labels of the template.
    pub template_labels: &'a BTreeMap<String, String>,
    pub desired: i32,
    /// Seconds a pod must be ready.
    pub min_ready: i32,
    /// Generation of the spec.
    pub generation: i64,
    /// The error of creating or deleting pods.
    pub failure: Option<String>,
    /// Whether terminating pods are reported (replica sets: yes, replication controllers: no).
    pub reports_terminating: bool,
}

/// Returns the status, and the delay of the next sync if pods become available by time.
pub fn status(old: &ReplicaStatus, seen: &Observed<'_>, now: Timestamp) -> (ReplicaStatus, Option<Duration>) {
    let (mut labeled, mut ready, mut available, mut again) = (0, 0, 0, None::<Duration>);
    for p in seen.active {
        labeled += i32::from(seen.template_labels.iter().all(|(k, v)| p.metadata.labels.get(k) == Some(v)));
        ready += i32::from(p.is_ready());
        match until_available(p, seen.min_ready, now) {
            Some(Duration::ZERO) => available += 1,
            Some(wait) => again = Some(again.map_or(wait, |a| a.min(wait))),
            None => {}
        }
    }
    let mut conditions = old.conditions.clone();
    match (&seen.failure, condition::find(&conditions, REPLICA_FAILURE)) {
        (Some(message), None) => {
            let missing = seen.active.len() < usize::try_from(seen.desired).unwrap_or(0);
            let reason = if missing { "FailedCreate" } else { "FailedDelete" };
            conditions.push(Condition::new(REPLICA_FAILURE, "True", reason, message.clone(), &format_seconds(now)));
        }
        (None, Some(_)) => condition::remove(&mut conditions, REPLICA_FAILURE),
        _ => {}
    }
    let status = ReplicaStatus {
        replicas: count(seen.active.len()),
        fully_labeled_replicas: labeled,
        ready_replicas: ready,
        available_replicas: available,
        terminating_replicas: seen.reports_terminating.then(|| count(seen.terminating)),
        observed_generation: seen.generation,
        conditions,
    };
    (status, again)
}

fn count(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use rand::rngs::StdRng;
    use rand::seq::SliceRandom as _;
    use rand::{Rng as _, SeedableRng as _};
    use serde_json::json;

    use super::*;

    const NOW: &str = "2026-01-01T01:00:00Z";

    fn now() -> Timestamp {
        NOW.parse().unwrap()
    }

    fn pod(name: &str, change: serde_json::Value) -> Arc<PodView> {
        let mut p = json!({"metadata": {"name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeName": "n1"}, "status": {"phase": "Running",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z"}]}});
        for (path, v) in change.as_object().unwrap() {
            *p.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = v.clone();
        }
        Arc::new(serde_json::from_value(p).unwrap())
    }

    #[test]
    fn steps() {
        for (active, desired, want) in [
            (0, 3, Step::Create(3)),
            (3, 3, Step::Hold),
            (5, 3, Step::Delete(2)),
            (0, 5000, Step::Create(500)),
            (900, 0, Step::Delete(500)),
            (1, -1, Step::Delete(1)),
        ] {
            assert_eq!(step(active, desired), want);
        }
    }

    #[test]
    fn who_goes_first() {
        let not_ready = json!({"/status/conditions": []});
        let rows = [
            ("unassigned", json!({"/spec/nodeName": ""})),
            ("pending", json!({"/status/phase": "Pending"})),
            ("not ready", not_ready),
            (
                "cheap",
                json!({"/metadata": {"name": "x", "uid": "x", "creationTimestamp": "2026-01-01T00:00:00Z",
                "annotations": {"controller.kubernetes.io/pod-deletion-cost": "-5"}}}),
            ),
            ("ready lately", json!({"/status/conditions/0/lastTransitionTime": "2026-01-01T00:59:50Z"})),
            (
                "restarting",
                json!({"/status": {"phase": "Running", "containerStatuses": [{"restartCount": 4}],
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z"}]}}),
            ),
            ("young", json!({"/metadata/creationTimestamp": "2026-01-01T00:59:00Z"})),
        ];
        for (what, change) in rows {
            let (ordinary, special) = (pod("a", json!({})), pod("z", change));
            for order in [vec![ordinary.clone(), special.clone()], vec![special.clone(), ordinary.clone()]] {
                let got = choose_victims(order, &[], 1, now());
                assert!(Arc::ptr_eq(&got[0], &special), "{what}");
            }
        }
        let crowded = pod("z", json!({"/spec/nodeName": "n2"}));
        let related = [pod("q", json!({"/spec/nodeName": "n2"})), crowded.clone()];
        let got = choose_victims(vec![pod("a", json!({})), crowded], &related, 1, now());
        assert_eq!(got[0].spec.node_name, "n2", "doubled up goes first");
    }

    /// Random pods as they are seen in clusters: few nodes, few seconds, few restarts, random UIDs.
    fn random_pods(random: &mut StdRng) -> Vec<Arc<PodView>> {
        let at = |seconds: i64| format_seconds(now() - SignedDuration::from_secs(seconds));
        let count = random.random_range(21..200);
        (0..count)
            .map(|_| {
                let mut annotations = serde_json::Map::new();
                if random.random_bool(0.1) {
                    annotations.insert(DELETION_COST.into(), json!(random.random_range(-2..3).to_string()));
                }
                let node = ["", "n1", "n2", "n3"][random.random_range(0..4)];
                let phase = ["Pending", "Unknown", "Running", "Running"][random.random_range(0..4)];
                let ready = ["True", "True", "False"][random.random_range(0..3)];
                let mut condition = json!({"type": "Ready", "status": ready});
                if random.random_bool(0.9) {
                    condition["lastTransitionTime"] = json!(at(random.random_range(-2..15)));
                }
                let mut p = json!({"metadata": {"name": "p", "uid": format!("{:032x}", random.random::<u128>()),
                        "annotations": annotations, "creationTimestamp": at(random.random_range(0..40))},
                    "spec": {"nodeName": node}, "status": {"phase": phase, "conditions": [condition],
                    "containerStatuses": [{"restartCount": random.random_range(0..3) / 2}]}});
                if random.random_bool(0.05) {
                    p["metadata"]["creationTimestamp"] = json!(null);
                }
                Arc::new(serde_json::from_value(p).unwrap())
            })
            .collect()
    }

    #[test]
    fn any_pods_have_one_order() {
        for seed in 0..500 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut pods = random_pods(&mut random);
            let related = pods.clone();
            let count = random.random_range(1..pods.len());
            let uids = |pods: &[Arc<PodView>]| pods.iter().map(|p| p.metadata.uid.clone()).collect::<Vec<_>>();
            let first = uids(&choose_victims(pods.clone(), &related, count, now()));
            pods.shuffle(&mut random);
            let again = uids(&choose_victims(pods.clone(), &related, count, now()));
            assert_eq!(first, again, "seed {seed}: the order of the cache must not matter");
            // Fewer victims are the first of more.
            assert_eq!(first[..1], uids(&choose_victims(pods, &related, 1, now())), "seed {seed}");
        }
    }

    #[test]
    fn ready_times_of_one_magnitude_have_no_circle() {
        // By upstream's rule a goes before b, b before c, and c is equal to a.
        let ready = |uid: &str, seconds: i64| {
            let at = format_seconds(now() - SignedDuration::from_secs(seconds));
            let mut p = (*pod("p", json!({"/status/conditions/0/lastTransitionTime": at}))).clone();
            p.metadata.uid = uid.into();
            DeletionRank::new(&p, 0, now())
        };
        let uid = |n: u8| format!("00000000-0000-4000-8000-0000000000{n:02}");
        let (a, b, c) = (ready(&uid(1), 9), ready(&uid(2), 8), ready(&uid(3), 9));
        assert!(a < b && b < c && a < c);
    }

    #[test]
    fn statuses() {
        let labels = BTreeMap::from([("app".to_owned(), "x".to_owned())]);
        let labelled = json!({"/metadata": {"name": "b", "uid": "b", "labels": {"app": "x"}}});
        let late = json!({"/status/conditions/0/lastTransitionTime": "2026-01-01T00:59:50Z"});
        let unready = json!({"/status/conditions/0/status": "False"});
        let pods = [pod("a", late), pod("b", labelled), pod("c", unready)];
        let seen = |failure: Option<&str>, min_ready| Observed {
            active: &pods,
            terminating: 2,
            template_labels: &labels,
            desired: 4,
            min_ready,
            generation: 7,
            failure: failure.map(str::to_owned),
            reports_terminating: true,
        };
        let (s, again) = status(&ReplicaStatus::default(), &seen(None, 0), now());
        let got = (s.replicas, s.fully_labeled_replicas, s.ready_replicas, s.available_replicas);
        assert_eq!((got, s.terminating_replicas, s.observed_generation, again), ((3, 1, 2, 2), Some(2), 7, None));
        let (s, again) = status(&ReplicaStatus::default(), &seen(Some("no"), 30), now());
        assert_eq!((s.available_replicas, again), (1, Some(Duration::from_secs(20))));
        assert_eq!((s.conditions[0].reason.as_str(), s.conditions[0].message.as_str()), ("FailedCreate", "no"));
        let (s, _) = status(&s, &seen(None, 0), now());
        assert!(s.conditions.is_empty());
    }
}
