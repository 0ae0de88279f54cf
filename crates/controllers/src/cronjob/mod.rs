//! The cron job controller: one job for each time of a schedule. `schedule` decides which run is due. This file manages
//! the existing jobs, creates the next one, and updates the status (upstream `cronjob_controllerv2.go`).
mod schedule;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use kelson_client::{
    Change, Client, ClientError, DeleteOptions, EventRecorder, EventType, Object, ObjectRef, PropagationPolicy,
    WorkQueue,
};
use kelson_meta::{CronSchedule, ObjectKey};
use kelson_metrics::{Histogram, exponential_buckets};
use serde_json::json;

use self::schedule::{Due, Runs};
use crate::shared::context::{Context, SyncError, WORKERS, enqueue_self, update_value};
use crate::shared::informers::SharedInformer;
use crate::shared::ownership::{controller_key, controller_ref};
use crate::views::{CronJobStatus, CronJobView, IndexKey, JobView, uid_number};

/// The source of this controller's events.
const COMPONENT: &str = "cronjob-controller";
/// The annotation of a job with its scheduled time in the schedule's time zone.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

struct CronJobController {
    ctx: Arc<Context>,
    client: Client,
    recorder: EventRecorder,
    crons: SharedInformer<CronJobView>,
    jobs: SharedInformer<JobView>,
    skew: Histogram,
    queue: WorkQueue<ObjectKey>,
}

/// Starts the cron job controller.
pub fn start(ctx: &Arc<Context>) {
    let client = ctx.client();
    let queue = WorkQueue::default();
    // 1 s to 8 min, doubling.
    let bounds = exponential_buckets(1.0, 2.0, 10).unwrap_or_default();
    let skew = "cronjob_controller_job_creation_skew_duration_seconds";
    let me = Arc::new(CronJobController {
        ctx: Arc::clone(ctx),
        recorder: ctx.recorder(&client, COMPONENT),
        client,
        crons: ctx.informers.cron_jobs.reader(),
        jobs: ctx.informers.jobs.reader(),
        skew: ctx.config.metrics.histogram(
            skew,
            "Time in seconds between the scheduled and the actual creation of a job.",
            &bounds,
        ),
        queue: queue.clone(),
    });
    me.crons.on_change(enqueue_self(&queue));
    let q = queue.clone();
    me.jobs.on_change(move |change| {
        let before = match change {
            Change::Updated { old, .. } => controller_key::<CronJobView>(&old.metadata),
            Change::Added(_) | Change::Deleted(_) => None,
        };
        let owner = controller_key::<CronJobView>(&change.object().metadata);
        if let Some(key) = before.filter(|b| Some(b) != owner.as_ref()) {
            q.add(key);
        }
        if let Some(key) = owner {
            q.add(key);
        }
    });
    ctx.run_queue_of(me.crons.clone(), &queue, WORKERS, move |key| {
        let me = Arc::clone(&me);
        async move { me.sync(&key).await }
    });
}

/// One sync of a cron job.
struct Visit<'a> {
    me: &'a CronJobController,
    cron: Arc<CronJobView>,
    status: CronJobStatus,
    now: Timestamp,
}

impl CronJobController {
    async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let Some(cron) = self.crons.get(key) else { return Ok(()) };
        let jobs = self.jobs.bucket(&IndexKey::Controller(uid_number(cron.uid())));
        let jobs: Vec<Arc<JobView>> = jobs.into_iter().filter(|j| j.namespace() == key.namespace).collect();
        let status = cron.status.clone();
        let mut visit = Visit { me: self, status, now: self.ctx.clock.now(), cron };
        visit.forget_old(&jobs).await;
        let done = visit.run(&jobs).await;
        let Visit { cron, status, .. } = visit;
        if status != cron.status {
            let tree = serde_json::to_value(&status).map_err(|e| SyncError::Other(e.to_string()))?;
            let seen = cron.resource_version();
            update_value::<CronJobView>(&self.client, &key.namespace, &key.name, "status", seen, |v| {
                v["status"] = tree;
            })
            .await?;
        }
        if let Some(wait) = done? {
            self.queue.add_after(key.clone(), wait);
        }
        Ok(())
    }
}

