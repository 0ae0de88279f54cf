//! Deletes finished jobs after `ttlSecondsAfterFinished` (KEP-592).
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kelson_client::{Client, DeleteOptions, Object, PropagationPolicy, WorkQueue};
use kelson_meta::ObjectKey;
use kelson_metrics::{Histogram, exponential_buckets};

use crate::shared::context::{Context, SyncError, WORKERS};
use crate::shared::informers::SharedInformer;
use crate::views::JobView;

struct FinishedJobCleaner {
    ctx: Arc<Context>,
    client: Client,
    jobs: SharedInformer<JobView>,
    delay: Histogram,
    queue: WorkQueue<ObjectKey>,
}

/// Starts the controller.
pub fn start(ctx: &Arc<Context>) {
    // 0.1 s to 14 min, doubling.
    let bounds = exponential_buckets(0.1, 2.0, 14).unwrap_or_default();
    let name = "ttl_after_finished_controller_job_deletion_duration_seconds";
    let me = Arc::new(FinishedJobCleaner {
        ctx: Arc::clone(ctx),
        client: ctx.client(),
        jobs: ctx.informers.jobs.reader(),
        delay: ctx.config.metrics.histogram(
            name,
            "Time in seconds between the due and the actual deletion of a finished job.",
            &bounds,
        ),
        queue: WorkQueue::default(),
    });
    let queue = me.queue.clone();
    me.jobs.on_change(move |change| {
        if expiry(change.object()).is_some() {
            queue.add(change.object().key());
        }
    });
    let queue = me.queue.clone();
    ctx.run_queue_of(me.jobs.clone(), &queue, WORKERS, move |key| {
        let me = Arc::clone(&me);
        async move { me.sync(&key).await }
    });
}

/// Returns when a job must be deleted, if it is finished and has a TTL.
fn expiry(job: &JobView) -> Option<Timestamp> {
    let ttl = job.spec.ttl_seconds_after_finished?;
    let end = job.status.finished()?.last_transition_time.as_deref()?;
    if job.metadata.is_deleting() {
        return None;
    }
    end.parse::<Timestamp>().ok()?.checked_add(SignedDuration::from_secs(i64::from(ttl))).ok()
}

impl FinishedJobCleaner {
    /// Returns the time until a job is deleted, zero if it is due.
    fn left(&self, job: &JobView) -> Option<Duration> {
        Some(Duration::try_from(expiry(job)?.duration_since(self.ctx.clock.now())).unwrap_or_default())
    }

    async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let Some(job) = self.jobs.get(key) else { return Ok(()) };
        let Some(left) = self.left(&job) else { return Ok(()) };
        if !left.is_zero() {
            self.queue.add_after(key.clone(), left);
            return Ok(());
        }
        // The cache may not yet have an extended TTL.
        let Some(fresh) = self.client.get_opt::<JobView>(&key.namespace, &key.name).await? else { return Ok(()) };
        let Some(left) = self.left(&fresh) else { return Ok(()) };
        if !left.is_zero() {
            self.queue.add_after(key.clone(), left);
            return Ok(());
        }
        let options = DeleteOptions::default().with_uid(fresh.uid()).with_propagation(PropagationPolicy::Foreground);
        match self.client.delete::<JobView>(&key.namespace, &key.name, &options).await {
            Err(e) if !e.is_not_found() => return Err(e.into()),
            _ => {}
        }
        if let Some(due) = expiry(&fresh) {
            self.delay.observe(self.ctx.clock.now().duration_since(due).as_secs_f64());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn when_jobs_expire() {
        let end = |kind: &str, status: &str| json!([{"type": kind, "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let rows = [
            (json!({"ttlSecondsAfterFinished": 60}), end("Complete", "True"), json!({}), Some("2026-01-01T00:01:00Z")),
            (json!({"ttlSecondsAfterFinished": 0}), end("Failed", "True"), json!({}), Some("2026-01-01T00:00:00Z")),
            (json!({"ttlSecondsAfterFinished": 60}), end("Failed", "False"), json!({}), None),
            (json!({"ttlSecondsAfterFinished": 60}), end("Suspended", "True"), json!({}), None),
            (json!({}), end("Complete", "True"), json!({}), None),
            (
                json!({"ttlSecondsAfterFinished": 60}),
                end("Complete", "True"),
                json!({"deletionTimestamp": "2026-01-01T00:00:30Z"}),
                None,
            ),
        ];
        for (spec, conditions, metadata, want) in rows {
            let j = json!({"metadata": metadata, "spec": spec, "status": {"conditions": conditions}});
            let got = expiry(&serde_json::from_value(j.clone()).unwrap());
            assert_eq!(got, want.map(|t| t.parse().unwrap()), "{j}");
        }
    }
}
