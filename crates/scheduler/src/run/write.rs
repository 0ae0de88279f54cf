//! Writes of the scheduler: bindings, conditions of unschedulable pods, and deletions for preemption.
use std::sync::Arc;
use std::time::Duration;

use kelson_client::{
    Client, ClientError, DeleteOptions, EventRecorder, EventType, Object, PatchKind, ResourceType, TransportError,
    WriteOptions,
};
use kelson_meta::{Clock, Reason, format_seconds};
use kelson_metrics::IntGauge;
use serde_json::json;
use tokio::time::Instant;

use super::extend::Extenders;
use super::shared::Shared;
use crate::core::{Preemption, Report, Step};
use crate::metrics::{ExtensionPoint, Metrics};
use crate::view::Pod;

/// Carries out decisions and reports the results to the core.
pub(super) struct Writer {
    pub shared: Arc<Shared>,
    pub client: Client,
    pub clock: Arc<dyn Clock>,
    /// The event source and limits of each profile; at least one.
    pub voices: Vec<Voice>,
    pub extenders: Extenders,
    pub metrics: Metrics,
}

/// The event source and limits of one profile.
pub(super) struct Voice {
    /// The profile's name.
    pub name: Box<str>,
    pub recorder: EventRecorder,
    /// The time limit for volumes.
    pub volumes_within: Duration,
    /// The time limit for devices.
    pub devices_within: Duration,
}

/// Counts a binding in progress until it is dropped.
pub(super) struct Binding(IntGauge);

impl Drop for Binding {
    fn drop(&mut self) {
        self.0.dec();
    }
}

const PODS: ResourceType = <Pod as Object>::TYPE;

impl Writer {
    /// Records an event about a pod, with the name of its profile as the source.
    pub(super) fn announce(&self, pod: &Pod, kind: EventType, reason: &str, action: &str, text: String) {
        self.voice(pod).recorder.action((&pod.reference(), None), kind, reason, action, text);
    }

    /// Records why a pod was not placed.
    fn report_failed(&self, pod: &Pod, why: &str) {
        self.announce(pod, EventType::Warning, "FailedScheduling", "Scheduling", why.to_owned());
    }

    /// The event source of the pod's profile.
    pub(super) fn voice(&self, pod: &Pod) -> &Voice {
        let own = self.voices.iter().find(|v| v.name == pod.spec.scheduler_name);
        // A pod that is decided on has a profile, and there is at least one.
        own.unwrap_or(&self.voices[0])
    }

    /// Counts a binding for as long as the returned value lives.
    pub(super) fn begins_to_bind(&self) -> Binding {
        self.metrics.binding.inc();
        Binding(self.metrics.binding.clone())
    }

    /// Asks extenders for a step and returns the step that follows. Only one pod is asked about at a time.
    pub(super) async fn ask(&self, mut step: Step) -> Step {
        loop {
            step = match step {
                Step::Ask(question) => {
                    let answer = self.extenders.nodes(&self.client, &question).await;
                    self.shared.core.lock().answered(question, answer, Instant::now())
                }
                Step::AskForRoom(question) => {
                    let answer = self.extenders.rooms(&self.client, &question).await;
                    self.shared.core.lock().rooms_answered(question, answer, Instant::now())
                }
                other => return other,
            };
        }
    }

    pub(super) async fn bind(&self, pod: &Pod) {
        let begun = std::time::Instant::now();
        let (namespace, name, node) = (pod.namespace(), &*pod.name, &*pod.node_name);
        let done = match self.extenders.bind(pod).await {
            Some(done) => done.map_err(|why| ClientError::Transport(TransportError(why))),
            None => self.bind_by_api(pod).await,
        };
        self.metrics.bound_in(&pod.spec.scheduler_name, ExtensionPoint::Bind, done.is_ok(), begun.elapsed());
        match done {
            Ok(()) => {
                self.shared.core.lock().bound(pod, Instant::now());
                let text = format!("Successfully assigned {namespace}/{name} to {node}");
                self.announce(pod, EventType::Normal, "Scheduled", "Binding", text);
            }
            Err(e) => self.bind_failed(pod, &e).await,
        }
    }

