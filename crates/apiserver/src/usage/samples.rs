//! The last two samples of each node and its containers, and the usage between them. The rules are those of metrics-server
//! (`pkg/storage`): usage needs two samples of the same run of a container, and a pod without such samples of all its containers has
//! none. Unlike there, samples are kept by node, so that a kubelet can report only the pods that run on its node.
use std::collections::BTreeMap;
use std::time::Duration;

use super::exposition::{PodName, Point, Report};

/// Interval between two samples of a node (`--metric-resolution` of metrics-server).
pub const RESOLUTION: Duration = Duration::from_secs(15);
/// A container younger than [`RESOLUTION`] has a usage since its start if it is at least this old, in nanoseconds.
const FRESH_MIN: i64 = 10_000_000_000;

/// Two samples of one thing.
#[derive(Clone, Copy, Debug)]
struct Pair {
    last: Point,
    /// Older than `last`, and of the same run.
    previous: Option<Point>,
}

#[derive(Debug, Default)]
struct NodeSamples {
    node: Option<Pair>,
    pods: BTreeMap<PodName, BTreeMap<String, Pair>>,
}

/// The samples of all nodes.
#[derive(Debug, Default)]
pub struct Samples(BTreeMap<String, NodeSamples>);

/// The usage of a node or container between two samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Time of the later sample in nanoseconds since the Unix epoch.
    pub at: i64,
    /// Time between the samples in nanoseconds.
    pub window: i64,
    /// Average CPU use in billionths of a core.
    pub cpu: u64,
    /// The working set in bytes at the later sample.
    pub memory: u64,
}

/// The usage of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodUsage {
    /// The earliest time of its containers' samples, in nanoseconds since the Unix epoch.
    pub at: i64,
    /// The window of that container, in nanoseconds.
    pub window: i64,
    /// The containers by name.
    pub containers: Vec<(String, Usage)>,
}

impl Samples {
    /// Adds what a node's kubelet reported.
    pub fn add(&mut self, node: &str, report: Report) {
        let before = self.0.remove(node).unwrap_or_default();
        let old = |name: &PodName, container: &str| before.pods.get(name)?.get(container).copied();
        let resolution = i64::try_from(RESOLUTION.as_nanos()).unwrap_or(i64::MAX);
        let mut pods = BTreeMap::new();
        for (name, containers) in report.pods {
            let mut pairs = BTreeMap::new();
            for (container, last) in containers {
                let age = last.at.saturating_sub(last.started_at);
                let previous = if last.started_at > 0 && (FRESH_MIN..resolution).contains(&age) {
                    Some(Point { at: last.started_at, cpu: 0, ..last })
                } else {
                    // A sample from before the last start is of another run.
                    old(&name, &container)
                        .filter(|pair| last.started_at < pair.last.at)
                        .and_then(|pair| pair.next(&last))
                };
                pairs.insert(container, Pair { last, previous });
            }
            pods.insert(name, pairs);
        }
        let node_pair = report.node.map(|last| Pair { last, previous: before.node.and_then(|pair| pair.next(&last)) });
        self.0.insert(node.to_owned(), NodeSamples { node: node_pair, pods });
    }
    /// Removes the samples of a node, whose next ones begin a new pair.
    pub fn remove(&mut self, node: &str) {
        self.0.remove(node);
    }
    /// Removes the samples of all nodes but these.
    pub fn retain(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| is_kept(name));
    }
    /// Whether a node's usage is known.
    pub fn has_node(&self, name: &str) -> bool {
        self.node(name).is_some()
    }
    /// Whether the usage of any node is known.
    pub fn is_ready(&self) -> bool {
        self.0.keys().any(|name| self.has_node(name))
    }
    /// Returns the numbers of nodes and containers with a previous sample.
    pub fn points(&self) -> (usize, usize) {
        let nodes = self.0.values().filter(|node| node.node.is_some_and(|pair| pair.previous.is_some())).count();
        let pairs = self.0.values().flat_map(|node| node.pods.values()).flat_map(BTreeMap::values);
        (nodes, pairs.filter(|pair| pair.previous.is_some()).count())
    }
    /// Returns the usage of a node.
    pub fn node(&self, name: &str) -> Option<Usage> {
        self.0.get(name)?.node?.usage()
    }
    /// Returns the usage of a pod, as its own node reported it.
    pub fn pod(&self, node: &str, namespace: &str, name: &str) -> Option<PodUsage> {
        let pairs = self.0.get(node)?.pods.get(&(namespace.to_owned(), name.to_owned()))?;
        if pairs.values().any(|pair| pair.previous.is_none()) {
            return None;
        }
        let containers: Vec<(String, Usage)> =
            pairs.iter().filter_map(|(name, pair)| Some((name.clone(), pair.usage()?))).collect();
        let earliest = containers.iter().map(|(_, usage)| usage).min_by_key(|usage| usage.at)?;
        Some(PodUsage { at: earliest.at, window: earliest.window, containers })
    }
}

