//! The metrics of audit, with upstream's names (`apiserver_audit_*`).
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kelson_metrics::Families;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::event::Level;

/// The part that failed for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The log back-end (label `plugin`).
    Log,
    /// The webhook back-end (label `plugin`).
    Webhook,
    /// The queue was full.
    Buffered,
    /// The event was too large even without its objects.
    Truncate,
}

impl Part {
    const ALL: [(Self, &'static str); 4] =
        [(Self::Log, "log"), (Self::Webhook, "webhook"), (Self::Buffered, "buffered"), (Self::Truncate, "truncate")];
}

/// The interval of log messages about lost events.
const REPORT_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub struct Counters {
    events: AtomicU64,
    rejected: AtomicU64,
    levels: [AtomicU64; 4],
    errors: [AtomicU64; 4],
    reported: Mutex<Option<Instant>>,
}

impl Counters {
    pub fn event(&self) {
        self.events.fetch_add(1, Ordering::Relaxed);
    }
    /// Counts a request that is rejected because its event could not be written.
    pub fn rejected(&self) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }
    pub fn level(&self, level: Level) {
        self.levels[level as usize].fetch_add(1, Ordering::Relaxed);
    }
    /// Counts lost events, and logs the loss at intervals.
    pub fn lost(&self, part: Part, events: usize, why: &str) {
        self.errors[part as usize].fetch_add(events as u64, Ordering::Relaxed);
        let mut reported = self.reported.lock();
        if reported.is_none_or(|at| at.elapsed() >= REPORT_EVERY) {
            *reported = Some(Instant::now());
            tracing::error!(?part, events, why, "lost audit events");
        }
    }
    #[cfg(test)]
    pub fn errors(&self, part: Part) -> u64 {
        self.errors[part as usize].load(Ordering::Relaxed)
    }
    /// Adds the metrics to a scrape.
    pub fn scrape(&self, families: &mut Families) {
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed) as f64;
        let events = "Audit events passed to the backends.";
        families.counter("apiserver_audit_event_total", events).sample(&[], read(&self.events));
        let rejected = "Requests rejected because they could not be audited.";
        families.counter("apiserver_audit_requests_rejected_total", rejected).sample(&[], read(&self.rejected));
        let mut levels = families.counter("apiserver_audit_level_total", "Requests by audit level.");
        for level in Level::ALL {
            levels.sample(&[("level", level.as_str())], read(&self.levels[level as usize]));
        }
        let mut errors = families.counter("apiserver_audit_error_total", "Lost audit events by component.");
        for (part, name) in Part::ALL {
            errors.sample(&[("plugin", name)], read(&self.errors[part as usize]));
        }
    }
}