    async fn bind_by_api(&self, pod: &Pod) -> Result<(), ClientError> {
        let (namespace, name, node) = (pod.namespace(), &*pod.name, &*pod.node_name);
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": &*pod.uid},
            "target": {"kind": "Node", "name": node},
        });
        let done = self.client.create_sub::<serde::de::IgnoredAny>(&PODS, namespace, name, "binding", &binding).await;
        done.map(|_| ())
    }

    async fn bind_failed(&self, pod: &Pod, e: &ClientError) {
        let gone = e.is_not_found();
        self.drop_extended(pod).await;
        self.shared.core.lock().failed(pod, gone, Instant::now());
        self.shared.changed.notify_one();
        if gone {
            return;
        }
        tracing::warn!(pod = %pod.name, namespace = pod.namespace(), node = %pod.node_name, error = %e, "binding failed");
        let text = format!("binding rejected: {e}");
        self.report_failed(pod, &text);
        // Another client bound it: the watch will deliver that, and its status is not ours to write.
        if !e.is(Reason::Conflict) {
            self.condition(pod, "SchedulerError", &text).await;
        }
    }

    /// Handles a failed PreBind: the pod is retried, unless it was deleted.
    pub(super) async fn pre_bind_failed(&self, pod: &Pod, plugin: &str, why: &str) {
        self.drop_extended(pod).await;
        let gone = {
            let mut core = self.shared.core.lock();
            let gone = core.cluster.node_of(&pod.uid).is_none();
            core.failed(pod, gone, Instant::now());
            gone
        };
        self.shared.changed.notify_one();
        if gone {
            return;
        }
        let text = format!("running PreBind plugin {plugin:?}: {why}");
        tracing::info!(pod = %pod.name, namespace = pod.namespace(), node = %pod.node_name, plugin, why, "pod was not bound");
        self.report_failed(pod, &text);
        self.condition(pod, "SchedulerError", &text).await;
    }

    pub(super) async fn report(&self, report: &Report) {
        let pod = &report.pod;
        if let Some(claim) = &report.free {
            self.free_claim(claim).await;
        }
        if let Some(claim) = &report.drop {
            self.drop_claim(claim).await;
        }
        self.report_failed(pod, &report.message);
        self.write_status(pod, report.reason, &report.message, report.nominate.as_deref()).await;
    }

    /// Writes the nomination first, so that it is known before the victims are deleted.
    pub(super) async fn preempt(&self, p: &Preemption) {
        self.report(&p.report).await;
        for pod in &p.disappointed {
            let patch = json!({"metadata": {"uid": &*pod.uid}, "status": {"nominatedNodeName": null}});
            self.patch_status(pod, &patch).await;
        }
        let (uid, node) = (&p.report.pod.uid, p.report.nominate.as_deref().unwrap_or_default());
        let mut all = true;
        for victim in p.victims.iter().filter(|v| !v.deleting) {
            let by = &p.report.pod.spec.scheduler_name;
            let patch = json!({"metadata": {"uid": &*victim.uid}, "status": {"conditions": [{
                "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
                "message": format!("{by}: preempting to accommodate a higher priority pod"),
                "lastTransitionTime": format_seconds(self.clock.now()), "observedGeneration": victim.generation,
            }]}});
            self.patch_status(victim, &patch).await;
            let options = DeleteOptions::default().with_uid(&*victim.uid);
            match self.client.delete::<Pod>(victim.namespace(), &victim.name, &options).await {
                Ok(()) => {
                    let text = format!("Preempted by pod {uid} on node {node}");
                    let (who, role_subjects) = (p.report.pod.reference(), victim.reference());
                    let recorder = &self.voice(&p.report.pod).recorder;
                    recorder.action((&role_subjects, Some(&who)), EventType::Normal, "Preempted", "Preempting", text);
                }
                Err(e) if e.is_not_found() || e.is(Reason::Conflict) => {}
                Err(e) => {
                    all = false;
                    tracing::warn!(pod = %victim.name, error = %e, "preempting a pod failed; retrying");
                }
            }
        }
        self.shared.core.lock().room_asked(p, all, Instant::now());
        self.shared.changed.notify_one();
    }

    /// Writes `PodScheduled=False`, unless the pod has that condition already.
    pub(super) async fn condition(&self, pod: &Pod, reason: &str, message: &str) {
        self.write_status(pod, reason, message, None).await;
    }

    async fn write_status(&self, pod: &Pod, reason: &str, message: &str, nominate: Option<&str>) {
        let written = pod.condition.as_ref().map(|c| (&*c.reason, &*c.message, c.observed_generation));
        let said = written == Some((reason, message, pod.generation));
        let nominated = nominate.is_none_or(|n| n == pod.nominated.as_deref().unwrap_or_default());
        if said && nominated {
            return;
        }
        let mut condition = json!({"type": "PodScheduled", "status": "False", "reason": reason, "message": message,
            "observedGeneration": pod.generation});
        if pod.condition.is_none() {
            condition["lastTransitionTime"] = format_seconds(self.clock.now()).into();
        }
        let mut patch = json!({"metadata": {"uid": &*pod.uid}, "status": {"conditions": [condition]}});
        if let Some(node) = nominate {
            patch["status"]["nominatedNodeName"] = if node.is_empty() { json!(null) } else { json!(node) };
        }
        self.patch_status(pod, &patch).await;
    }

    async fn patch_status(&self, pod: &Pod, patch: &serde_json::Value) {
        let options = WriteOptions::default();
        let kind = PatchKind::Strategic;
        match self.client.patch::<Pod>(pod.namespace(), &pod.name, "status", kind, patch, &options).await {
            Ok(_) => {}
            // The pod was deleted, or recreated with the same name.
            Err(e) if e.is_not_found() || e.is(Reason::Conflict) => {}
            Err(e) => tracing::warn!(pod = %pod.name, error = %e, "updating the pod's status failed"),
        }
    }
}
