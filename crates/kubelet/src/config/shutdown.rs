//! How long pods get when the node is shut down (`shutdownGracePeriod` and what belongs to it).
use std::time::Duration;

/// `status.reason` of a pod that ended because its node goes down.
pub const TERMINATED: &str = "Terminated";
/// Priority of pods that say none.
const USUAL: i32 = 0;
/// Priority from which pods are critical to the cluster.
const CRITICAL: i32 = 2_000_000_000;

/// Pods of this priority and of those up to the next one have so long to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownPeriod {
    /// The lowest priority that it is for.
    pub priority: i32,
    /// How long they have (`shutdownGracePeriodSeconds`).
    pub grace: Duration,
}

/// The periods that `shutdownGracePeriod` stands for, of which the last `critical` is for critical pods alone; none, where it
/// is zero or shorter than that.
pub fn of_two(all: Duration, critical: Duration) -> Vec<ShutdownPeriod> {
    match all.checked_sub(critical) {
        Some(usual) if !all.is_zero() => vec![
            ShutdownPeriod { priority: USUAL, grace: usual },
            ShutdownPeriod { priority: CRITICAL, grace: critical },
        ],
        _ => Vec::new(),
    }
}
