//! Eviction thresholds: what is measured, when it counts as met, for how long, and which node conditions follow. Pure;
//! time comes in as a value (upstream: `pkg/kubelet/eviction/helpers.go`).
use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use kelson_meta::Quantity;

use crate::node::facts::Pressure;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// Memory the machine can still give.
    MemoryAvailable,
    /// Free bytes of the file system of volumes and logs.
    NodeFsAvailable,
    /// Free inodes of the same.
    NodeFsInodesFree,
    /// Free bytes of the runtime's file system.
    ImageFsAvailable,
    /// Free inodes of the same.
    ImageFsInodesFree,
    /// Process IDs left.
    PidAvailable,
}

impl Signal {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::MemoryAvailable,
        Self::NodeFsAvailable,
        Self::NodeFsInodesFree,
        Self::ImageFsAvailable,
        Self::ImageFsInodesFree,
        Self::PidAvailable,
    ];
    /// As flags and documents spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::NodeFsAvailable => "nodefs.available",
            Self::NodeFsInodesFree => "nodefs.inodesFree",
            Self::ImageFsAvailable => "imagefs.available",
            Self::ImageFsInodesFree => "imagefs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }
    /// The resource that is short when the signal is low.
    pub fn resource(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory",
            Self::NodeFsAvailable | Self::ImageFsAvailable => "ephemeral-storage",
            Self::NodeFsInodesFree | Self::ImageFsInodesFree => "inodes",
            Self::PidAvailable => "pids",
        }
    }
    fn condition(self) -> Condition {
        match self {
            Self::MemoryAvailable => Condition::Memory,
            Self::PidAvailable => Condition::Pid,
            _ => Condition::Disk,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Condition {
    Memory,
    Disk,
    Pid,
}

/// An amount, or a share of the capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Bytes, inodes or processes.
    Absolute(u64),
    /// Hundredths of the capacity.
    Percent(f64),
}

impl Amount {
    /// The amount for a capacity.
    pub fn of(self, capacity: u64) -> u64 {
        match self {
            Self::Absolute(n) => n,
            Self::Percent(p) => (capacity as f64 * p / 100.0) as u64,
        }
    }
}

impl std::fmt::Display for Amount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Absolute(n) => write!(f, "{}", amount(*n)),
            Self::Percent(p) => write!(f, "{p}%"),
        }
    }
}

/// One threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    /// What is measured.
    pub signal: Signal,
    /// Met below this.
    pub value: Amount,
    /// How long it must be met before pods are evicted; zero makes it a hard threshold.
    pub grace: Duration,
    /// How far above the value it must come back to count as met no more.
    pub min_reclaim: Option<Amount>,
}

impl Threshold {
    /// A hard threshold.
    pub const fn hard(signal: Signal, value: Amount) -> Self {
        Self { signal, value, grace: Duration::ZERO, min_reclaim: None }
    }
    /// Whether pods get no more than the least grace.
    pub fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }
    fn met(&self, o: &Observation, reclaimed: bool) -> bool {
        let extra = self.min_reclaim.filter(|_| reclaimed).map_or(0, |m| m.of(o.capacity));
        o.available < self.value.of(o.capacity).saturating_add(extra)
    }
}

/// Hard thresholds as `--eviction-hard` has them: `memory.available<100Mi,nodefs.available<10%`.
#[derive(Clone, Debug, PartialEq)]
pub struct HardThresholds(pub Vec<Threshold>);

impl std::str::FromStr for HardThresholds {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut out: Vec<Threshold> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let syntax = || format!("invalid eviction threshold syntax {part}, expected <signal><operator><value>");
            let (name, value) = part.split_once('<').ok_or_else(syntax)?;
            let signal = Signal::ALL.into_iter().find(|s| s.name() == name);
            let signal = signal.ok_or_else(|| format!("unsupported eviction signal {name}"))?;
            if out.iter().any(|t| t.signal == signal) {
                return Err(format!("found duplicate eviction threshold for signal {name}"));
            }
            let value = match value.strip_suffix('%') {
                Some(p) => p.parse().ok().filter(|p| (0.0..=100.0).contains(p)).map(Amount::Percent),
                None => {
                    value.parse::<Quantity>().ok().and_then(|q| u64::try_from(q.value()).ok()).map(Amount::Absolute)
                }
            };
            out.push(Threshold::hard(signal, value.ok_or_else(syntax)?));
        }
        Ok(Self(out))
    }
}

/// `--eviction-hard` as upstream defaults it.
pub const DEFAULT_HARD: &[Threshold] = &[
    Threshold::hard(Signal::MemoryAvailable, Amount::Absolute(100 << 20)),
    Threshold::hard(Signal::NodeFsAvailable, Amount::Percent(10.0)),
    Threshold::hard(Signal::NodeFsInodesFree, Amount::Percent(5.0)),
    Threshold::hard(Signal::ImageFsAvailable, Amount::Percent(15.0)),
    Threshold::hard(Signal::ImageFsInodesFree, Amount::Percent(5.0)),
];

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// What is left.
    pub available: u64,
    /// Of how much.
    pub capacity: u64,
}

/// All measurements of one look.
pub type Observations = BTreeMap<Signal, Observation>;

/// What was seen in earlier looks.
#[derive(Clone, Debug, Default)]
pub struct Tracker {
    /// Thresholds (by position) that drove evictions in the last look.
    met: Vec<usize>,
    first_met: BTreeMap<usize, Timestamp>,
    condition_seen: BTreeMap<Condition, Timestamp>,
}

