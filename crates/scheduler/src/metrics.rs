//! The scheduler's metrics, under upstream's names (`pkg/scheduler/metrics`): all stable and beta ones, and the others
//! that are meaningful here.
use std::time::Duration;

use kelson_metrics::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, Registry, exponential_buckets};
use tokio::time::Instant;

use crate::evaluation::preempt::Outcome;
use crate::evaluation::select::DecisionTimes;
use crate::plugins::change::Change;
use crate::queue::Waited;

/// The result of an attempt to schedule a pod.
#[derive(Clone, Copy, Debug)]
pub enum Attempt {
    /// The pod was bound to a node.
    Scheduled,
    /// No node fits.
    Unschedulable,
    /// The binding failed.
    Error,
}

const RESULTS: [&str; 3] = ["scheduled", "unschedulable", "error"];

/// The timed parts of an attempt, by upstream's names.
#[derive(Clone, Copy, Debug)]
pub enum ExtensionPoint {
    PreFilter,
    Filter,
    Score,
    PostFilter,
    /// Binding volumes and allocating devices.
    PreBind,
    Bind,
}

const POINTS: [&str; 6] = ["PreFilter", "Filter", "Score", "PostFilter", "PreBind", "Bind"];
/// The result of an extension point.
const STATUSES: [&str; 3] = ["Success", "Unschedulable", "Error"];
/// Numbers of attempts from this one on share one label value.
const ATTEMPTS_REPORTED: u32 = 15;

/// Counters and histograms that are updated while pods are scheduled.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    /// Counters in the order of the profiles.
    profiles: Vec<ProfileCounts>,
    algorithm: Histogram,
    hints: HistogramVec,
    waits: HistogramVec,
    attempts: Histogram,
    flushed: IntCounter,
    preemptions: IntCounter,
    victims: Histogram,
    conditions: IntCounterVec,
    condition_waits: HistogramVec,
    claims: IntCounterVec,
    /// The number of bindings in progress.
    pub binding: IntGauge,
}

/// Metrics of one profile, by result.
#[derive(Clone, Debug)]
struct ProfileCounts {
    name: Box<str>,
    attempts: [IntCounter; 3],
    durations: [Histogram; 3],
    /// Durations by extension point, then by status.
    points: [[Histogram; 3]; 6],
    /// The number of plugin calls, by extension point and plugin: those that filter, and those that score.
    evaluations: [Vec<IntCounter>; 2],
}

/// A profile's name, and the names of its plugins that filter and of those that score.
pub type ProfileNames<'a> = (&'a str, Vec<&'static str>, Vec<&'static str>);

