//! The worker while its pod lives: decides what follows, has it carried out, and takes in how far that got.
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kelson_client::EventType;

use super::{PREPARE_MAX, PREPARE_MIN, RETRY, RUNTIME_RETRY, Worker};
use crate::pod::{self, Role};
use crate::pods::execute::{Executor, Step};
use crate::pods::plan::{self, Input, Plan, SANDBOX};
use crate::pods::terminate;

impl Worker {
    pub(super) fn stepped(&mut self, step: Step) {
        let now = self.ctx.clock.now();
        match step {
            Step::Prepared(v) => {
                self.renew_at = v.renew_at;
            }
            Step::NotPrepared(message) | Step::SandboxFailed(message) => {
                tracing::info!(pod = %pod::format_pod(&self.pod), message, "pod cannot be set up yet");
                let delay = PREPARE_MIN.saturating_mul(1 << self.prepare_failures.min(10)).min(PREPARE_MAX);
                self.prepare_failures += 1;
                self.holds.insert(SANDBOX.to_owned(), now + delay);
            }
            Step::Changed => self.stale = true,
            Step::Started { name, restarted_after } => {
                // Volumes alone are no success: a sandbox that fails after them must wait longer each time.
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
                let again = image.and_then(|i| self.ctx.images.retry_at(&self.pod, &i, now));
                // The change from ErrImagePull to ImagePullBackOff is shown soon after, as upstream does.
                let pulling = error.reason == "ErrImagePull";
                let until = again.filter(|_| !pulling).unwrap_or(now + if pulling { RUNTIME_RETRY } else { RETRY });
                self.holds.insert(name.clone(), until);
                if let Some(ended) = restarted_after {
                    self.backoff.next(&name, ended, now);
                }
                self.start_errors.insert(name, error);
                self.stale = true;
            }
        }
    }

    pub(super) async fn sync(&mut self, now: Timestamp) {
        if self.must_end(now) {
            self.end();
            return;
        }
        if self.renew_at.is_some_and(|t| t <= now) {
            self.update_volumes().await;
            self.wake_at = self.renew_at;
        }
        let plan = self.plan(now);
        self.announce_crash_loops(&plan);
        self.crash_loops = plan.crash_loops;
        if let Some(at) = plan.wake_at {
            self.wake_at = Some(self.wake_at.map_or(at, |t| t.min(at)));
        }
        if plan.finished && self.job.is_none() {
            self.end();
            return;
        }
        self.publish(false);
        self.reconcile_probes(now);
        if self.job.is_none() && !plan.actions.is_empty() {
            self.spawn_sync(plan.actions);
        } else if self.job.is_none() {
            terminate::collect(&self.ctx, &self.runtime).await;
        }
    }

    pub(super) fn plan(&self, now: Timestamp) -> Plan {
        plan::compute(&Input {
            pod: &self.pod,
            runtime: &self.runtime,
            probes: &self.probes,
            backoff: &self.backoff,
            holds: &self.holds,
            now,
        })
    }

    pub(super) fn must_end(&mut self, now: Timestamp) -> bool {
        if self.gone || self.verdict.is_some() || pod::is_deleted(&self.pod) || pod::is_terminal(&self.pod) {
            return true;
        }
        let started = self.pod.status.as_ref().and_then(|s| s.start_time.as_ref()).map_or(self.start_time, |t| t.0);
        let limit = self.pod.spec.as_ref().and_then(|s| s.active_deadline_seconds).and_then(|s| u64::try_from(s).ok());
        let Some(limit) = limit else { return false };
        let at = started + Duration::from_secs(limit);
        if now < at {
            self.wake_at = Some(self.wake_at.map_or(at, |t| t.min(at)));
            return false;
        }
        let message = "Pod was active on the node longer than the specified deadline";
        self.ctx.event(&self.pod, EventType::Normal, "DeadlineExceeded", message);
        self.verdict = Some(("DeadlineExceeded".into(), message.into()));
        true
    }

    pub(super) fn announce_crash_loops(&self, plan: &Plan) {
        for name in plan.crash_loops.keys().filter(|n| !self.crash_loops.contains_key(*n)) {
            let role = pod::member(&self.pod, name).map_or(Role::App, |m| m.role);
            let message = format!("Back-off restarting failed container {name} in pod {}", pod::format_pod(&self.pod));
            self.ctx.container_event(&self.pod, role, name, EventType::Warning, "BackOff", message);
        }
    }

    pub(super) fn spawn_sync(&mut self, actions: Vec<plan::Action>) {
        let executor = Executor {
            ctx: Arc::clone(&self.ctx),
            pod: Arc::clone(&self.pod),
            runtime: Arc::clone(&self.runtime),
            report: self.own.clone(),
        };
        self.job = Some(tokio::spawn(executor.run(actions)));
    }
}
