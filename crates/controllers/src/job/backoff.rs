//! The back-off of replacements for failed pods: it doubles from ten seconds to ten minutes with each failure since the
//! last success (upstream `backoff_utils.go`).
use std::time::Duration;

use jiff::Timestamp;

use super::pods::{JobPod, finished};
use crate::views::PodView;

const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(600);

/// The failures of a job since its last success. They are kept in memory only, so the first replacement after a restart
/// is immediate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    count: u32,
    last: Option<Timestamp>,
}

impl Failures {
    /// Returns the failures after these pods terminated.
    pub fn after(self, succeeded: &[&JobPod], failed: &[&JobPod]) -> Self {
        let times = failed.iter().filter_map(|p| finished(&p.pod));
        match succeeded.iter().filter_map(|p| finished(&p.pod)).max() {
            None if failed.is_empty() => self,
            None => {
                let added = u32::try_from(failed.len()).unwrap_or(u32::MAX);
                Self { count: self.count.saturating_add(added), last: times.max() }
            }
            Some(success) => {
                let later: Vec<Timestamp> = times.filter(|t| *t > success).collect();
                Self { count: u32::try_from(later.len()).unwrap_or(u32::MAX), last: later.into_iter().max() }
            }
        }
    }

    /// Returns the remaining back-off at `now`.
    pub fn wait(self, now: Timestamp) -> Duration {
        match self.last {
            Some(last) => left(self.count, last, now),
            None => Duration::ZERO,
        }
    }
}

/// Returns the remaining back-off of an index whose last pod was the last of `failures`.
pub fn wait_of_index(last_failed: &PodView, failures: u32, now: Timestamp) -> Duration {
    finished(last_failed).map_or(Duration::ZERO, |last| left(failures, last, now))
}

fn left(failures: u32, last: Timestamp, now: Timestamp) -> Duration {
    let Some(doublings) = failures.checked_sub(1) else { return Duration::ZERO };
    let whole = FIRST.saturating_mul(1u32.checked_shl(doublings).unwrap_or(u32::MAX)).min(LONGEST);
    let passed = Duration::try_from(now.duration_since(last)).unwrap_or_default();
    whole.saturating_sub(passed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_225_600 + seconds).unwrap()
    }

    fn pod(change: Value) -> PodView {
        let mut p = json!({"metadata": {"name": "p", "creationTimestamp": at(0).to_string()}});
        for (k, v) in change.as_object().unwrap() {
            *p.pointer_mut(&format!("/{k}")).unwrap_or(&mut Value::Null) = v.clone();
            if !k.contains('/') && k != "metadata" {
                p[k] = v.clone();
            }
        }
        serde_json::from_value(p).unwrap()
    }

    fn ended_at(seconds: i64) -> JobPod {
        let status = json!({"containerStatuses": [
            {"name": "c", "state": {"terminated": {"exitCode": 1, "finishedAt": at(seconds).to_string()}}}]});
        JobPod::new(std::sync::Arc::new(pod(json!({"status": status}))))
    }

    #[test]
    fn when_pods_end() {
        let ended = |name: &str, t: i64| json!({"name": name, "state": {"terminated": {"exitCode": 0, "finishedAt": at(t).to_string()}}});
        let unready = json!([{"type": "Ready", "status": "False", "lastTransitionTime": at(7).to_string()}]);
        let going = json!({"name": "p", "creationTimestamp": at(0).to_string(),
            "deletionTimestamp": at(40).to_string(), "deletionGracePeriodSeconds": 30});
        let sidecar = json!({"initContainers": [{"name": "s", "restartPolicy": "Always"}, {"name": "i"}]});
        let rows = [
            (json!({"status": {"containerStatuses": [ended("a", 5), ended("b", 9)], "conditions": unready}}), 9),
            (json!({"status": {"containerStatuses": [ended("a", 5), {"name": "b"}], "conditions": unready}}), 7),
            (
                json!({"spec": sidecar, "status": {"containerStatuses": [ended("a", 5)],
                    "initContainerStatuses": [ended("s", 6), ended("i", 8)]}}),
                6,
            ),
            (
                json!({"spec": sidecar, "status": {"containerStatuses": [ended("a", 5)], "conditions": unready,
                    "initContainerStatuses": [{"name": "s"}, ended("i", 8)]}}),
                7,
            ),
            (json!({"metadata": going}), 10),
            (json!({"status": {}}), 0),
        ];
        for (change, want) in rows {
            assert_eq!(finished(&pod(change.clone())), Some(at(want)), "{change}");
        }
    }

    #[test]
    fn waits_double_and_end_with_a_success() {
        let (a, b, c) = (ended_at(10), ended_at(20), ended_at(30));
        let none = Failures::default();
        assert_eq!(none.wait(at(0)), Duration::ZERO);
        let one = none.after(&[], &[&a]);
        assert_eq!((one.count, one.wait(at(12)), one.wait(at(20))), (1, Duration::from_secs(8), Duration::ZERO));
        let three = one.after(&[], &[&c, &b]);
        assert_eq!((three.count, three.wait(at(30))), (3, Duration::from_secs(40)));
        assert_eq!(three.after(&[], &[]), three);
        assert_eq!(three.after(&[&ended_at(40)], &[]), none);
        let mixed = three.after(&[&b], &[&a, &c]);
        assert_eq!((mixed.count, mixed.last), (1, Some(at(30))));
        let many = Failures { count: 40, last: Some(at(0)) };
        assert_eq!(many.wait(at(0)), LONGEST);
        assert_eq!(wait_of_index(&a.pod, 2, at(15)), Duration::from_secs(15));
    }
}
