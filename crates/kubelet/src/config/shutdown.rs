//! Grace periods of graceful node shutdown (`shutdownGracePeriod` and related fields).
use std::time::Duration;

/// `status.reason` of a pod that was ended by a node shutdown.
pub const TERMINATED: &str = "Terminated";
/// Priority of pods without one.
const USUAL: i32 = 0;
/// Lowest priority of critical pods.
const CRITICAL: i32 = 2_000_000_000;

/// Grace period of the pods from this priority up to the next entry's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownPeriod {
    /// Lowest priority that the period applies to.
    pub priority: i32,
    /// `shutdownGracePeriodSeconds`: time for these pods to end.
    pub grace: Duration,
}

/// Converts `shutdownGracePeriod` and `shutdownGracePeriodCriticalPods` to periods by priority; the last `critical` is reserved for
/// critical pods. Empty if `all` is zero or shorter than `critical`.
pub fn of_two(all: Duration, critical: Duration) -> Vec<ShutdownPeriod> {
    match all.checked_sub(critical) {
        Some(usual) if !all.is_zero() => vec![
            ShutdownPeriod { priority: USUAL, grace: usual },
            ShutdownPeriod { priority: CRITICAL, grace: critical },
        ],
        _ => Vec::new(),
    }
}
