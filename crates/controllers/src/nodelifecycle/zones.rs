//! The rate limits of `NoExecute` taints by zone. If most of a zone is not ready, or the whole cluster, the network or
//! the control plane is the likely cause, and evictions would do harm. Upstream `pkg/controller/nodelifecycle`
//! (`ComputeZoneState`, `handleDisruption`), here without polling: zone states are computed when a node's readiness
//! changes. Pure except for the monotonic clock, which is a parameter.
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::shared::config::EvictionRates;
use crate::views::NodeView;
use crate::views::condition;

/// The label of nodes that do not count for the state of their zone.
const EXCLUDED: &str = "node.kubernetes.io/exclude-disruption";
/// The minimum number of unhealthy nodes of a partially disrupted zone.
const PARTIAL_MIN: usize = 3;

/// The state of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneState {
    /// Not computed yet.
    Initial,
    /// Enough nodes are ready.
    Normal,
    /// The share of unhealthy nodes exceeds the threshold.
    PartialDisruption,
    /// No node of the zone is ready.
    FullDisruption,
}

/// The result of an update of all zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// No change, or only rates changed.
    Same,
    /// No node of the cluster is ready any more, so added taints must be removed.
    AllLost,
    /// A first node is ready again. The others get their full grace period again, since no heartbeat was possible
    /// meanwhile.
    SomeBack,
}

/// The number of nodes of a zone, and how many of them are not ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneCount {
    /// The number of nodes that count.
    pub nodes: usize,
    /// The number of nodes that are not ready.
    pub unhealthy: usize,
}

#[derive(Debug)]
struct Zone {
    state: ZoneState,
    count: ZoneCount,
    /// Nodes per second; zero disables taints.
    rate: f64,
    /// When a node was last tainted.
    last: Option<Instant>,
    /// Waiting nodes, the longest waiting first.
    waiting: VecDeque<String>,
}

#[derive(Debug)]
pub struct Zones {
    rates: EvictionRates,
    zones: BTreeMap<String, Zone>,
    waiting: HashSet<String>,
}

/// Returns the zone of a node: region and zone of its labels, or an empty string without them.
pub fn zone_of(node: &NodeView) -> String {
    let label = |old: &str, new: &str| {
        let labels = &node.metadata.labels;
        labels.get(old).or_else(|| labels.get(new)).cloned().unwrap_or_default()
    };
    let zone = label("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone");
    let region = label("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region");
    if zone.is_empty() && region.is_empty() { String::new() } else { format!("{region}:\0:{zone}") }
}

/// Counts the nodes of each zone.
pub fn count<'a>(nodes: impl Iterator<Item = &'a NodeView>) -> BTreeMap<String, ZoneCount> {
    let mut zones: BTreeMap<String, ZoneCount> = BTreeMap::new();
    for node in nodes.filter(|n| !n.metadata.labels.contains_key(EXCLUDED)) {
        let zone = zones.entry(zone_of(node)).or_default();
        zone.nodes += 1;
        let ready = condition::find(&node.status.conditions, "Ready").is_some_and(|c| c.status == "True");
        zone.unhealthy += usize::from(!ready);
    }
    zones
}

impl EvictionRates {
    /// Returns the state of a zone with these counts.
    pub fn state(&self, zone: ZoneCount) -> ZoneState {
        let part = || zone.unhealthy as f64 / zone.nodes as f64;
        if zone.unhealthy > 0 && zone.unhealthy == zone.nodes {
            ZoneState::FullDisruption
        } else if zone.unhealthy >= PARTIAL_MIN && part() >= self.unhealthy_threshold {
            ZoneState::PartialDisruption
        } else {
            ZoneState::Normal
        }
    }

    /// Returns the rate of taints in nodes per second for a zone of this size.
    fn rate(&self, state: ZoneState, nodes: usize) -> f64 {
        match state {
            ZoneState::PartialDisruption if nodes > self.large_zone => self.disrupted,
            ZoneState::PartialDisruption => 0.0,
            ZoneState::Initial | ZoneState::Normal | ZoneState::FullDisruption => self.healthy,
        }
    }
}

