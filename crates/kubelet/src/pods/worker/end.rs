//! The worker after its pod must end: stops containers within their grace period, removes volumes and cgroups, confirms the deletion, and
//! removes the remains.
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
    /// Starts the end of the pod: nothing more is started, and liveness and startup probes stop. Readiness probes continue as long as their
    /// containers run, so that clients of Services learn when a container becomes unready (upstream: `SyncTerminatingPod`).
    pub(super) fn end(&mut self) {
        self.in_flight.stop();
        self.probing.retain(|(_, kind), _| *kind == ProbeKind::Readiness);
        self.mode = Mode::Terminating;
        // The last actions of the interrupted execution are not known yet.
        self.stale = true;
    }

    pub(super) fn stop_job(&mut self) {
        self.job = None;
        self.job_grace = None;
    }

    /// Returns the grace period. A static pod is deleted by removing its file, which has no forced deletion.
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
            // Read the runtime's state first: `wait` returns at once because of `wake_at`.
            self.wake_at = Some(Instant::now());
            return;
        }
        self.end_probes_of_ended();
        if !self.runtime.is_running() && self.job.is_none() {
            self.mode = Mode::Cleaning;
            return;
        }
        if self.job.is_some() && self.job_grace.is_none() {
            // The current execution ends after its running call; then the runtime is read again.
            return;
        }
        let grace = self.grace();
        // A shorter grace period (of a second or forced deletion) replaces the current one.
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

    /// Stops the probes of containers that no longer run.
    fn end_probes_of_ended(&mut self) {
        let running = |id: &str| self.runtime.containers.iter().any(|c| c.id == id && c.state == State::Running);
        self.probing.retain(|(id, _), _| running(id));
    }

    pub(super) async fn clean(&mut self, now: Instant) {
        let span = self.parts.effects.spans.pod("syncTerminatedPod", &self.pod, None);
        span.scope(self.give_back(now)).await;
    }

    /// Releases the pod's resources on the node.
    async fn give_back(&mut self, now: Instant) {
        let uid = pod::uid(&self.pod).to_owned();
        if let Err(error) = self.parts.claims.unprepare(&uid).await {
            tracing::warn!(pod = %pod::format_pod(&self.pod), error, "unpreparing the pod's resource claims failed; retrying");
            self.wake_at = Some(now + PREPARE_MIN.saturating_mul(1 << self.prepare_failures.min(7)));
            self.prepare_failures = self.prepare_failures.saturating_add(1);
            return;
        }
        // Before the status reports the end, after which other pods can be scheduled here.
        self.parts.placement.forget(&uid).await;
        self.publish(true);
        if let Err(e) = self.parts.volumes.tear_down(&uid).await {
            tracing::warn!(pod = %pod::format_pod(&self.pod), error = %e, "unmounting the pod's volumes failed; retrying");
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

    /// Confirms the deletion to the API after everything has stopped, then removes the remains.
    pub(super) async fn stopped(&mut self, now: Instant) -> bool {
        if !self.gone && pod::is_deleted(&self.pod) {
            self.parts.statuses.flushed(pod::uid(&self.pod), FLUSH_MAX).await;
            let options = DeleteOptions::default().with_grace(0).with_uid(pod::uid(&self.pod));
            let (namespace, name) = (pod::namespace(&self.pod), pod::name(&self.pod));
            match self.parts.client.delete::<Pod>(namespace, name, &options).await {
                Ok(()) => self.gone = true,
                Err(e) if e.is_not_found() || e.status().is_some_and(|s| s.code == 409) => self.gone = true,
                Err(e) => {
                    tracing::warn!(pod = name, error = %e, "deleting the pod from the API failed; retrying");
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
                tracing::warn!(pod = %pod::format_pod(&self.pod), error = %e, "removing the pod's containers failed; retrying");
                self.stale = true;
                self.wake_at = Some(now + RUNTIME_RETRY);
                false
            }
        }
    }
}
