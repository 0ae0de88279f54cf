//! The worker once its pod must end: containers within their grace period, then volumes and cgroup, then the object and
//! the last traces.
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kelson_client::DeleteOptions;
use tokio::time::Instant;

use super::{FLUSH_MAX, FORCED_GRACE, Mode, PREPARE_MIN, RUNTIME_RETRY, Worker};
use crate::pod;
use crate::pods::terminate;
use crate::probes::ProbeKind;
use crate::runtime::snapshot::State;

impl Worker {
    /// Ends the pod: nothing more is started, and liveness and startup probes stop. Readiness probes go on as long as their
    /// containers run, so that whoever sends requests learns when a container takes no more (upstream: `SyncTerminatingPod`).
    pub(super) fn end(&mut self) {
        self.in_flight.stop();
        self.probing.retain(|(_, kind), _| *kind == ProbeKind::Readiness);
        self.mode = Mode::Terminating;
        // What the stopped execution did last is not known yet.
        self.stale = true;
    }

    pub(super) fn stop_job(&mut self) {
        self.job = None;
        self.job_grace = None;
    }

    /// What containers get to end. A static pod's object is its file, which has no forced deletion.
    pub(super) fn grace(&self) -> Duration {
        let wanted = pod::grace(&self.pod);
        match self.evicted {
            Some(grace) => grace.min(wanted.max(FORCED_GRACE)),
            None if self.gone && !pod::is_static(&self.pod) => FORCED_GRACE,
            None => wanted,
        }
    }

    pub(super) fn terminating(&mut self) {
        if self.stale {
            // A fresh look first: `wait` returns at once because of `wake_at`.
            self.wake_at = Some(Instant::now());
            return;
        }
        self.end_probes_of_ended();
        if !self.runtime.is_running() && self.job.is_none() {
            self.mode = Mode::Cleaning;
            return;
        }
        if self.job.is_some() && self.job_grace.is_none() {
            // The execution that was under way ends after its current call, and a look at the runtime follows.
            return;
        }
        let grace = self.grace();
        // A shorter grace period (a second, forced delete) replaces the one under way.
        if self.job_grace.is_some_and(|g| grace < g) {
            self.stop_job();
        }
        if self.job.is_none() && !self.rests(Instant::now()) {
            self.job_grace = Some(grace);
            let work =
                terminate::pod(self.parts.effects.clone(), Arc::clone(&self.pod), Arc::clone(&self.runtime), grace);
            let span = self.parts.effects.spans.pod("syncTerminatingPod", &self.pod, None);
            let work = async move { span.scope(work).await };
            self.job = Some(self.parts.tasks.scoped("pod-end", work));
        }
        if self.verdict.is_none() {
            self.publish(false);
        }
    }

    /// Ends the probes of containers that no longer run.
    fn end_probes_of_ended(&mut self) {
        let running = |id: &str| self.runtime.containers.iter().any(|c| c.id == id && c.state == State::Running);
        self.probing.retain(|(id, _), _| running(id));
    }

    pub(super) async fn clean(&mut self, now: Instant) {
        let span = self.parts.effects.spans.pod("syncTerminatedPod", &self.pod, None);
        span.scope(self.give_back(now)).await;
    }

    /// Gives back what the pod has of the node.
    async fn give_back(&mut self, now: Instant) {
        let uid = pod::uid(&self.pod).to_owned();
        if let Err(error) = self.parts.claims.unprepare(&uid).await {
            tracing::warn!(pod = %pod::format_pod(&self.pod), error, "claims not given back yet");
            self.wake_at = Some(now + PREPARE_MIN.saturating_mul(1 << self.prepare_failures.min(7)));
            self.prepare_failures = self.prepare_failures.saturating_add(1);
            return;
        }
        // Before others hear that it has ended, and are sent here in its place.
        self.parts.placement.forget(&uid).await;
        self.publish(true);
        if let Err(e) = self.parts.volumes.tear_down(&uid).await {
            tracing::warn!(pod = %pod::format_pod(&self.pod), error = %e, "volumes not taken down yet");
            self.wake_at = Some(now + PREPARE_MIN.saturating_mul(1 << self.prepare_failures.min(7)));
            self.prepare_failures = self.prepare_failures.saturating_add(1);
            return;
        }
        self.parts.cgroups.remove(&uid).await;
        self.parts.devices.forget(&uid).await;
        self.parts.volumes.objects.unregister(&uid);
        self.renewal = None;
        self.wake_at = None;
        self.mode = Mode::Stopped;
    }

    /// All is down: confirm the deletion to the API, then remove the last traces.
    pub(super) async fn stopped(&mut self, now: Instant) -> bool {
        if !self.gone && pod::is_deleted(&self.pod) {
            self.parts.statuses.flushed(pod::uid(&self.pod), FLUSH_MAX).await;
            let options = DeleteOptions::default().with_grace(0).with_uid(pod::uid(&self.pod));
            let (namespace, name) = (pod::namespace(&self.pod), pod::name(&self.pod));
            match self.parts.client.delete::<Pod>(namespace, name, &options).await {
                Ok(()) => self.gone = true,
                Err(e) if e.is_not_found() || e.status().is_some_and(|s| s.code == 409) => self.gone = true,
                Err(e) => {
                    tracing::warn!(pod = name, error = %e, "pod not deleted from the API yet");
                    self.wake_at = Some(now + RUNTIME_RETRY);
                    return false;
                }
            }
        }
        if !self.gone {
            return false;
        }
        match terminate::remove(&self.parts, &self.pod, &self.runtime).await {
            Ok(()) => true,
            Err(e) => {
                tracing::warn!(pod = %pod::format_pod(&self.pod), error = %e, "containers not removed yet");
                self.stale = true;
                self.wake_at = Some(now + RUNTIME_RETRY);
                false
            }
        }
    }
}