impl Zone {
    fn new(rate: f64) -> Self {
        let (state, count) = (ZoneState::Initial, ZoneCount::default());
        Self { state, count, rate, last: None, waiting: VecDeque::new() }
    }

    /// Returns when the next node may be tainted, or `None` if none may until the zone's state changes.
    fn next(&self, now: Instant) -> Option<Instant> {
        if self.rate <= 0.0 {
            return None;
        }
        let Some(last) = self.last else { return Some(now) };
        // A rate whose pause is not representable counts as zero.
        let pause = Duration::try_from_secs_f64(self.rate.recip()).ok()?;
        Some(last.checked_add(pause)?.max(now))
    }
}

impl Zones {
    /// Returns the state without zones.
    pub fn new(rates: EvictionRates) -> Self {
        Self { rates, zones: BTreeMap::new(), waiting: HashSet::new() }
    }

    /// Updates the counts of all zones.
    pub fn update(&mut self, counts: &BTreeMap<String, ZoneCount>) -> Turn {
        let healthy = self.rates.healthy;
        self.zones.retain(|name, zone| counts.contains_key(name) || !zone.waiting.is_empty());
        let was_lost = self.all_lost();
        let is_lost = !counts.is_empty() && counts.values().all(|c| self.rates.state(*c) == ZoneState::FullDisruption);
        for (name, count) in counts {
            let zone = self.zones.entry(name.clone()).or_insert_with(|| Zone::new(healthy));
            zone.state = self.rates.state(*count);
            zone.count = *count;
            zone.rate = if is_lost { 0.0 } else { self.rates.rate(zone.state, count.nodes) };
        }
        match (was_lost, is_lost) {
            (false, true) => {
                self.waiting.clear();
                self.zones.values_mut().for_each(|z| z.waiting.clear());
                Turn::AllLost
            }
            (true, false) => Turn::SomeBack,
            _ => Turn::Same,
        }
    }

    /// Whether no node of the cluster is ready.
    pub fn all_lost(&self) -> bool {
        !self.zones.is_empty() && self.zones.values().all(|z| z.state == ZoneState::FullDisruption)
    }

    /// Adds a node that is not ready to the waiting nodes.
    pub fn wait(&mut self, zone: &str, node: &str) {
        if self.waiting.insert(node.to_owned()) {
            let healthy = self.rates.healthy;
            let zone = self.zones.entry(zone.to_owned()).or_insert_with(|| Zone::new(healthy));
            zone.waiting.push_back(node.to_owned());
        }
    }

    /// Removes a node that is ready again, deleted, or tainted from the waiting nodes.
    pub fn leave(&mut self, node: &str) {
        if self.waiting.remove(node) {
            self.zones.values_mut().for_each(|z| z.waiting.retain(|n| n != node));
        }
    }

    /// Removes and returns the node of a zone that may be tainted now.
    pub fn take(&mut self, zone: &str, now: Instant) -> Option<String> {
        let zone = self.zones.get_mut(zone)?;
        if zone.next(now)? > now {
            return None;
        }
        let node = zone.waiting.pop_front()?;
        zone.last = Some(now);
        self.waiting.remove(&node);
        Some(node)
    }

    /// Returns the zones in which a waiting node may be tainted, and the time until then.
    pub fn due(&self, now: Instant) -> Vec<(String, Duration)> {
        let waiting = self.zones.iter().filter(|(_, z)| !z.waiting.is_empty());
        waiting.filter_map(|(name, z)| Some((name.clone(), z.next(now)?.duration_since(now)))).collect()
    }

