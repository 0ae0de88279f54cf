//! The job controller. Pods run to completion, and each is counted exactly once. This file has the informer handlers;
//! `sync` carries out the decisions of `assess` (state of the job), `plan` (number of pods) and `count` (status).
mod assess;
mod backoff;
mod count;
mod indexes;
mod memory;
mod metrics;
mod orphan_key;
mod orphans;
mod plan;
mod pods;
mod policies;
mod sync;
mod template;

use std::sync::Arc;
use std::time::Duration;

use kelson_client::{Backoff, Change, Object, WorkQueue};
use kelson_meta::{ObjectKey, OwnerReference};

use self::memory::Memory;
use self::metrics::JobMetrics;
use self::orphan_key::OrphanKey;
use self::pods::is_tracked;
use crate::shared::context::{Context, WORKERS};
use crate::shared::expectations::Expectations;
use crate::shared::informers::SharedInformer;
use crate::shared::ownership::controller_key;
use crate::shared::pods::PodControl;
use crate::views::{JobView, PodView};

/// The source of this controller's events.
const COMPONENT: &str = "job-controller";
/// The time for which pod changes are collected before a sync, so that the status is not written for each pod
/// (upstream: one second).
const BATCH: Duration = Duration::from_millis(100);
/// The back-off of failed syncs, as upstream's.
const RETRIES: Backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(60) };

struct JobController {
    ctx: Arc<Context>,
    control: PodControl,
    jobs: SharedInformer<JobView>,
    pods: SharedInformer<PodView>,
    expectations: Expectations,
    memory: Memory,
    metrics: JobMetrics,
    queue: WorkQueue<ObjectKey>,
    orphans: WorkQueue<OrphanKey>,
}

/// Starts the job controller.
pub fn start(ctx: &Arc<Context>) {
    let client = ctx.client();
    let me = Arc::new(JobController {
        ctx: Arc::clone(ctx),
        control: PodControl { client: client.clone(), recorder: ctx.recorder(&client, COMPONENT) },
        jobs: ctx.informers.jobs.reader(),
        pods: ctx.informers.pods.reader(),
        expectations: Expectations::default(),
        memory: Memory::default(),
        metrics: JobMetrics::new(&ctx.config.metrics),
        queue: WorkQueue::new(RETRIES),
        orphans: WorkQueue::new(RETRIES),
    });
    let m = Arc::clone(&me);
    me.jobs.on_change(move |change| m.on_job(change));
    let m = Arc::clone(&me);
    me.pods.on_change(move |change| m.on_pod(change));
    let m = Arc::clone(&me);
    ctx.run_queue_of(me.jobs.clone(), &me.queue, WORKERS, move |key| {
        let me = Arc::clone(&m);
        async move { me.sync(&key).await }
    });
    let m = Arc::clone(&me);
    ctx.run_queue(&me.orphans, 1, move |key| {
        let me = Arc::clone(&m);
        async move { me.sync_orphans(&key).await }
    });
}

/// Whether a pod is terminated and not yet counted.
fn waits_for_count(pod: &PodView) -> bool {
    pod.is_terminal() && is_tracked(pod)
}

impl JobController {
    /// Returns the job of an owner reference, by name and UID.
    fn resolve(&self, namespace: &str, owner: &OwnerReference) -> Option<Arc<JobView>> {
        let job = self.jobs.get(&ObjectKey::new(namespace, &owner.name))?;
        (job.metadata.uid == owner.uid).then_some(job)
    }

    fn on_job(&self, change: &Change<JobView>) {
        let job = change.object();
        let key = job.key();
        let release = || self.orphans.add(OrphanKey::OfJob(key.namespace.clone(), job.metadata.uid.clone()));
        match change {
            Change::Added(_) => self.queue.add(key),
            Change::Updated { old, new } if old.uid() != new.uid() => {
                self.expectations.forget(&key);
                self.memory.forget(&key);
                self.orphans.add(OrphanKey::OfJob(key.namespace.clone(), old.metadata.uid.clone()));
                self.queue.add(key);
            }
            // A job finishes only when its pods have no finalizer. This handles pods that were created in the meantime.
            Change::Updated { new, .. } if new.status.finished().is_some() => {
                release();
                self.queue.add(key);
            }
            Change::Updated { old, new } if old.metadata.generation == new.metadata.generation => {
                self.queue.add_after(key, BATCH);
            }
            Change::Updated { .. } => self.queue.add(key),
            Change::Deleted(_) => {
                self.expectations.forget(&key);
                release();
                self.queue.add(key);
            }
        }
    }

