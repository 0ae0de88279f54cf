//! One sync of a job: claim its pods, assess them, create or delete pods, count terminated ones, and write the status.
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use kelson_client::{ClientError, EventType, Object, ObjectRef, PatchKind, WriteOptions};
use kelson_meta::ObjectKey;
use serde_json::json;
use tokio::time::Instant;

use super::assess::{self, Assessment, Look, assess, number};
use super::count::{self, Counting};
use super::metrics::mode;
use super::plan::{NewPod, Plan, plan};
use super::pods::{JobPod, TRACKING_FINALIZER};
use super::template::{PodMaker, restarts_in_place};
use super::{BATCH, JobController};
use crate::shared::context::{SyncError, update_value};
use crate::shared::ownership::claim_tracked;
use crate::shared::pods::{Template, slow_start};
use crate::views::{JobStatus, JobView, PodView};

/// The maximum number of concurrent requests for the pods of one job.
const PARALLEL_MAX: usize = 64;

/// The result of a change of the number of pods.
struct ScaleOutcome {
    active: i32,
    action: &'static str,
    error: Option<ClientError>,
    /// The remaining back-off of replacements.
    wait: Option<Duration>,
}

impl JobController {
    pub(super) async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let Some(job) = self.jobs.get(key) else {
            self.expectations.forget(key);
            self.memory.forget(key);
            return Ok(());
        };
        if job.external_manager().is_some() {
            return Ok(());
        }
        if job.status.finished().is_some() {
            self.memory.forget(key);
            return Ok(());
        }
        if self.memory.is_stale(key, job.uid(), job.resource_version()) {
            // The missing update queues the job again.
            self.metrics.stale.with_label_values(&["batch", "jobs"]).inc();
            return Ok(());
        }
        if !matches!(job.spec.completion_mode.as_deref(), None | Some("NonIndexed" | "Indexed")) {
            let text = "Skipped Job sync because completion mode is unknown";
            self.warn(&job, "UnknownCompletionMode", text);
            return Ok(());
        }
        let begun = Instant::now();
        let (action, result) = self.reconcile(key, &job).await;
        let labels = [mode(&job), if result.is_ok() { "success" } else { "error" }, action];
        self.metrics.syncs.with_label_values(&labels).inc();
        self.metrics.sync_seconds.with_label_values(&labels).observe(begun.elapsed().as_secs_f64());
        result
    }

    fn warn(&self, job: &JobView, reason: &str, message: &str) {
        self.control.recorder.event(&ObjectRef::of(job), EventType::Warning, reason, message);
    }

    async fn reconcile(&self, key: &ObjectKey, job: &Arc<JobView>) -> (&'static str, Result<(), SyncError>) {
        const RECONCILING: &str = "reconciling";
        // This must come before the pods are listed. A pod that is observed in between then only delays the next
        // creation and is never created twice.
        let satisfied = self.expectations.satisfied(key);
        let template = match job.spec.template.as_ref().map(|t| serde_json::from_str::<Template>(t.get())) {
            Some(Ok(t)) => t,
            Some(Err(e)) => return (RECONCILING, Err(SyncError::Other(format!("invalid pod template: {e}")))),
            None => return (RECONCILING, Ok(())),
        };
        let candidates = self.pods.owned_or_orphaned(job.uid(), &key.namespace);
        let selector = job.selector();
        let claimed = claim_tracked(
            &self.control.client,
            &**job,
            &job.metadata,
            &selector,
            candidates,
            |p: &PodView| &p.metadata,
            Some(TRACKING_FINALIZER),
        );
        let pods: Vec<JobPod> = match claimed.await {
            Ok(held) => held.into_iter().map(|p| held_by(job, p)).collect(),
            Err(e) => return (RECONCILING, Err(e)),
        };
        let released = self.memory.released(key);
        let now = self.ctx.clock.now();
        let mut a = assess(&Look {
            job,
            pods: &pods,
            released: &released,
            failures: self.memory.failures(key),
            restarts_in_place: restarts_in_place(&template),
            now,
        });
        let done = self.manage(key, job, template, &pods, &mut a, satisfied).await;
        a.status.active = done.active;
        a.status.ready = Some(a.ready.max(0));
        a.status.terminating = Some(a.terminating);
        let counted = count::note(job, &pods, &released, &mut a, now);
        let again = [a.deadline_in, done.wait.map(|w| w.max(BATCH))].into_iter().flatten().min();
        let result = self.track(key, job, a, counted).await;
        if let Some(wait) = again {
            self.queue.add_after(key.clone(), wait);
        }
        (done.action, result.and_then(|()| done.error.map_or(Ok(()), |e| Err(e.into()))))
    }

    /// Creates or deletes pods according to the plan, or deletes the active pods of a finished job.
    async fn manage(
        &self,
        key: &ObjectKey,
        job: &Arc<JobView>,
        template: Template,
        pods: &[JobPod],
        a: &mut Assessment,
        satisfied: bool,
    ) -> ScaleOutcome {
        let now = self.ctx.clock.now();
        let all = number(a.active.len());
        let mut done = ScaleOutcome { active: all, action: "reconciling", error: None, wait: None };
        if a.target.is_some() {
            let victims = a.active.clone();
            done.error = self.delete_all(job, &victims, a, &mut done.active, |_| {}, false).await;
            if done.active > 0 || !satisfied {
                // There may be pods that are not yet in the cache, so the job does not finish yet.
                a.target = None;
            }
            return done;
        }
        let may_act = satisfied && !job.metadata.is_deleting();
        if may_act {
            match plan(job, pods, a, now) {
                Plan::Hold => done.action = "tracking",
                Plan::Wait(wait) => {
                    done.action = "pods_created";
                    done.wait = Some(wait);
                }
                Plan::Delete(victims) => {
                    done.action = if victims.is_empty() { "tracking" } else { "pods_deleted" };
                    self.expectations.expect_deletions(key, victims.iter().map(|p| p.uid().to_owned()));
                    let failed = |uid: &str| self.expectations.deletion_observed(key, uid);
                    done.error = self.delete_all(job, &victims, a, &mut done.active, failed, true).await;
                }
                Plan::Create(new) => {
                    done.action = "pods_created";
                    let (made, error) = self.create(key, job, template, &new, a).await;
                    done.active = done.active.saturating_add(made);
                    done.error = error;
                }
            }
        }
        a.target = assess::completed(job, a.succeeded, done.active, now);
        if a.target.is_none()
            && may_act
            && let Some((reason, message)) = assess::note_suspension(job, &mut a.status, now)
        {
            self.control.recorder.event(&ObjectRef::of(&**job), EventType::Normal, reason, message);
        }
        done
    }

    async fn create(
        &self,
        key: &ObjectKey,
        job: &Arc<JobView>,
        template: Template,
        new: &[NewPod],
        a: &Assessment,
    ) -> (i32, Option<ClientError>) {
        let maker = match PodMaker::new(template, job.is_indexed()) {
            Ok(maker) => maker,
            Err(e) => return (0, Some(ClientError::Request(format!("pod template: {e}")))),
        };
        self.expectations.expect_creations(key, new.len());
        let (made, error) = slow_start(new.len(), |i| {
            let pod = maker.pod(&job.metadata.name, &new[i]);
            async move {
                let (prefix, template) = pod.map_err(|e| ClientError::Request(e.to_string()))?;
                self.control.create_as(&**job, prefix, &template).await
            }
        })
        .await;
        for _ in made..new.len() {
            self.expectations.creation_observed(key);
        }
        let reason = match (job.spec.pod_replacement_policy.as_deref(), a.failed > 0, a.terminating > 0) {
            (Some("Failed"), true, _) => "recreate_failed",
            (_, true, _) | (_, _, true) => "recreate_terminating_or_failed",
            _ => "new",
        };
        self.metrics.created.with_label_values(&[reason, "succeeded"]).inc_by(made as u64);
        if error.is_some() {
            self.metrics.created.with_label_values(&[reason, "failed"]).inc();
        }
        (number(made), error.filter(|e| !e.is_namespace_terminating()))
    }

    /// Deletes pods and subtracts them from the counters. A pod that the job no longer needs (`forget`) is not counted
    /// and first loses its finalizer. Pods of a finished job keep it until they are counted.
    async fn delete_all(
        &self,
        job: &Arc<JobView>,
        victims: &[JobPod],
        a: &mut Assessment,
        active: &mut i32,
        failed: impl Fn(&str),
        forget: bool,
    ) -> Option<ClientError> {
        let mut error = None;
        for part in victims.chunks(PARALLEL_MAX) {
            let delete = async |p: &JobPod| {
                if forget && p.tracked {
                    self.take_finalizer(&p.pod).await?;
                }
                self.control.delete(&**job, &p.pod).await
            };
            for (result, p) in join_all(part.iter().map(delete)).await.into_iter().zip(part) {
                let gone = result.as_ref().is_err_and(ClientError::is_not_found);
                if result.is_err() {
                    failed(p.uid());
                }
                match result {
                    Err(e) if !gone => error = error.or(Some(e)),
                    _ => {
                        *active -= 1;
                        a.terminating += i32::from(!gone);
                        a.ready -= i32::from(p.pod.is_ready());
                    }
                }
            }
        }
        error
    }

    /// Removes the tracking finalizer of a pod. Succeeds if the pod was deleted or replaced.
    pub(super) async fn take_finalizer(&self, pod: &PodView) -> Result<(), ClientError> {
        let m = &pod.metadata;
        let patch = json!({"metadata": {"uid": m.uid, "$deleteFromPrimitiveList/finalizers": [TRACKING_FINALIZER]}});
        let options = WriteOptions::default();
        let client = &self.control.client;
        match client.patch::<PodView>(&m.namespace, &m.name, "", PatchKind::Strategic, &patch, &options).await {
            Err(e) if e.is_not_found() || e.status().is_some_and(|s| s.code == 422) => Ok(()),
            sent => sent,
        }
    }

    /// Writes the status with the terminated pods, removes their finalizers, and counts those that lost it.
    async fn track(
        &self,
        key: &ObjectKey,
        job: &Arc<JobView>,
        mut a: Assessment,
        mut counted: Counting,
    ) -> Result<(), SyncError> {
        let mut stored = job.status.clone();
        let mut version = job.metadata.resource_version.clone();
        if a.status != stored {
            version = self.write(key, job, &version, &a.status).await?;
            self.metrics.progress(job, &stored, &a.status);
            stored.clone_from(&a.status);
        }
        self.memory.note_failures(key, a.failures);
        for action in &counted.actions {
            self.metrics.judged.with_label_values(&[action]).inc();
        }
        let error = self.release(key, &counted.to_release, &mut counted.tracked).await;
        count::settle(&mut a.status, &counted.tracked);
        let target = a.target.as_ref().filter(|_| error.is_none() && !counted.more);
        let finished = count::finish(&mut a.status, target, a.terminating);
        if a.status != stored {
            self.write(key, job, &version, &a.status).await?;
            self.metrics.progress(job, &stored, &a.status);
        }
        if finished && let Some(end) = target {
            self.record_end(job, &a.status, &end.r#type, &end.reason, &end.message);
        }
        error.map_or(Ok(()), |e| Err(e.into()))
    }

    /// Removes finalizers. Pods that lost theirs are removed from `tracked`.
    async fn release(&self, key: &ObjectKey, pods: &[JobPod], tracked: &mut HashSet<String>) -> Option<ClientError> {
        let mut error = None;
        for part in pods.chunks(PARALLEL_MAX) {
            let mut releasing = self.memory.expect_released(key, part.iter().map(|p| p.uid().to_owned()));
            let results = join_all(part.iter().map(|p| self.take_finalizer(&p.pod))).await;
            for (result, p) in results.into_iter().zip(part) {
                match result {
                    Ok(()) => {
                        releasing.taken(p.uid());
                        tracked.remove(p.uid());
                    }
                    Err(e) => error = error.or(Some(e)),
                }
            }
        }
        error
    }

    /// Writes the status over what was seen, and gives the job's new version.
    async fn write(
        &self,
        key: &ObjectKey,
        job: &JobView,
        version: &str,
        status: &JobStatus,
    ) -> Result<String, SyncError> {
        let tree = serde_json::to_value(status).map_err(|e| SyncError::Other(e.to_string()))?;
        let client = &self.control.client;
        let written =
            update_value::<JobView>(client, &key.namespace, &key.name, "status", version, |v| v["status"] = tree)
                .await?;
        self.memory.wrote(key, &job.metadata.uid, &written.metadata.resource_version);
        Ok(written.metadata.resource_version)
    }

    fn record_end(&self, job: &JobView, status: &JobStatus, kind: &str, reason: &str, message: &str) {
        let result = if kind == "Complete" {
            if job.spec.completions.is_some_and(|n| status.succeeded > n) {
                let text = "Too many succeeded pods running after completion count reached";
                self.warn(job, "TooManySucceededPods", text);
            }
            self.control.recorder.event(&ObjectRef::of(job), EventType::Normal, "Completed", "Job completed");
            "succeeded"
        } else {
            self.warn(job, reason, message);
            "failed"
        };
        self.metrics.finished.with_label_values(&[mode(job), result, reason]).inc();
    }
}

/// A claimed pod; one that was just adopted has the finalizer, though the cache does not show it yet.
fn held_by(job: &JobView, pod: Arc<PodView>) -> JobPod {
    let adopted = !pod.metadata.owner_references.iter().any(|o| o.uid == job.metadata.uid);
    let mut held = JobPod::new(pod);
    held.tracked |= adopted;
    held
}
