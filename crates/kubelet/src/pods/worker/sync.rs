//! The worker while its pod is alive: computes a plan, starts its execution, and applies the reported steps.
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kelson_client::EventType;
use tokio::time::Instant;

use super::renewal::Renewal;
use super::{PREPARE_MAX, PREPARE_MIN, RETRY, RUNTIME_RETRY, Worker};
use crate::cgroups::resources::Limits;
use crate::images::error::StartReason;
use crate::placement::cpus::PlacementRefusal;
use crate::pod::{self, Role};
use crate::pods::event::Step;
use crate::pods::execute::Executor;
use crate::pods::in_flight::InFlight;
use crate::pods::plan::{self, Input, Plan, SANDBOX};
use crate::pods::{resize, terminate};

impl Worker {
    pub(super) fn stepped(&mut self, step: Step) {
        let now = Instant::now();
        match step {
            Step::Prepared(v) => self.renews(v.renew_at),
            Step::NotPrepared(message) | Step::SandboxFailed(message) => {
                self.hold_all(&message);
            }
            Step::Refused(why) => self.refused(why),
            Step::Changed => self.stale = true,
            Step::Removed { name, ended } => {
                if let Some(ended) = ended {
                    self.backoff.next(&name, ended, now);
                }
                self.stale = true;
            }
            Step::Started { name, restarted_after } => {
                // Volumes alone do not reset the back-off: a sandbox that fails after them must wait longer each time.
                self.prepare_failures = 0;
                self.start_errors.remove(&name);
                self.holds.remove(&name);
                if let Some(ended) = restarted_after {
                    self.backoff.next(&name, ended, now);
                }
                self.stale = true;
            }
            Step::StartFailed { name, error, restarted_after } => {
                let image = pod::member(&self.pod, &name).and_then(|m| m.container.image.clone());
                let again = image.and_then(|i| self.parts.images.retry_at(&self.pod, &i));
                // The change from ErrImagePull to ImagePullBackOff is published soon after, like upstream.
                let pulling = error.reason == StartReason::ImagePull;
                let until = again.filter(|_| !pulling).unwrap_or(now + if pulling { RUNTIME_RETRY } else { RETRY });
                self.holds.insert(name.clone(), until);
                if let Some(ended) = restarted_after {
                    self.backoff.next(&name, ended, now);
                }
                self.start_errors.insert(name, error);
                self.stale = true;
            }
            Step::Resized { held, error } => self.resized(held, error, now),
        }
    }

    /// Records that the volumes are valid until this time of the wall clock.
    pub(super) fn renews(&mut self, at: Option<Timestamp>) {
        let wall = self.parts.effects.clock.now();
        self.renewal = at.map(|at| Renewal::of(at, wall));
    }

    /// Fails the pod without retry. Upstream detects this already at admission.
    fn refused(&mut self, why: PlacementRefusal) {
        self.parts.effects.events.pod(&self.pod, EventType::Warning, why.reason, why.message.clone());
        self.rejected = true;
        self.verdict = Some((why.reason.to_owned(), why.message));
        self.stale = true;
    }

    fn resized(&mut self, held: Vec<(String, Limits)>, error: Option<String>, now: Instant) {
        held.into_iter().for_each(|(id, limits)| self.reader.resized(&id, limits));
        self.stale = true;
        let Some(why) = error else {
            self.resize.cgroup_stale = false;
            self.resize.failed = None;
            return;
        };
        if self.resize.failed.as_ref().is_none_or(|(before, _)| *before != why) {
            let message = resize::message("error", &self.pod, &why);
            self.parts.effects.events.pod(&self.pod, EventType::Warning, "ResizeError", message);
        }
        self.resize.failed = Some((why, now + RETRY));
    }

    /// Records whether the plan includes a resize, and records an event when a resize is complete.
    fn resizing(&mut self, now_running: bool) {
        if self.resize.running && !now_running {
            let message = resize::message("completed", &self.pod, "");
            self.parts.effects.events.pod(&self.pod, EventType::Normal, "ResizeCompleted", message);
            self.resize.failed = None;
        }
        self.resize.running = now_running;
    }

    /// Delays all starts of the pod; the delay grows with consecutive failures.
    pub(super) fn hold_all(&mut self, why: &str) {
        tracing::info!(pod = %pod::format_pod(&self.pod), why, "preparing the pod failed; retrying after back-off");
        let delay = PREPARE_MIN.saturating_mul(1 << self.prepare_failures.min(10)).min(PREPARE_MAX);
        self.prepare_failures = self.prepare_failures.saturating_add(1);
        self.holds.insert(SANDBOX.to_owned(), Instant::now() + delay);
    }