impl Metrics {
    /// Registers the metrics in `registry`.
    pub fn new(profiles: &[ProfileNames<'_>], registry: Registry) -> Self {
        // From 1 ms to 16 s, doubling.
        let long = exponential_buckets(0.001, 2.0, 15).unwrap_or_default();
        let fine = exponential_buckets(0.00001, 1.5, 20).unwrap_or_default();
        let whole = exponential_buckets(0.01, 2.0, 20).unwrap_or_default();
        let r = &registry;
        Self {
            profiles: of_profiles(profiles, r, &long),
            algorithm: r.histogram(
                "scheduler_scheduling_algorithm_duration_seconds",
                "Duration in seconds of the scheduling algorithm.",
                &long,
            ),
            hints: r.histograms(
                "scheduler_queueing_hint_execution_duration_seconds",
                "Duration in seconds of queueing hint functions of plugins.",
                &["plugin", "event", "hint"],
                &fine,
            ),
            waits: r.histograms(
                "scheduler_pod_scheduling_sli_duration_seconds",
                "Time in seconds from a pod's first scheduling attempt to its binding, by attempts.",
                &["attempts"],
                &whole,
            ),
            attempts: r.histogram(
                "scheduler_pod_scheduling_attempts",
                "Number of attempts until a pod was bound.",
                &exponential_buckets(1.0, 2.0, 5).unwrap_or_default(),
            ),
            flushed: r.counter(
                "scheduler_pod_scheduled_after_flush_total",
                "Pods bound after they were moved to the active queue because of their waiting time.",
            ),
            preemptions: r.counter("scheduler_preemption_attempts_total", "Preemption attempts."),
            victims: r.histogram(
                "scheduler_preemption_victims",
                "Number of victims per successful preemption.",
                &exponential_buckets(1.0, 2.0, 7).unwrap_or_default(),
            ),
            conditions: r.counters(
                "scheduler_dra_bindingconditions_allocations_total",
                "Allocated devices with binding conditions, by driver.",
                &["profile", "driver", "status"],
            ),
            condition_waits: r.histograms(
                "scheduler_dra_bindingconditions_wait_duration_seconds",
                "Time in seconds that pods waited for binding conditions of devices, by driver.",
                &["profile", "driver", "status"],
                &exponential_buckets(0.1, 2.0, 14).unwrap_or_default(),
            ),
            claims: r.counters(
                "scheduler_resourceclaim_creates_total",
                "Resource claims created for extended resources, by outcome.",
                &["status"],
            ),
            binding: r
                .gauges("scheduler_goroutines", "Number of concurrent tasks by operation.", &["operation"])
                .with_label_values(&["binding"]),
            registry,
        }
    }

    /// Counts an attempt of a profile.
    pub fn attempt(&self, profile: usize, how: Attempt, took: Duration) {
        if let Some(counted) = self.profiles.get(profile) {
            counted.attempts[how as usize].inc();
            counted.durations[how as usize].observe(took.as_secs_f64());
        }
    }

    /// Records how long a decision took.
    pub fn decided(&self, profile: usize, spent: &DecisionTimes, took: Duration) {
        self.algorithm.observe(took.as_secs_f64());
        let (before, refused) = spent.before;
        self.point(profile, ExtensionPoint::PreFilter, usize::from(refused), before);
        if let Some((filter, found)) = spent.filter {
            self.point(profile, ExtensionPoint::Filter, usize::from(!found), filter);
        }
        if let Some(score) = spent.score {
            self.point(profile, ExtensionPoint::Score, 0, score);
        }
        let asked = [spent.filter.is_some(), spent.score.is_some()];
        if let Some(counted) = self.profiles.get(profile) {
            for (plugins, _) in counted.evaluations.iter().zip(asked).filter(|(_, asked)| *asked) {
                plugins.iter().for_each(IntCounter::inc);
            }
        }
    }

    fn point(&self, profile: usize, point: ExtensionPoint, status: usize, took: Duration) {
        if let Some(counted) = self.profiles.get(profile) {
            counted.points[point as usize][status].observe(took.as_secs_f64());
        }
    }

    /// Records how long a part of a pod's binding took.
    pub fn bound_in(&self, scheduler: &str, point: ExtensionPoint, done: bool, took: Duration) {
        let profile = self.profiles.iter().position(|p| &*p.name == scheduler).unwrap_or(0);
        self.point(profile, point, if done { 0 } else { 2 }, took);
    }

    /// Records the result of a queueing hint.
    pub fn hinted(&self, plugin: &str, change: Change, queue: bool, took: Duration) {
        let hint = if queue { "Queue" } else { "QueueSkip" };
        self.hints.with_label_values(&[plugin, change.label(), hint]).observe(took.as_secs_f64());
    }

    /// Records a pod that was bound.
    pub fn placed(&self, waited: &Waited, now: Instant) {
        let n = waited.attempts;
        let reported = if n >= ATTEMPTS_REPORTED { format!("{ATTEMPTS_REPORTED}+") } else { n.to_string() };
        let since = waited.since.map(|since| now.saturating_duration_since(since)).unwrap_or_default();
        self.waits.with_label_values(&[&reported]).observe(since.as_secs_f64());
        self.attempts.observe(f64::from(n));
        if waited.flushed {
            self.flushed.inc();
        }
    }

    /// Records a preemption attempt.
    pub fn preempted(&self, profile: usize, outcome: &Outcome, took: Duration) {
        self.preemptions.inc();
        let found = match outcome {
            Outcome::Make { victims, .. } => {
                self.victims.observe(victims.len() as f64);
                true
            }
            _ => false,
        };
        self.point(profile, ExtensionPoint::PostFilter, usize::from(!found), took);
    }

    /// Counts devices that drivers had to prepare before a pod was bound; `status` is `success`, `failure` or
    /// `timeout`.
    pub fn made_ready(&self, scheduler: &str, drivers: &[String], status: &str, took: Duration) {
        for driver in drivers {
            self.conditions.with_label_values(&[scheduler, driver, status]).inc();
            self.condition_waits.with_label_values(&[scheduler, driver, status]).observe(took.as_secs_f64());
        }
    }

    /// Counts an attempt to create a claim for extended resources.
    pub fn claim_created(&self, done: bool) {
        self.claims.with_label_values(&[if done { "success" } else { "failure" }]).inc();
    }

    /// Returns the registry with all of the scheduler's metrics.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }
}

fn of_profiles(profiles: &[ProfileNames<'_>], registry: &Registry, long: &[f64]) -> Vec<ProfileCounts> {
    let attempts = registry.counters(
        "scheduler_schedule_attempts_total",
        "Scheduling attempts by result.",
        &["profile", "result"],
    );
    let durations = registry.histograms(
        "scheduler_scheduling_attempt_duration_seconds",
        "Duration in seconds of scheduling attempts, including binding.",
        &["profile", "result"],
        long,
    );
    let points = registry.histograms(
        "scheduler_framework_extension_point_duration_seconds",
        "Duration in seconds of all plugins at an extension point.",
        &["extension_point", "status", "profile"],
        &exponential_buckets(0.0001, 2.0, 12).unwrap_or_default(),
    );
    let evaluations = registry.counters(
        "scheduler_plugin_evaluation_total",
        "Scheduling attempts in which a plugin ran, by plugin and profile.",
        &["plugin", "extension_point", "profile"],
    );
    let counted = profiles.iter().map(|(profile, filters, scores)| {
        let of = |point: &str, names: &[&str]| -> Vec<IntCounter> {
            names.iter().map(|name| evaluations.with_label_values(&[name, point, profile])).collect()
        };
        ProfileCounts {
            name: (*profile).into(),
            attempts: RESULTS.map(|r| attempts.with_label_values(&[profile, r])),
            durations: RESULTS.map(|r| durations.with_label_values(&[profile, r])),
            points: POINTS.map(|point| STATUSES.map(|status| points.with_label_values(&[point, status, profile]))),
            evaluations: [of("Filter", filters), of("Score", scores)],
        }
    });
    counted.collect()
}
