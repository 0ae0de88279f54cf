//! The scheduler's metrics, under upstream's names.
use std::time::Duration;

use kelson_metrics::{Families, Histogram, IntCounter, Registry, exponential_buckets};

use crate::queue::Depth;

/// How an attempt to place a pod ended.
#[derive(Clone, Copy, Debug)]
pub enum Attempt {
    /// A node was found.
    Scheduled,
    /// No node fits.
    Unschedulable,
    /// The binding failed.
    Error,
}

const RESULTS: [&str; 3] = ["scheduled", "unschedulable", "error"];

/// What is counted while pods are placed.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    /// In the order of the profiles.
    profiles: Vec<ProfileCounts>,
}

/// What is counted of one profile, by result.
#[derive(Clone, Debug)]
struct ProfileCounts {
    attempts: [IntCounter; 3],
    durations: [Histogram; 3],
}

impl Metrics {
    /// Nothing counted yet. `profiles` are the schedulers' names.
    pub fn new<'a>(profiles: impl IntoIterator<Item = &'a str>, registry: Registry) -> Self {
        let attempts = registry.counters(
            "scheduler_schedule_attempts_total",
            "Attempts to place a pod, by result.",
            &["profile", "result"],
        );
        // 1 ms to 16 s, doubling.
        let bounds = exponential_buckets(0.001, 2.0, 15).unwrap_or_default();
        let durations = registry.histograms(
            "scheduler_scheduling_attempt_duration_seconds",
            "Time to decide about a pod, without its binding.",
            &["profile", "result"],
            &bounds,
        );
        let counted = profiles.into_iter().map(|profile| ProfileCounts {
            attempts: RESULTS.map(|r| attempts.with_label_values(&[profile, r])),
            durations: RESULTS.map(|r| durations.with_label_values(&[profile, r])),
        });
        Self { profiles: counted.collect(), registry }
    }

    /// Counts an attempt of a profile.
    pub fn attempt(&self, profile: usize, how: Attempt, took: Duration) {
        if let Some(counted) = self.profiles.get(profile) {
            counted.attempts[how as usize].inc();
            counted.durations[how as usize].observe(took.as_secs_f64());
        }
    }

    /// All of the scheduler's metrics.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }
}

/// How many pods wait, by where.
pub fn pending(families: &mut Families, depth: &Depth) {
    let mut pods = families.gauge("scheduler_pending_pods", "Pods that wait, by the queue they wait in.");
    for (queue, n) in [
        ("active", depth.active),
        ("backoff", depth.backoff),
        ("gated", depth.gated),
        ("unschedulable", depth.unschedulable),
    ] {
        pods.sample(&[("queue", queue)], n as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_and_waiting_pods() {
        let metrics = Metrics::new(["s"], Registry::of_component());
        metrics.attempt(0, Attempt::Scheduled, Duration::from_millis(3));
        let depth = Depth { active: 2, backoff: 0, gated: 1, unschedulable: 0 };
        metrics.registry().on_scrape(move |families| pending(families, &depth));
        let text = metrics.registry().text();
        for line in [
            "scheduler_schedule_attempts_total{profile=\"s\",result=\"scheduled\"} 1",
            "scheduler_schedule_attempts_total{profile=\"s\",result=\"error\"} 0",
            "scheduler_scheduling_attempt_duration_seconds_bucket{profile=\"s\",result=\"scheduled\",le=\"0.002\"} 0",
            "scheduler_scheduling_attempt_duration_seconds_bucket{profile=\"s\",result=\"scheduled\",le=\"0.004\"} 1",
            "scheduler_pending_pods{queue=\"active\"} 2",
            "scheduler_pending_pods{queue=\"gated\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }
}