    /// Returns the counts of each zone, for metrics.
    pub fn counts(&self) -> impl Iterator<Item = (&str, ZoneCount)> {
        self.zones.iter().map(|(name, z)| (name.as_str(), z.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: &[(&str, usize, usize)]) -> BTreeMap<String, ZoneCount> {
        of.iter()
            .map(|(z, nodes, unhealthy)| ((*z).to_owned(), ZoneCount { nodes: *nodes, unhealthy: *unhealthy }))
            .collect()
    }

    #[test]
    fn states_of_zones() {
        let rates = EvictionRates::default();
        for (nodes, unhealthy, want, rate) in [
            (0, 0, ZoneState::Normal, 0.1),
            (1, 0, ZoneState::Normal, 0.1),
            (1, 1, ZoneState::FullDisruption, 0.1),
            (3, 2, ZoneState::Normal, 0.1),
            (4, 3, ZoneState::PartialDisruption, 0.0),
            (100, 54, ZoneState::Normal, 0.1),
            (100, 55, ZoneState::PartialDisruption, 0.01),
            (50, 40, ZoneState::PartialDisruption, 0.0),
            (51, 40, ZoneState::PartialDisruption, 0.01),
            (100, 100, ZoneState::FullDisruption, 0.1),
        ] {
            let state = rates.state(ZoneCount { nodes, unhealthy });
            assert_eq!((state, rates.rate(state, nodes)), (want, rate), "{unhealthy} of {nodes}");
        }
    }

    #[test]
    fn where_a_node_is() {
        let node = |labels: serde_json::Value| -> NodeView {
            serde_json::from_value(serde_json::json!({"metadata": {"name": "n", "labels": labels}})).unwrap()
        };
        let (zone, region) = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region");
        let old = "failure-domain.beta.kubernetes.io/zone";
        for (labels, want) in [
            (serde_json::json!({}), ""),
            (serde_json::json!({zone: "a"}), ":\0:a"),
            (serde_json::json!({zone: "a", region: "r"}), "r:\0:a"),
            (serde_json::json!({zone: "a", old: "b"}), ":\0:b"),
        ] {
            assert_eq!(zone_of(&node(labels.clone())), want, "{labels}");
        }
        let all = [node(serde_json::json!({})), node(serde_json::json!({EXCLUDED: ""}))];
        assert_eq!(count(all.iter()), counts(&[("", 1, 1)]));
    }

    #[test]
    fn nodes_have_their_turn_at_the_zones_rate() {
        let (mut z, now) = (Zones::new(EvictionRates::default()), Instant::now());
        let after = |s: u64| now + Duration::from_secs(s);
        assert_eq!(z.update(&counts(&[("a", 9, 2)])), Turn::Same);
        for node in ["n1", "n2", "n3", "n1"] {
            z.wait("a", node);
        }
        assert_eq!(z.take("a", now).as_deref(), Some("n1"), "the first at once");
        assert_eq!(z.take("a", after(9)), None);
        assert_eq!(z.due(after(9)), [("a".to_owned(), Duration::from_secs(1))]);
        z.leave("n2");
        assert_eq!(z.take("a", after(10)).as_deref(), Some("n3"), "who is ready again takes nobody's turn");
        assert!(z.due(after(10)).is_empty());
        z.wait("a", "n4");
        assert_eq!(z.update(&counts(&[("a", 9, 6)])), Turn::Same);
        assert_eq!((z.take("a", after(100)), z.due(after(100))), (None, vec![]), "a small zone, mostly down: nobody");
        assert_eq!(z.update(&counts(&[("a", 90, 60)])), Turn::Same);
        assert_eq!(
            (z.take("a", after(109)), z.take("a", after(110)).as_deref()),
            (None, Some("n4")),
            "a large one: slowly"
        );
    }

    #[test]
    fn without_ready_nodes_no_pod_is_evicted() {
        let (mut z, now) = (Zones::new(EvictionRates::default()), Instant::now());
        assert_eq!(z.update(&counts(&[])), Turn::Same, "no nodes at all");
        assert_eq!(z.update(&counts(&[("a", 2, 2), ("b", 2, 0)])), Turn::Same);
        z.wait("a", "n1");
        assert_eq!(z.take("a", now).as_deref(), Some("n1"), "one zone is gone: its pods go elsewhere");
        z.wait("a", "n2");
        assert_eq!(z.update(&counts(&[("a", 2, 2), ("b", 2, 2)])), Turn::AllLost);
        assert_eq!(z.update(&counts(&[("a", 2, 2), ("b", 2, 2)])), Turn::Same, "said once");
        z.wait("b", "n3");
        assert_eq!((z.take("b", now), z.due(now)), (None, vec![]));
        assert_eq!(z.update(&counts(&[("a", 2, 2), ("b", 2, 1)])), Turn::SomeBack);
        assert_eq!(z.take("b", now).as_deref(), Some("n3"));
    }
}