    fn on_pod(&self, change: &Change<PodView>) {
        let pod = change.object();
        self.note_tracked(change);
        let going = pod.metadata.is_deleting();
        match change {
            Change::Deleted(_) => return self.on_going(pod, true),
            _ if going => return self.on_going(pod, false),
            Change::Added(_) | Change::Updated { .. } => {}
        }
        if let Change::Updated { old, new } = change
            && old.metadata.controller() != new.metadata.controller()
            && let Some(before) = old.metadata.controller()
            && let Some(job) = self.resolve(&old.metadata.namespace, before)
        {
            self.observe_release(&job.key(), new);
            self.queue.add_after(job.key(), BATCH);
        }
        if let Some(owner) = pod.metadata.controller() {
            if let Some(key) = controller_key::<JobView>(&pod.metadata) {
                if matches!(change, Change::Added(_)) {
                    self.expectations.creation_observed(&key);
                }
                if self.resolve(&pod.metadata.namespace, owner).is_some() {
                    self.observe_release(&key, pod);
                    self.queue.add_after(key, BATCH);
                }
            }
            return;
        }
        self.on_orphan(change);
    }

    fn observe_release(&self, key: &ObjectKey, pod: &PodView) {
        if !is_tracked(pod) {
            self.memory.release_observed(key, &pod.metadata.uid);
        }
    }

    /// Handles a pod without a controller: its finalizer is removed, and a job that selects it may adopt it.
    fn on_orphan(&self, change: &Change<PodView>) {
        let pod = change.object();
        if is_tracked(pod) {
            self.orphans.add(OrphanKey::Pod(pod.key()));
        }
        let relevant = match change {
            Change::Added(_) => true,
            Change::Updated { old, new } => {
                old.metadata.labels != new.metadata.labels || old.metadata.controller() != new.metadata.controller()
            }
            Change::Deleted(_) => false,
        };
        if !relevant || pod.metadata.labels.is_empty() {
            return;
        }
        for job in self.jobs.in_namespace(&pod.metadata.namespace) {
            if job.status.finished().is_none() && job.selector().matches(&pod.metadata.labels) {
                self.queue.add_after(job.key(), BATCH);
            }
        }
    }

    /// Handles a pod that is being deleted or was deleted (`gone`).
    fn on_going(&self, pod: &Arc<PodView>, gone: bool) {
        let tracked = is_tracked(pod);
        let owner = pod.metadata.controller();
        let job = owner.and_then(|o| {
            controller_key::<JobView>(&pod.metadata).and_then(|_| self.resolve(&pod.metadata.namespace, o))
        });
        let Some(job) = job.filter(|j| j.status.finished().is_none()) else {
            if tracked && !gone && (owner.is_none() || controller_key::<JobView>(&pod.metadata).is_some()) {
                self.orphans.add(OrphanKey::Pod(pod.key()));
            }
            return;
        };
        let key = job.key();
        self.expectations.deletion_observed(&key, &pod.metadata.uid);
        if gone || !tracked {
            self.memory.release_observed(&key, &pod.metadata.uid);
        }
        self.queue.add_after(key, BATCH);
    }

    fn note_tracked(&self, change: &Change<PodView>) {
        let (was, is) = match change {
            Change::Added(new) => (false, waits_for_count(new)),
            Change::Updated { old, new } => (waits_for_count(old), waits_for_count(new)),
            Change::Deleted(old) => (waits_for_count(old), false),
        };
        if was != is {
            self.metrics.tracked.with_label_values(&[if is { "add" } else { "delete" }]).inc();
        }
    }
}

#[cfg(test)]
mod sample;
#[cfg(test)]
mod tests;
