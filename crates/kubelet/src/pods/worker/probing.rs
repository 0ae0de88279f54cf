//! The worker's probes: starting and stopping them, their results, and results of an earlier kubelet.
use std::collections::HashMap;
use std::sync::Arc;

use kelson_client::EventType;

use super::Worker;
use crate::env::expand::expand_static;
use crate::pod::{self, Role};
use crate::probes::{ProbeKind, Target, task};
use crate::runtime::snapshot::State;
use crate::runtime::snapshot::timestamp;

impl Worker {
    pub(super) fn probed(&mut self, id: String, kind: ProbeKind, ok: bool) {
        match (kind, ok) {
            (ProbeKind::Readiness, ok) => {
                self.probes.ready.insert(id, ok);
            }
            (ProbeKind::Liveness, false) => {
                self.probes.liveness_failed.insert(id);
            }
            (ProbeKind::Startup, true) => {
                self.probes.started.insert(id);
            }
            (ProbeKind::Startup, false) => {
                self.probes.startup_failed.insert(id);
            }
            (ProbeKind::Liveness, true) => {}
        }
    }

    /// Containers that an earlier kubelet started keep their readiness of the API until the first probe, so that they do not become
    /// unready.
    pub(super) fn adopt(&mut self) {
        let Some(status) = self.pod.status.as_ref() else { return };
        let lists = [&status.container_statuses, &status.init_container_statuses];
        for s in lists.into_iter().flat_map(|l| l.iter().flatten()) {
            let Some(id) = s.container_id.as_deref().and_then(|id| id.split_once("://")).map(|(_, id)| id) else {
                continue;
            };
            let running = self.runtime.containers.iter().any(|c| c.id == id && c.state == State::Running);
            if !running || self.probing.keys().any(|(t, _)| t == id) || self.probes.ready.contains_key(id) {
                continue;
            }
            if s.started == Some(true) {
                self.probes.started.insert(id.to_owned());
            }
            self.probes.ready.insert(id.to_owned(), s.ready);
        }
    }

    /// Starts the missing probes of running containers and stops all others.
    pub(super) fn reconcile_probes(&mut self) {
        let now = self.parts.effects.clock.now();
        let mut wanted = HashMap::new();
        for m in pod::members(&self.pod).filter(|m| matches!(m.role, Role::App | Role::Sidecar)) {
            let c = &*m.container;
            let Some(i) = self.runtime.latest(&c.name).filter(|i| i.state == State::Running) else { continue };
            let started = self.probes.is_started(c, &i.id);
            for kind in [ProbeKind::Startup, ProbeKind::Liveness, ProbeKind::Readiness] {
                let active = (kind == ProbeKind::Startup) != started;
                if let Some(p) = kind.of(c).filter(|_| active) {
                    wanted.insert((i.id.clone(), kind), (c.clone(), p.clone(), timestamp(i.started_at), m.role));
                }
            }
        }
        self.probing.retain(|key, _| wanted.contains_key(key));
        let ip = match self.runtime.ready_sandbox().and_then(|s| s.ips.first()) {
            Some(ip) => ip.clone(),
            None => self.parts.host_ips().first().cloned().unwrap_or_default(),
        };
        for ((id, kind), (c, mut probe, started, role)) in wanted {
            if self.probing.contains_key(&(id.clone(), kind)) {
                continue;
            }
            // A command that is too large after expansion is run unexpanded and fails.
            for command in probe.exec.iter_mut().filter_map(|e| e.command.as_mut()) {
                let words = expand_static(command, c.env.as_deref().unwrap_or_default());
                *command = words.unwrap_or_else(|_| std::mem::take(command));
            }
            let age = now.duration_since(started).max(jiff::SignedDuration::ZERO).unsigned_abs();
            let target = Target::new(&c, &id, &ip);
            let (events, inbox, of) = (self.parts.effects.events.clone(), self.inbox.clone(), id.clone());
            let pod = Arc::clone(&self.pod);
            let metrics = Arc::clone(&self.parts.effects.metrics);
            let report = move |r: task::Report| match r {
                task::Report::Result(ok) => inbox.probe(&of, kind, ok),
                task::Report::Attempt(outcome, took) => {
                    metrics.probed(&pod, &c.name, kind.word(), (outcome.word(), took));
                    if let Some((reason, text)) = task::complaint(kind, &outcome) {
                        events.container(&pod, role, &c.name, EventType::Warning, reason, text);
                    }
                }
            };
            let runner = Arc::clone(&self.parts.effects.prober);
            let work = task::run(kind, probe, target, age, runner, report);
            self.probing.insert((id, kind), self.parts.tasks.scoped("probe", work));
        }
    }
}