impl Tracker {
    /// Takes in a look; gives the thresholds that are met and whose grace has passed, memory first.
    pub fn look(
        &mut self,
        thresholds: &[Threshold],
        transition: Duration,
        seen: &Observations,
        now: Timestamp,
    ) -> Vec<Threshold> {
        let met: Vec<usize> = (0..thresholds.len())
            .filter(|i| {
                let t = &thresholds[*i];
                seen.get(&t.signal).is_some_and(|o| t.met(o, self.met.contains(i)))
            })
            .collect();
        self.first_met.retain(|i, _| met.contains(i));
        for i in &met {
            self.first_met.entry(*i).or_insert(now);
            self.condition_seen.insert(thresholds[*i].signal.condition(), now);
        }
        // A condition stays for a while after its last sight, so that it does not come and go.
        self.condition_seen.retain(|_, at| now.duration_since(*at).unsigned_abs() < transition || *at == now);
        let due = |i: &usize| now.duration_since(self.first_met[i]).unsigned_abs() >= thresholds[*i].grace;
        self.met = met.into_iter().filter(due).collect();
        let mut out: Vec<Threshold> = self.met.iter().map(|i| thresholds[*i]).collect();
        out.sort_by_key(|t| t.signal != Signal::MemoryAvailable);
        out
    }

    /// The node conditions that hold.
    pub fn pressure(&self) -> Pressure {
        let has = |c: Condition| self.condition_seen.contains_key(&c);
        Pressure { memory: has(Condition::Memory), disk: has(Condition::Disk), pid: has(Condition::Pid) }
    }
}

/// A number of bytes, inodes or processes as messages show it.
pub fn amount(n: u64) -> Quantity {
    Quantity::binary(i64::try_from(n).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).expect("time")
    }
    fn memory(mib: u64) -> Observations {
        let o = Observation { available: mib << 20, capacity: 1000 << 20 };
        Observations::from([(Signal::MemoryAvailable, o)])
    }

    #[test]
    fn hard_at_once_and_conditions_stay_for_the_transition_period() {
        let mut t = Tracker::default();
        let transition = Duration::from_secs(300);
        assert!(t.look(DEFAULT_HARD, transition, &memory(100), at(0)).is_empty());
        assert_eq!(t.pressure(), Pressure::default());
        assert_eq!(t.look(DEFAULT_HARD, transition, &memory(99), at(10)).len(), 1);
        assert!(t.pressure().memory && !t.pressure().disk);
        assert!(t.look(DEFAULT_HARD, transition, &memory(500), at(20)).is_empty());
        assert!(t.pressure().memory);
        t.look(DEFAULT_HARD, transition, &memory(500), at(309));
        assert!(t.pressure().memory);
        t.look(DEFAULT_HARD, transition, &memory(500), at(310));
        assert!(!t.pressure().memory);
    }

    #[test]
    fn soft_waits_and_least_reclaim_holds_on() {
        let soft = [Threshold {
            signal: Signal::MemoryAvailable,
            value: Amount::Percent(20.0),
            grace: Duration::from_secs(60),
            min_reclaim: Some(Amount::Absolute(100 << 20)),
        }];
        let mut t = Tracker::default();
        let mut met = |mib: u64, s: i64| t.look(&soft, Duration::ZERO, &memory(mib), at(s)).len();
        assert_eq!(met(199, 0), 0);
        assert_eq!(met(250, 30), 0, "it recovered before its grace passed, and begins anew");
        assert_eq!(met(199, 40), 0);
        assert_eq!(met(199, 99), 0);
        assert_eq!(met(199, 100), 1);
        assert_eq!(met(299, 110), 1, "not yet reclaimed enough");
        assert_eq!(met(300, 120), 0);
    }

    #[test]
    fn amounts_as_documents_have_them() {
        let all: Vec<String> = DEFAULT_HARD.iter().map(|t| t.value.to_string()).collect();
        assert_eq!(all, ["100Mi", "10%", "5%", "15%", "5%"]);
        let text: Vec<String> = DEFAULT_HARD.iter().map(|t| format!("{}<{}", t.signal.name(), t.value)).collect();
        assert_eq!(text.join(",").parse::<HardThresholds>().map(|h| h.0), Ok(DEFAULT_HARD.to_vec()));
        assert_eq!("".parse::<HardThresholds>().map(|h| h.0), Ok(vec![]));
        let fault = |text: &str| text.parse::<HardThresholds>().expect_err(text);
        assert_eq!(fault("memory.free<1Mi"), "unsupported eviction signal memory.free");
        assert!(fault("memory.available").starts_with("invalid eviction threshold syntax memory.available,"));
        assert!(fault("memory.available<101%").starts_with("invalid eviction threshold syntax"));
        assert!(fault("pid.available<1,pid.available<2").starts_with("found duplicate"));
    }

    #[test]
    fn memory_comes_first() {
        let low = Observation { available: 0, capacity: 100 };
        let seen = Observations::from([(Signal::NodeFsAvailable, low), (Signal::MemoryAvailable, low)]);
        let mut reversed = DEFAULT_HARD.to_vec();
        reversed.reverse();
        let met = Tracker::default().look(&reversed, Duration::ZERO, &seen, at(0));
        assert_eq!(met.iter().map(|t| t.signal.name()).collect::<Vec<_>>(), ["memory.available", "nodefs.available"]);
    }
}
