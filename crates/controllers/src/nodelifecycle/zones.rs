//! How fast nodes that are not ready may lose their pods, zone by zone: a node gets its `NoExecute` taint only in its turn. Where
//! most of a zone is not ready, and above all where the whole cluster is not, it is rather the network or the control plane
//! that is broken, and to move pods would do harm. Upstream `pkg/controller/nodelifecycle` (`ComputeZoneState`,
//! `handleDisruption`), here without polling: the states are looked at when a node's readiness changes. Pure but for the
//! monotonic clock that is handed in.
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::shared::config::EvictionRates;
use crate::views::NodeView;
use crate::views::condition;

/// A node with this label does not count for the state of its zone.
const EXCLUDED: &str = "node.kubernetes.io/exclude-disruption";
/// So many nodes of a zone must be unhealthy before it can count as partially disrupted.
const PARTIAL_MIN: usize = 3;

/// What is believed of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneState {
    /// Not looked at yet.
    Initial,
    /// Enough nodes are ready.
    Normal,
    /// Many are not.
    PartialDisruption,
    /// No node of the zone is ready.
    FullDisruption,
}

/// What a look at all zones came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// As before, or another rate somewhere.
    Same,
    /// No node of the cluster is ready any more: the taints that were put are to be taken back.
    AllLost,
    /// A first node is ready again: the others get their whole grace anew, as nobody could be heard meanwhile.
    SomeBack,
}

/// How many nodes a zone has, and how many of them are not ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneCount {
    /// All that count.
    pub nodes: usize,
    /// Those not ready.
    pub unhealthy: usize,
}

#[derive(Debug)]
struct Zone {
    state: ZoneState,
    count: ZoneCount,
    /// Nodes a second; zero: none.
    rate: f64,
    /// When a node was last tainted.
    last: Option<Instant>,
    /// Nodes that wait, the longest first.
    waiting: VecDeque<String>,
}

#[derive(Debug)]
pub struct Zones {
    rates: EvictionRates,
    zones: BTreeMap<String, Zone>,
    waiting: HashSet<String>,
}

/// The zone of a node: region and zone by its labels; empty where it has neither.
pub fn zone_of(node: &NodeView) -> String {
    let label = |old: &str, new: &str| {
        let labels = &node.metadata.labels;
        labels.get(old).or_else(|| labels.get(new)).cloned().unwrap_or_default()
    };
    let zone = label("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone");
    let region = label("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region");
    if zone.is_empty() && region.is_empty() { String::new() } else { format!("{region}:\0:{zone}") }
}

/// Counts the nodes of every zone.
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
    /// What a zone of so many nodes is in.
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

    /// How many nodes a second are tainted in a zone of so many nodes.
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

    /// When the next node has its turn; `None`: not before the zone's state changes.
    fn next(&self, now: Instant) -> Option<Instant> {
        if self.rate <= 0.0 {
            return None;
        }
        let Some(last) = self.last else { return Some(now) };
        // A rate so low that the time cannot be told is as good as none.
        let pause = Duration::try_from_secs_f64(self.rate.recip()).ok()?;
        Some(last.checked_add(pause)?.max(now))
    }
}

impl Zones {
    /// No zone is known.
    pub fn new(rates: EvictionRates) -> Self {
        Self { rates, zones: BTreeMap::new(), waiting: HashSet::new() }
    }

    /// Takes the newest counts of all zones.
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

    /// A node that is not ready waits for its turn.
    pub fn wait(&mut self, zone: &str, node: &str) {
        if self.waiting.insert(node.to_owned()) {
            let healthy = self.rates.healthy;
            let zone = self.zones.entry(zone.to_owned()).or_insert_with(|| Zone::new(healthy));
            zone.waiting.push_back(node.to_owned());
        }
    }

    /// A node is ready again, gone, or has its taint.
    pub fn leave(&mut self, node: &str) {
        if self.waiting.remove(node) {
            self.zones.values_mut().for_each(|z| z.waiting.retain(|n| n != node));
        }
    }

    /// The node whose turn it is in a zone; it no longer waits.
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

    /// Zones in which somebody waits who will have a turn, and how long until then.
    pub fn due(&self, now: Instant) -> Vec<(String, Duration)> {
        let waiting = self.zones.iter().filter(|(_, z)| !z.waiting.is_empty());
        waiting.filter_map(|(name, z)| Some((name.clone(), z.next(now)?.duration_since(now)))).collect()
    }

    /// What is known of each zone, for metrics.
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
    fn where_nobody_is_ready_nobody_is_moved() {
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