impl Visit<'_> {
    fn event(&self, kind: EventType, reason: &str, message: impl Into<String>) {
        self.me.recorder.event(&ObjectRef::of(&*self.cron), kind, reason, message);
    }

    fn warn(&self, reason: &str, message: impl Into<String>) {
        self.event(EventType::Warning, reason, message);
    }

    /// Deletes the oldest finished jobs above the history limits.
    async fn forget_old(&mut self, jobs: &[Arc<JobView>]) {
        let spec = &self.cron.spec;
        let limits = [("Complete", spec.successful_jobs_history_limit), ("Failed", spec.failed_jobs_history_limit)];
        for (end, limit) in limits {
            let Some(limit) = limit else { continue };
            for job in oldest(jobs, end, usize::try_from(limit).unwrap_or(0)) {
                if !job.metadata.is_deleting() {
                    let _ = self.delete(&job).await;
                }
            }
        }
    }

    /// Deletes a job with its pods.
    async fn delete(&mut self, job: &JobView) -> Result<(), ClientError> {
        let options = DeleteOptions::default().with_uid(job.uid()).with_propagation(PropagationPolicy::Background);
        match self.me.client.delete::<JobView>(job.namespace(), job.name(), &options).await {
            Ok(()) => {
                self.status.ended(job.uid());
                self.event(EventType::Normal, "SuccessfulDelete", format!("Deleted job {}", job.name()));
                Ok(())
            }
            Err(e) if e.is_not_found() => {
                self.status.ended(job.uid());
                Ok(())
            }
            Err(e) => {
                self.warn("FailedDelete", format!("Deleted job: {e}"));
                Err(e)
            }
        }
    }

    /// Updates the status from the jobs and creates the job that is due. Returns the delay of the next sync.
    async fn run(&mut self, jobs: &[Arc<JobView>]) -> Result<Option<Duration>, SyncError> {
        for job in jobs {
            self.note(job).await?;
        }
        self.find_missing(jobs).await?;
        if self.cron.metadata.is_deleting() {
            return Ok(None);
        }
        let Some(zone) = self.zone() else { return Ok(None) };
        if self.cron.spec.suspend == Some(true) {
            return Ok(None);
        }
        let Some(runs) = self.schedule(&zone) else { return Ok(None) };
        let schedule = &self.cron.spec.schedule;
        match runs.due(&self.cron, self.now) {
            Err(why) => {
                self.warn("InvalidSchedule", format!("invalid schedule: {schedule} : {why}"));
                return Ok(None);
            }
            Ok(Due::Nothing) => {}
            Ok(Due::Run { at, many_missed }) => {
                if many_missed {
                    let text = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
                    self.warn("TooManyMissedTimes", text);
                }
                if self.may_start(at) {
                    self.start(at, &zone).await?;
                }
            }
        }
        // With the new status, in which the job that was just created is the last one.
        let mut after = (*self.cron).clone();
        after.status = self.status.clone();
        Ok(Some(runs.wait(&after, self.now)))
    }

    /// Updates the status for one job.
    async fn note(&mut self, job: &JobView) -> Result<(), SyncError> {
        let Some(end) = job.status.finished() else {
            if self.status.runs(job.uid()) {
                return Ok(());
            }
            // The cache may be older than the status that has it.
            let fresh: CronJobView = self.me.client.get(self.cron.namespace(), self.cron.name()).await?;
            if fresh.status.runs(job.uid()) {
                return Err(SyncError::Other("the cached status is outdated".to_owned()));
            }
            let text = format!("Saw a job that the controller did not create or forgot: {}", job.name());
            self.warn("UnexpectedJob", text);
            return Ok(());
        };
        if self.status.ended(job.uid()) {
            let text = format!("Saw completed job: {}, condition: {}", job.name(), end.r#type);
            self.event(EventType::Normal, "SawCompletedJob", text);
        }
        if end.r#type == "Complete" {
            let at = job.status.completion_time.as_deref().and_then(|t| t.parse().ok());
            self.status.last_successful_time = self.status.last_successful_time.max(at);
        }
        Ok(())
    }

    /// Removes deleted jobs from the status.
    async fn find_missing(&mut self, jobs: &[Arc<JobView>]) -> Result<(), SyncError> {
        let there: HashSet<&str> = jobs.iter().map(|j| j.uid()).collect();
        let missing: Vec<ObjectRef> =
            self.status.active.iter().filter(|j| !there.contains(j.uid.as_str())).cloned().collect();
        for job in missing {
            if self.me.client.get_opt::<JobView>(&job.namespace, &job.name).await?.is_none() {
                self.event(EventType::Normal, "MissingJob", format!("Active job went missing: {}", job.name));
                self.status.ended(&job.uid);
            }
        }
        Ok(())
    }

    fn zone(&self) -> Option<TimeZone> {
        let Some(name) = &self.cron.spec.time_zone else { return Some(self.me.ctx.config.time_zone.clone()) };
        match TimeZone::get(name) {
            Ok(zone) => Some(zone),
            Err(_) => {
                self.warn("UnknownTimeZone", format!("invalid timeZone: {name:?}: unknown time zone {name}"));
                None
            }
        }
    }

    fn schedule(&self, zone: &TimeZone) -> Option<Runs> {
        let text = &self.cron.spec.schedule;
        if text.contains("TZ") {
            let why = "is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details";
            self.warn("UnsupportedSchedule", format!("CRON_TZ or TZ used in schedule {text:?} {why}"));
        }
        match CronSchedule::parse(text) {
            Ok(schedule) => Some(Runs::new(schedule, zone.clone())),
            Err(why) => {
                self.warn("UnparseableSchedule", format!("unparseable schedule: {text:?} : {why}"));
                None
            }
        }
    }

    fn job_name(&self, at: Timestamp) -> String {
        format!("{}-{}", self.cron.name(), at.as_second().div_euclid(60))
    }

    /// Whether a due job is not too late, not yet created, and not forbidden by a running one.
    fn may_start(&self, at: Timestamp) -> bool {
        let late = self.now.duration_since(at);
        if self.cron.spec.starting_deadline_seconds.is_some_and(|d| late > jiff::SignedDuration::from_secs(d)) {
            let text = at.strftime("%a, %d %b %Y %H:%M:%S UTC");
            self.warn("MissSchedule", format!("Missed scheduled time to start a job: {text}"));
            return false;
        }
        let name = self.job_name(at);
        if self.status.active.iter().any(|j| j.name == name) || self.status.last_schedule_time == Some(at) {
            return false;
        }
        if self.cron.spec.concurrency_policy == "Forbid" && !self.status.active.is_empty() {
            let text = "Not starting job because prior execution is running and concurrency policy is Forbid";
            self.event(EventType::Normal, "JobAlreadyActive", text);
            return false;
        }
        true
    }

    async fn start(&mut self, at: Timestamp, zone: &TimeZone) -> Result<(), SyncError> {
        if self.cron.spec.concurrency_policy == "Replace" {
            for running in self.status.active.clone() {
                let job = self.me.client.get::<JobView>(&running.namespace, &running.name).await;
                let job = job.inspect_err(|e| self.warn("FailedGet", format!("Get job: {e}")))?;
                self.delete(&job).await?;
            }
        }
        let name = self.job_name(at);
        let made = match self.me.client.create::<JobView>(self.cron.namespace(), &self.job(&name, at, zone)).await {
            Ok(made) => {
                let created: Option<Timestamp> = made.metadata.creation_timestamp.parse().ok();
                self.me.skew.observe(created.map_or(0.0, |c| c.duration_since(at).as_secs_f64()));
                self.event(EventType::Normal, "SuccessfulCreate", format!("Created job {name}"));
                made
            }
            // The job was created by an earlier sync whose status update failed. The name prevents a duplicate.
            Err(e) if e.is_already_exists() => {
                let there: JobView = self.me.client.get(self.cron.namespace(), &name).await?;
                let ours = there.metadata.controller().is_some_and(|o| o.uid == self.cron.uid());
                if !ours || self.status.runs(there.uid()) {
                    return Ok(());
                }
                there
            }
            Err(e) if e.is_namespace_terminating() => return Err(e.into()),
            Err(e) => {
                self.warn("FailedCreate", format!("Error creating job: {e}"));
                return Err(e.into());
            }
        };
        self.status.active.push(ObjectRef::of(&made));
        self.status.last_schedule_time = Some(at);
        Ok(())
    }

    /// The job of one run.
    fn job(&self, name: &str, at: Timestamp, zone: &TimeZone) -> serde_json::Value {
        let template = &self.cron.spec.job_template;
        let shown = match &self.cron.spec.time_zone {
            Some(_) => at.to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
            None => at.to_string(),
        };
        let mut annotations = template.metadata.annotations.clone();
        annotations.insert(SCHEDULED.to_owned(), shown.replace("+00:00", "Z"));
        json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {
                "name": name, "namespace": self.cron.namespace(), "labels": template.metadata.labels,
                "annotations": annotations, "ownerReferences": [controller_ref(&*self.cron)],
            },
            "spec": template.spec,
        })
    }
}

/// Returns the jobs with this outcome except the `keep` that started last.
fn oldest(jobs: &[Arc<JobView>], end: &str, keep: usize) -> Vec<Arc<JobView>> {
    let ended = |j: &&Arc<JobView>| j.status.finished().is_some_and(|c| c.r#type == end);
    let mut ended: Vec<Arc<JobView>> = jobs.iter().filter(ended).cloned().collect();
    ended.sort_by(|a, b| {
        let began = |j: &JobView| j.status.started();
        // Jobs that never started come last.
        let unknown = |j: &JobView| began(j).is_none();
        unknown(a).cmp(&unknown(b)).then(began(a).cmp(&began(b))).then_with(|| a.name().cmp(b.name()))
    });
    ended.truncate(ended.len().saturating_sub(keep));
    ended
}

#[cfg(test)]
mod tests;