    pub(super) async fn sync(&mut self, now: Instant) {
        if self.must_end(now) {
            self.end();
            return;
        }
        if self.renewal.as_mut().is_some_and(|r| r.is_due(now, self.parts.effects.clock.now())) {
            self.update_volumes().await;
            self.wake_at = self.renewal.as_ref().map(Renewal::look_at);
        }
        if !std::mem::replace(&mut self.is_taken_over, true) {
            // For a pod that ran before this kubelet, this finds its volumes, their ownership and usage.
            self.update_volumes().await;
        }
        let plan = self.plan(now);
        self.announce_crash_loops(&plan);
        self.resizing(plan.resizing);
        self.restarting_all = plan.restarting_all;
        self.crash_loops = plan.crash_loops;
        if let Some(at) = plan.wake_at {
            self.wake_at = Some(self.wake_at.map_or(at, |t| t.min(at)));
        }
        if plan.finished && self.job.is_none() {
            self.end();
            return;
        }
        self.publish(false);
        self.reconcile_probes();
        if self.rests(now) {
            return;
        }
        if self.job.is_none() && !plan.actions.is_empty() {
            self.spawn_sync(plan.actions);
        } else if self.job.is_none() {
            terminate::collect(&self.parts, &self.pod, &self.runtime).await;
        }
    }

    /// Returns whether no actions may be executed yet. If so, schedules the wake-up.
    pub(super) fn rests(&mut self, now: Instant) -> bool {
        let until = self.rest_until.filter(|t| *t > now);
        self.rest_until = until;
        if let Some(until) = until {
            self.wake_at = Some(self.wake_at.map_or(until, |t| t.min(until)));
        }
        until.is_some()
    }

    pub(super) fn plan(&self, now: Instant) -> Plan {
        plan::compute(&Input {
            pod: &self.pod,
            runtime: &self.runtime,
            probes: &self.probes,
            backoff: &self.backoff,
            holds: &self.holds,
            cgroup_stale: self.resize.cgroup_stale,
            resize_held: self.resize.failed.as_ref().map(|(_, until)| *until),
            now,
        })
    }

    pub(super) fn must_end(&mut self, now: Instant) -> bool {
        if self.gone || self.verdict.is_some() || pod::is_deleted(&self.pod) || pod::is_terminal(&self.pod) {
            return true;
        }
        let started = self.pod.status.as_ref().and_then(|s| s.start_time.as_ref()).map_or(self.start_time, |t| t.0);
        let limit = self.pod.spec.as_ref().and_then(|s| s.active_deadline_seconds).and_then(|s| u64::try_from(s).ok());
        // A deadline beyond the range of timestamps never passes.
        let at = limit.and_then(|limit| started.checked_add(Duration::from_secs(limit)).ok());
        // The start time in the object is of the wall clock, so the remaining time is computed with it.
        let left = at.map(|at| at.duration_since(self.parts.effects.clock.now()));
        let Some(left) = left else { return false };
        if left.is_positive() {
            // A time that is too far away needs no timer.
            let at = now.checked_add(left.unsigned_abs());
            self.wake_at = self.wake_at.into_iter().chain(at).min();
            return false;
        }
        let message = "Pod was active on the node longer than the specified deadline";
        self.parts.effects.events.pod(&self.pod, EventType::Normal, "DeadlineExceeded", message);
        self.verdict = Some(("DeadlineExceeded".into(), message.into()));
        true
    }

    pub(super) fn announce_crash_loops(&self, plan: &Plan) {
        for name in plan.crash_loops.keys().filter(|n| !self.crash_loops.contains_key(*n)) {
            let role = pod::member(&self.pod, name).map_or(Role::App, |m| m.role);
            let message = format!("Back-off restarting failed container {name} in pod {}", pod::format_pod(&self.pod));
            self.parts.effects.events.container(&self.pod, role, name, EventType::Warning, "BackOff", message);
        }
    }

    pub(super) fn spawn_sync(&mut self, actions: Vec<plan::Action>) {
        self.in_flight = InFlight::default();
        let executor = Executor {
            parts: Arc::clone(&self.parts),
            pod: Arc::clone(&self.pod),
            runtime: Arc::clone(&self.runtime),
            report: self.report.clone(),
            in_flight: self.in_flight.clone(),
        };
        self.job = Some(self.parts.tasks.scoped("pod-sync", executor.run(actions)));
    }
}