impl Pair {
    /// The previous sample of a new one: the last of this pair, or the one before it while a kubelet repeats a measurement.
    fn next(&self, new: &Point) -> Option<Point> {
        if new.at > self.last.at {
            return Some(self.last);
        }
        self.previous.filter(|previous| previous.at < new.at)
    }

    fn usage(&self) -> Option<Usage> {
        let (last, previous) = (self.last, self.previous?);
        let window = last.at.checked_sub(previous.at).filter(|window| *window > 0)?;
        if last.started_at < previous.started_at {
            return None;
        }
        let used = last.cpu.checked_sub(previous.cpu)?;
        let cpu = u128::from(used) * 1_000_000_000 / u128::try_from(window).ok()?;
        Some(Usage { at: last.at, window, cpu: u64::try_from(cpu).unwrap_or(u64::MAX), memory: last.memory })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    fn point(started_at: i64, at: i64, cpu: u64) -> Point {
        Point { started_at: started_at * S, at: at * S, cpu: cpu * 1_000_000_000, memory: 7 }
    }

    fn report(node: Option<Point>, containers: &[(&str, Point)]) -> Report {
        let containers: BTreeMap<String, Point> = containers.iter().map(|(name, p)| ((*name).to_owned(), *p)).collect();
        let mut pods = BTreeMap::new();
        if !containers.is_empty() {
            pods.insert(("n".to_owned(), "p".to_owned()), containers);
        }
        Report { node, pods }
    }

    /// The CPU use of the pod's containers in cores, and the window in seconds.
    fn used(samples: &Samples) -> Option<(Vec<u64>, i64)> {
        let pod = samples.pod("one", "n", "p")?;
        Some((pod.containers.iter().map(|(_, usage)| usage.cpu / 1_000_000_000).collect(), pod.window / S))
    }

    #[test]
    fn usage_is_the_rate_between_two_samples() {
        let mut samples = Samples::default();
        samples.add("one", report(Some(point(0, 100, 50)), &[("a", point(10, 100, 20))]));
        assert_eq!((samples.node("one"), used(&samples), samples.is_ready()), (None, None, false));
        samples.add("one", report(Some(point(0, 115, 80)), &[("a", point(10, 115, 35))]));
        let node = Usage { at: 115 * S, window: 15 * S, cpu: 2_000_000_000, memory: 7 };
        assert_eq!((samples.node("one"), used(&samples)), (Some(node), Some((vec![1], 15))));
        assert_eq!((samples.points(), samples.is_ready()), ((1, 1), true));
        assert_eq!(samples.pod("two", "n", "p"), None, "a pod is known by its own node");
        assert_eq!(samples.pod("one", "m", "p"), None);
        // The kubelet repeats its measurement.
        samples.add("one", report(Some(point(0, 115, 80)), &[("a", point(10, 115, 35))]));
        assert_eq!((samples.node("one"), used(&samples)), (Some(node), Some((vec![1], 15))));
        samples.remove("one");
        samples.add("one", report(Some(point(0, 130, 80)), &[]));
        assert_eq!(samples.node("one"), None, "a failed request begins a new pair");
        samples.retain(|name| name != "one");
        assert_eq!(samples.points(), (0, 0));
    }

    #[test]
    fn a_pod_counts_when_all_its_containers_do() {
        let mut samples = Samples::default();
        samples.add("one", report(None, &[("a", point(10, 100, 20))]));
        samples.add("one", report(None, &[("a", point(10, 115, 35)), ("b", point(108, 116, 1))]));
        assert_eq!(used(&samples), None, "b is younger than ten seconds");
        samples.add("one", report(None, &[("a", point(10, 130, 50)), ("b", point(108, 131, 31))]));
        assert_eq!(used(&samples), Some((vec![1, 2], 15)));
        let pod = samples.pod("one", "n", "p").expect("known");
        assert_eq!(pod.at, 130 * S, "of the earlier sample");
    }

    #[test]
    fn a_restart_begins_a_new_run() {
        let mut samples = Samples::default();
        samples.add("one", report(None, &[("a", point(10, 100, 20))]));
        samples.add("one", report(None, &[("a", point(110, 115, 3))]));
        assert_eq!(used(&samples), None, "the sample before is of the last run, and five seconds are too few");
        samples.add("one", report(None, &[("a", point(116, 130, 28))]));
        assert_eq!(used(&samples), Some((vec![2], 14)), "a run of ten seconds counts from its start");
        samples.add("one", report(None, &[("a", point(116, 145, 20))]));
        assert_eq!(used(&samples), None, "CPU time never falls");
    }

    #[test]
    fn a_window_of_no_length_or_a_clock_that_jumps_back_gives_nothing() {
        let mut samples = Samples::default();
        samples.add("one", report(Some(point(0, 100, 20)), &[]));
        samples.add("one", report(Some(point(0, 90, 30)), &[]));
        assert_eq!(samples.node("one"), None);
        samples.add("one", report(Some(point(0, 105, 45)), &[]));
        assert_eq!(samples.node("one").map(|usage| usage.cpu), Some(1_000_000_000));
    }
}
