//! The clock the store reads for ages and expiry. Revisions never depend on it.

use std::time::{SystemTime, UNIX_EPOCH};

/// A source of wall-clock time. A clock that jumps only makes log ageing and expiry early or late.
pub trait Clock: Send + Sync + 'static {
    /// Seconds since the Unix epoch.
    fn now_unix_s(&self) -> u64;
}

/// The machine's own clock.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_unix_s(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
    }
}
