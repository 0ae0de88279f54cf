//! Groups of pods for a shutdown, and their grace periods. Pure (upstream: `pkg/kubelet/nodeshutdown`).
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use crate::config::shutdown::ShutdownPeriod;
use crate::pod;

/// Pods that end at the same time.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Time for the group.
    pub period: Duration,
    /// The pods of the group.
    pub pods: Vec<Arc<Pod>>,
}

/// Returns the groups in the order in which they end. A pod belongs to the group with the highest priority that is not above its own; below
/// all groups, to the lowest.
pub fn groups(periods: &[ShutdownPeriod], pods: Vec<Arc<Pod>>) -> Vec<Group> {
    let mut periods = periods.to_vec();
    periods.sort_by_key(|p| p.priority);
    let mut groups: Vec<Group> = periods.iter().map(|p| Group { period: p.grace, pods: Vec::new() }).collect();
    for pod in pods {
        let below = periods.partition_point(|p| p.priority <= pod::priority(&pod));
        if let Some(group) = groups.get_mut(below.saturating_sub(1)) {
            group.pods.push(pod);
        }
    }
    // A group without pods needs no time.
    groups.retain(|g| !g.pods.is_empty());
    groups
}

/// Grace period of a pod: its own, at most the group's.
pub fn grace(pod: &Pod, group: Duration) -> Duration {
    let own = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
    own.and_then(|s| u64::try_from(s).ok()).map_or(group, |s| group.min(Duration::from_secs(s)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, priority: i32, grace: Option<i64>) -> Arc<Pod> {
        let spec = json!({"containers": [], "priority": priority, "terminationGracePeriodSeconds": grace});
        Arc::new(serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).expect("a pod"))
    }

    #[test]
    fn the_lowest_priority_ends_first() {
        let period = |priority, seconds| ShutdownPeriod { priority, grace: Duration::from_secs(seconds) };
        let periods = [period(2_000_000_000, 10), period(0, 20), period(1000, 30)];
        for (priority, seconds) in
            [(-5, 20), (0, 20), (999, 20), (1000, 30), (1001, 30), (2_000_000_000, 10), (2_000_001_000, 10)]
        {
            let found = groups(&periods, vec![pod("p", priority, None)]);
            assert_eq!((found.len(), found[0].period.as_secs()), (1, seconds), "priority {priority}");
        }
        let all = [("critical", 2_000_000_000), ("low", -1), ("usual", 0), ("high", 5000)];
        let found = groups(&periods, all.iter().map(|(name, priority)| pod(name, *priority, None)).collect());
        let names: Vec<Vec<&str>> = found.iter().map(|g| g.pods.iter().map(|p| pod::name(p)).collect()).collect();
        assert_eq!(names, [vec!["low", "usual"], vec!["high"], vec!["critical"]]);
        assert!(groups(&[], vec![pod("p", 0, None)]).is_empty());
    }

    #[test]
    fn a_pod_gets_no_more_than_its_group() {
        let group = Duration::from_secs(10);
        for (own, wanted) in [(None, 10), (Some(3), 3), (Some(30), 10), (Some(0), 0), (Some(-1), 10)] {
            assert_eq!(grace(&pod("p", 0, own), group).as_secs(), wanted, "{own:?}");
        }
    }
}
