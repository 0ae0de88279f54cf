//! The job controller's metrics, under upstream's names.
use kelson_metrics::{HistogramVec, IntCounterVec, Registry, exponential_buckets};

use crate::views::{JobStatus, JobView};

/// The metrics of the job controller.
#[derive(Clone)]
pub struct JobMetrics {
    /// Duration of syncs by completion mode, result and action.
    pub sync_seconds: HistogramVec,
    /// Syncs by completion mode, result and action.
    pub syncs: IntCounterVec,
    /// Finished jobs by completion mode, result and reason.
    pub finished: IntCounterVec,
    /// Counted pods by completion mode and result.
    pub pods_finished: IntCounterVec,
    /// Failed pods matched by a pod failure policy, by action.
    pub judged: IntCounterVec,
    /// Terminated pods that have the finalizer (`add`) and lost it (`delete`).
    pub tracked: IntCounterVec,
    /// Created pods by reason and status.
    pub created: IntCounterVec,
    /// Finished indexes by status and kind of back-off limit.
    pub indexes: IntCounterVec,
    /// Syncs that were skipped because of an outdated cache.
    pub stale: IntCounterVec,
}

impl JobMetrics {
    /// Registers the metrics.
    pub fn new(registry: &Registry) -> Self {
        // 4 ms to 65 s, doubling.
        let bounds = exponential_buckets(0.004, 2.0, 15).unwrap_or_default();
        let sync = ["completion_mode", "result", "action"];
        let name = |n: &str| format!("job_controller_{n}");
        let counters = |n: &str, help: &str, labels: &[&str]| registry.counters(&name(n), help, labels);
        Self {
            sync_seconds: registry.histograms(
                &name("job_sync_duration_seconds"),
                "Duration in seconds of job syncs by completion mode, result and action.",
                &sync,
                &bounds,
            ),
            syncs: counters("job_syncs_total", "Job syncs by completion mode, result and action.", &sync),
            finished: counters(
                "jobs_finished_total",
                "Finished jobs by completion mode, result and reason.",
                &["completion_mode", "result", "reason"],
            ),
            pods_finished: counters(
                "job_pods_finished_total",
                "Finished pods counted in job statuses, by completion mode and result.",
                &["completion_mode", "result"],
            ),
            judged: counters(
                "pod_failures_handled_by_failure_policy_total",
                "Failed pods matched by a pod failure policy, by action.",
                &["action"],
            ),
            tracked: counters(
                "terminated_pods_tracking_finalizer_total",
                "Terminated pods with the tracking finalizer, by event: add or delete.",
                &["event"],
            ),
            created: counters(
                "job_pods_creation_total",
                "Pods created for jobs, by reason and status.",
                &["reason", "status"],
            ),
            indexes: counters(
                "job_finished_indexes_total",
                "Finished indexes of indexed jobs, by status and backoff limit.",
                &["status", "backoffLimit"],
            ),
            stale: counters(
                "stale_sync_skips_total",
                "Syncs skipped because the cache did not yet contain the controller's own writes.",
                &["group", "resource"],
            ),
        }
    }

    /// Counts the pods and indexes that finished between two statuses.
    pub fn progress(&self, job: &JobView, before: &JobStatus, after: &JobStatus) {
        let mode = mode(job);
        let grown = |a: i32, b: i32| u64::try_from(b.saturating_sub(a)).unwrap_or(0);
        self.pods_finished.with_label_values(&[mode, "succeeded"]).inc_by(grown(before.succeeded, after.succeeded));
        self.pods_finished.with_label_values(&[mode, "failed"]).inc_by(grown(before.failed, after.failed));
        if job.is_indexed() {
            let limit = if job.spec.backoff_limit_per_index.is_some() { "perIndex" } else { "global" };
            let completions = super::assess::completions(job);
            let count = |s: &str| super::assess::number(super::indexes::Indexes::parse(s, completions).len());
            let failed = |s: &JobStatus| count(s.failed_indexes.as_deref().unwrap_or_default());
            let done = grown(count(&before.completed_indexes), count(&after.completed_indexes));
            self.indexes.with_label_values(&["succeeded", limit]).inc_by(done);
            self.indexes.with_label_values(&["failed", limit]).inc_by(grown(failed(before), failed(after)));
        }
    }
}

/// Returns the label value of a job's completion mode.
pub fn mode(job: &JobView) -> &'static str {
    if job.is_indexed() { "Indexed" } else { "NonIndexed" }
}
