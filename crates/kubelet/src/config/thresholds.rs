//! Configured eviction thresholds: signal, amount and grace period, and the node conditions that they set. The module `eviction` decides
//! when a threshold is met.
use std::time::Duration;

use kelson_meta::Quantity;

/// `status.reason` of an evicted pod, and reason of its event.
pub const EVICTED: &str = "Evicted";
/// `status.reason` of a pod that was preempted for a critical pod, and reason of its event.
pub const PREEMPTED: &str = "Preempting";
/// Message of the `DisruptionTarget` condition of a preempted pod.
pub const PREEMPTED_CONDITION: &str = "Pod was preempted by Kubelet to accommodate a critical pod.";

/// `evictionHard`, `evictionSoft` and related fields.
#[derive(Clone, Debug)]
pub struct EvictionConfig {
    /// Hard and soft thresholds.
    pub thresholds: Vec<Threshold>,
    /// `--eviction-pressure-transition-period`: time after which a node condition is cleared.
    pub transition: Duration,
    /// `--eviction-max-pod-grace-period`: maximum grace period of an eviction by a soft threshold.
    pub max_pod_grace: Duration,
    /// Whether pods that exceed their ephemeral storage limits are evicted (`localStorageCapacityIsolation`).
    pub own_limits: bool,
}

impl Default for EvictionConfig {
    fn default() -> Self {
        Self {
            thresholds: DEFAULT_HARD.to_vec(),
            transition: Duration::from_secs(300),
            max_pod_grace: Duration::ZERO,
            own_limits: true,
        }
    }
}

/// Pressure conditions of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Whether the condition `MemoryPressure` is true.
    pub memory: bool,
    /// Whether the condition `DiskPressure` is true.
    pub disk: bool,
    /// Whether the condition `PIDPressure` is true.
    pub pid: bool,
}

/// An eviction signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// `memory.available`: available memory of the machine in bytes.
    MemoryAvailable,
    /// `nodefs.available`: free bytes of the file system of volumes and logs.
    NodeFsAvailable,
    /// `nodefs.inodesFree`: free inodes of the same file system.
    NodeFsInodesFree,
    /// `imagefs.available`: free bytes of the runtime's file system.
    ImageFsAvailable,
    /// `imagefs.inodesFree`: free inodes of the same file system.
    ImageFsInodesFree,
    /// `pid.available`: process IDs that are free.
    PidAvailable,
    /// `allocatableMemory.available`: bytes left below the memory limit of all pods.
    AllocatableMemoryAvailable,
}

impl Signal {
    /// Every signal, in the order of `Signal`.
    pub const ALL: [Self; 7] = [
        Self::MemoryAvailable,
        Self::NodeFsAvailable,
        Self::NodeFsInodesFree,
        Self::ImageFsAvailable,
        Self::ImageFsInodesFree,
        Self::PidAvailable,
        Self::AllocatableMemoryAvailable,
    ];
    /// Signals of a separate file system for containers' writable layers. They derive from the signals of `nodefs` or `imagefs`.
    pub const FOLLOWING: [&str; 2] = ["containerfs.available", "containerfs.inodesFree"];
    /// Name in flags and configuration files.
    pub fn name(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::NodeFsAvailable => "nodefs.available",
            Self::NodeFsInodesFree => "nodefs.inodesFree",
            Self::ImageFsAvailable => "imagefs.available",
            Self::ImageFsInodesFree => "imagefs.inodesFree",
            Self::PidAvailable => "pid.available",
            Self::AllocatableMemoryAvailable => "allocatableMemory.available",
        }
    }
    /// Resource that is short when the signal is below its threshold.
    pub fn resource(self) -> &'static str {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => "memory",
            Self::NodeFsAvailable | Self::ImageFsAvailable => "ephemeral-storage",
            Self::NodeFsInodesFree | Self::ImageFsInodesFree => "inodes",
            Self::PidAvailable => "pids",
        }
    }
}

/// An absolute amount, or a percentage of the capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Bytes, inodes or processes.
    Absolute(u64),
    /// Percent of the capacity.
    Percent(f64),
}

impl Amount {
    /// Returns the absolute amount for a capacity.
    pub fn of(self, capacity: u64) -> u64 {
        match self {
            Self::Absolute(n) => n,
            Self::Percent(p) => (capacity as f64 * p / 100.0) as u64,
        }
    }
}

impl std::str::FromStr for Amount {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = match text.strip_suffix('%') {
            Some(p) => p.parse().ok().filter(|p| (0.0..=100.0).contains(p)).map(Self::Percent),
            None => text.parse::<Quantity>().ok().and_then(|q| u64::try_from(q.value()).ok()).map(Self::Absolute),
        };
        found.ok_or("must be a quantity or a percentage, and not negative")
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

/// A threshold: the kubelet evicts pods when the signal is below its value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    /// The measured signal.
    pub signal: Signal,
    /// The threshold is met below this value.
    pub value: Amount,
    /// The time for which the threshold must be met before pods are evicted. Zero makes it a hard threshold.
    pub grace: Duration,
    /// `evictionMinimumReclaim`: how far the signal must rise above the value before the threshold is no longer met.
    pub min_reclaim: Option<Amount>,
}

impl Threshold {
    /// Creates a hard threshold.
    pub const fn hard(signal: Signal, value: Amount) -> Self {
        Self { signal, value, grace: Duration::ZERO, min_reclaim: None }
    }
    /// Returns whether evicted pods get only the minimum grace period.
    pub fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }
}

/// Hard thresholds in the syntax of `--eviction-hard`: `memory.available<100Mi,nodefs.available<10%`.
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
            let value = value.parse::<Amount>().map_err(|_| syntax())?;
            out.push(Threshold::hard(signal, value));
        }
        Ok(Self(out))
    }
}

/// Upstream's default of `--eviction-hard`.
pub const DEFAULT_HARD: &[Threshold] = &[
    Threshold::hard(Signal::MemoryAvailable, Amount::Absolute(100 << 20)),
    Threshold::hard(Signal::NodeFsAvailable, Amount::Percent(10.0)),
    Threshold::hard(Signal::NodeFsInodesFree, Amount::Percent(5.0)),
    Threshold::hard(Signal::ImageFsAvailable, Amount::Percent(15.0)),
    Threshold::hard(Signal::ImageFsInodesFree, Amount::Percent(5.0)),
];

/// Formats bytes, inodes or processes for messages.
pub fn amount(n: u64) -> Quantity {
    Quantity::binary(i64::try_from(n).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
