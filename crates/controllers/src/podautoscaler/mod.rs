//! The horizontal pod autoscaler controller. It adjusts the number of pods to the metrics every fifteen seconds. This
//! file reads and updates scales and statuses. `evaluate` reads the metrics, `usage` computes the number of pods,
//! `limits` applies stabilization and policies, and `counts` has the controller's metrics.
mod counts;
mod evaluate;
mod limits;
mod metrics;
mod usage;

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use kelson_client::{Change, Client, EventRecorder, EventType, Object, ObjectRef, WorkQueue};
use kelson_meta::{LabelSelector, ObjectKey, format_seconds};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use self::counts::{Action, AutoscalerCounts, ErrorLabel};
use self::evaluate::Evaluator;
use self::limits::Past;
use self::metrics::MetricsClient;
use self::usage::{Pods, Tolerances};
use crate::shared::context::{Context, SyncError, WORKERS, update_value};
use crate::shared::informers::SharedInformer;
use crate::shared::scale::{Scale, ScaleError, Scales, Target};
use crate::views::condition::{self, Condition};
use crate::views::{PodAutoscalerStatus, PodAutoscalerView, PodView};

/// The source of this controller's events.
const COMPONENT: &str = "horizontal-pod-autoscaler";
/// The number of attempts to update a scale with conflicts.
const CONFLICTS_MAX: usize = 5;

struct HorizontalPodAutoscalerController {
    ctx: Arc<Context>,
    client: Client,
    recorder: EventRecorder,
    scales: Scales,
    metrics: MetricsClient,
    autoscalers: SharedInformer<PodAutoscalerView>,
    pods: SharedInformer<PodView>,
    memory: Mutex<HashMap<ObjectKey, AutoscalerMemory>>,
    counts: AutoscalerCounts,
    queue: WorkQueue<ObjectKey>,
}

/// The in-memory state of one autoscaler.
struct AutoscalerMemory {
    past: Past,
    /// The selector of the pods that it scaled last.
    selector: Option<LabelSelector>,
}

/// Starts the controller.
pub fn start(ctx: &Arc<Context>) {
    let client = ctx.client();
    let me = Arc::new(HorizontalPodAutoscalerController {
        ctx: Arc::clone(ctx),
        recorder: ctx.recorder(&client, COMPONENT),
        scales: Scales::new(client.clone()),
        metrics: MetricsClient::new(client.clone()),
        client,
        autoscalers: ctx.informers.pod_autoscalers.reader(),
        pods: ctx.informers.pods.reader(),
        memory: Mutex::default(),
        counts: AutoscalerCounts::new(&ctx.config.metrics),
        queue: WorkQueue::default(),
    });
    let (queue, period) = (me.queue.clone(), ctx.config.autoscaling.period);
    me.autoscalers.on_change(move |change| match change {
        Change::Added(_) | Change::Deleted(_) => queue.add(change.object().key()),
        // Each sync updates the status, so updates do not trigger a sync; the next one follows after the period.
        Change::Updated { .. } => queue.add_after(change.object().key(), period),
    });
    let queue = me.queue.clone();
    ctx.run_queue_of(me.autoscalers.clone(), &queue, WORKERS, move |key| {
        let me = Arc::clone(&me);
        async move { me.sync(&key).await }
    });
}

/// One sync of an autoscaler with its new status.
struct ScaleAssessment<'a> {
    me: &'a HorizontalPodAutoscalerController,
    key: &'a ObjectKey,
    hpa: Arc<PodAutoscalerView>,
    status: PodAutoscalerStatus,
    now: Timestamp,
    /// The action and the first error, for metrics.
    action: Action,
    fault: ErrorLabel,
}

impl HorizontalPodAutoscalerController {
    async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let Some(hpa) = self.autoscalers.get(key) else {
            self.memory.lock().remove(key);
            return Ok(());
        };
        // Errors are in events and conditions. The next sync follows after the period, not earlier.
        self.queue.add_after(key.clone(), self.ctx.config.autoscaling.period);
        let status = hpa.status.clone();
        let now = self.ctx.clock.now();
        let mut look =
            ScaleAssessment { me: self, key, hpa, status, now, action: Action::None, fault: ErrorLabel::None };
        let begun = Instant::now();
        look.run().await;
        let ScaleAssessment { hpa, status, action, fault, .. } = look;
        self.counts.reconciled(action, fault, begun.elapsed());
        if status == hpa.status {
            return Ok(());
        }
        let tree = serde_json::to_value(&status).map_err(|e| SyncError::Other(e.to_string()))?;
        let (namespace, name, seen) = (&key.namespace, &key.name, hpa.resource_version());
        let written = update_value::<PodAutoscalerView>(&self.client, namespace, name, "status", seen, |v| {
            v["status"] = tree;
        });
        match written.await {
            Err(e) if !e.is_conflict() && !e.is_not_found() => {
                let about = ObjectRef::of(&*hpa);
                self.recorder.event(&about, EventType::Warning, "FailedUpdateStatus", e.to_string());
                Err(e.into())
            }
            _ => Ok(()),
        }
    }

    /// Returns the state of an autoscaler at its first sync.
    fn unseen(&self) -> AutoscalerMemory {
        AutoscalerMemory { past: Past::new(self.ctx.config.autoscaling.down_window), selector: None }
    }

    /// Returns other autoscalers of the namespace that scale one of these pods.
    fn rivals(&self, key: &ObjectKey, selector: &LabelSelector, pods: &[Arc<PodView>]) -> Vec<ObjectKey> {
        let mut memory = self.memory.lock();
        memory.entry(key.clone()).or_insert_with(|| self.unseen()).selector = Some(selector.clone());
        let shares = |other: &LabelSelector| pods.iter().any(|p| other.matches(&p.metadata.labels));
        let others =
            memory.iter().filter(|(k, m)| k.namespace == key.namespace && m.selector.as_ref().is_some_and(shares));
        let mut rivals: Vec<ObjectKey> = others.map(|(k, _)| k.clone()).collect();
        rivals.sort();
        rivals
    }
}

impl ScaleAssessment<'_> {
    fn event(&self, kind: EventType, reason: &str, message: impl Into<String>) {
        self.me.recorder.event(&ObjectRef::of(&*self.hpa), kind, reason, message);
    }

    /// Records an error; the first one counts.
    fn failed(&mut self, fault: ErrorLabel) {
        if self.fault == ErrorLabel::None {
            self.fault = fault;
        }
    }

    fn condition(&mut self, kind: &str, holds: bool, reason: &str, message: impl Into<String>) {
        let status = if holds { "True" } else { "False" };
        let mut new = Condition::new(kind, status, reason, message, &format_seconds(self.now));
        if let Some(old) = condition::find(&self.status.conditions, kind).filter(|o| o.status == status) {
            new.last_transition_time.clone_from(&old.last_transition_time);
        }
        match self.status.conditions.iter_mut().find(|c| c.r#type == kind) {
            Some(old) => *old = new,
            None => self.status.conditions.push(new),
        }
    }

    fn target<'a>(&self, hpa: &'a PodAutoscalerView) -> Target<'a> {
        let t = &hpa.spec.scale_target_ref;
        Target { api_version: &t.api_version, kind: &t.kind, namespace: &hpa.metadata.namespace, name: &t.name }
    }

    async fn scale(&self, target: Target<'_>) -> Result<Scale, String> {
        let found = self.me.scales.get(target).await.map_err(|e| e.to_string())?;
        let Some(scale) = found else {
            let resource = self.me.scales.resource_name(target).await.map_err(|e| e.to_string())?;
            return Err(format!("{resource} {:?} not found", target.name));
        };
        Ok(scale)
    }

    async fn run(&mut self) {
        let hpa = Arc::clone(&self.hpa);
        let target = self.target(&hpa);
        let scale = match self.scale(target).await {
            Ok(scale) => scale,
            Err(why) => {
                let text = format!("the HPA controller was unable to get the target's current scale: {why}");
                self.event(EventType::Warning, "FailedGetScale", why);
                self.fault = ErrorLabel::Internal;
                return self.condition("AbleToScale", false, "FailedGetScale", text);
            }
        };
        let text = "the HPA controller was able to get the target's current scale";
        self.condition("AbleToScale", true, "SucceededGetScale", text);
        let current = scale.spec.replicas;
        self.remember(|past, now| past.begin(current, now));
        let (min, max) = (hpa.spec.min_replicas.unwrap_or(1), hpa.spec.max_replicas);
        let (desired, why, metrics) = if current == 0 {
            let text = "scaling is disabled since the replica count of the target is zero";
            self.condition("ScalingActive", false, "ScalingDisabled", text);
            (0, String::new(), None)
        } else if current > max {
            (max, "Current number of replicas above Spec.MaxReplicas".to_owned(), None)
        } else if current < min {
            (min, "Current number of replicas below Spec.MinReplicas".to_owned(), None)
        } else {
            match self.by_metrics(&scale).await {
                Ok((desired, why, metrics)) => (desired, why, Some(metrics)),
                Err((text, metrics)) => {
                    self.failed(ErrorLabel::Internal);
                    self.event(EventType::Warning, "FailedComputeMetricsReplicas", text);
                    self.status.current_replicas = current;
                    self.status.current_metrics = Some(metrics);
                    return;
                }
            }
        };
        self.status.current_replicas = current;
        self.status.current_metrics = metrics;
        if desired != current {
            if let Err(error) = self.rescale(target, scale, desired).await {
                let text = format!("New size: {desired}; reason: {why}; error: {error}");
                self.event(EventType::Warning, "FailedRescale", text);
                self.failed(ErrorLabel::Internal);
                let text = format!("the HPA controller was unable to update the target scale: {error}");
                return self.condition("AbleToScale", false, "FailedUpdateScale", text);
            }
            let text = format!("the HPA controller was able to update the target scale to {desired}");
            self.condition("AbleToScale", true, "SucceededRescale", text);
            self.event(EventType::Normal, "SuccessfulRescale", format!("New size: {desired}; reason: {why}"));
            self.remember(|past, now| past.changed(current, desired, now));
            self.action = Action::of(current, desired);
            self.status.last_scale_time = Some(format_seconds(self.now));
        }
        self.status.desired_replicas = desired;
    }

    fn remember<R>(&self, f: impl FnOnce(&mut Past, Timestamp) -> R) -> R {
        let mut memory = self.me.memory.lock();
        f(&mut memory.entry(self.key.clone()).or_insert_with(|| self.me.unseen()).past, self.now)
    }

    /// Updates the scale. After a conflict it retries with the current object.
    async fn rescale(&self, target: Target<'_>, mut scale: Scale, desired: i32) -> Result<(), ScaleError> {
        for attempt in 1.. {
            match self.me.scales.set(target, &scale, desired).await {
                Err(ScaleError::Client(e)) if e.is_conflict() && attempt < CONFLICTS_MAX => {
                    if let Some(fresh) = self.me.scales.get(target).await? {
                        scale = fresh;
                    }
                }
                done => return done,
            }
        }
        Ok(())
    }

    /// Returns the pods that the selector selects, unless another autoscaler scales them, too.
    fn pods(&mut self, selector: &str) -> Result<Vec<Arc<PodView>>, String> {
        if selector.is_empty() {
            self.failed(ErrorLabel::Spec);
            let text = "selector is required";
            self.event(EventType::Warning, "SelectorRequired", text);
            self.condition("ScalingActive", false, "InvalidSelector", "the HPA target's scale is missing a selector");
            return Err(text.to_owned());
        }
        let parsed = match LabelSelector::parse(selector) {
            Ok(parsed) => parsed,
            Err(e) => {
                self.failed(ErrorLabel::Spec);
                let text = format!("couldn't convert selector into a corresponding internal selector object: {e}");
                self.event(EventType::Warning, "InvalidSelector", text.clone());
                self.condition("ScalingActive", false, "InvalidSelector", text.clone());
                return Err(text);
            }
        };
        let mut pods = self.me.pods.in_namespace(&self.key.namespace);
        pods.retain(|p| parsed.matches(&p.metadata.labels));
        let rivals = self.me.rivals(self.key, &parsed, &pods);
        if rivals.len() > 1 {
            self.failed(ErrorLabel::Spec);
            let names: Vec<String> = rivals.iter().map(ToString::to_string).collect();
            let text = format!("pods by selector {selector} are controlled by multiple HPAs: [{}]", names.join(" "));
            self.event(EventType::Warning, "AmbiguousSelector", text.clone());
            self.condition("ScalingActive", false, "AmbiguousSelector", text.clone());
            return Err(text);
        }
        Ok(pods)
    }

    /// Returns the number of pods by the metrics, its reason, and the metrics' statuses. The error is for the event.
    async fn by_metrics(&mut self, scale: &Scale) -> Result<(i32, String, Vec<Value>), (String, Vec<Value>)> {
        let hpa = Arc::clone(&self.hpa);
        let current = scale.spec.replicas;
        let pods = self.pods(&scale.status.selector).map_err(|e| (e, Vec::new()))?;
        let rules = self.me.ctx.config.autoscaling;
        let evaluator = Evaluator {
            metrics: &self.me.metrics,
            scales: &self.me.scales,
            namespace: &self.key.namespace,
            selector: &scale.status.selector,
            pods: Pods {
                all: &pods,
                current,
                there: scale.status.replicas,
                tolerances: Tolerances::of(&hpa.spec, rules.tolerance),
                rules,
                now: self.now,
            },
        };
        let (mut best, mut statuses, mut failures) = (None::<(i32, String)>, Vec::new(), Vec::new());
        for spec in &hpa.spec.metrics {
            let begun = Instant::now();
            let evaluated = evaluator.evaluate(spec).await;
            let (action, fault) = match &evaluated {
                Ok(p) => (Action::of(hpa.status.current_replicas, p.replicas), ErrorLabel::None),
                Err(_) => (Action::None, ErrorLabel::Internal),
            };
            self.me.counts.computed(action, fault, &spec.r#type, begun.elapsed());
            match evaluated {
                Ok(p) => {
                    statuses.push(p.status);
                    if best.as_ref().is_none_or(|(n, _)| p.replicas > *n) {
                        best = Some((p.replicas, p.name));
                    }
                }
                Err(failure) => {
                    self.event(EventType::Warning, failure.reason, failure.message.clone());
                    // A metric with an error has an empty entry.
                    statuses.push(serde_json::json!({"type": ""}));
                    failures.push(failure);
                }
            }
        }
        let all = hpa.spec.metrics.len();
        let (desired, name) = match (best, failures.first()) {
            // An unavailable metric could require more pods, so it prevents a scale-down but not a scale-up.
            (Some((n, name)), None) => (n, name),
            (Some((n, name)), Some(_)) if n >= current => (n, name),
            (_, first) => {
                let Some(first) = first else { return Err(("no metrics".to_owned(), statuses)) };
                let text = format!("the HPA was unable to compute the replica count: {}", first.message);
                self.condition("ScalingActive", false, first.reason, text);
                let (n, of_all) = (failures.len(), &first.of_all);
                return Err((
                    format!("invalid metrics ({n} invalid out of {all}), first error is: {of_all}"),
                    statuses,
                ));
            }
        };
        let text = format!("the HPA was able to successfully calculate a replica count from {name}");
        self.condition("ScalingActive", true, "ValidMetricFound", text);
        let limited = self.remember(|past, now| past.limit(&hpa.spec, current, desired, now));
        self.condition("AbleToScale", true, limited.able.0, limited.able.1);
        self.condition("ScalingLimited", limited.limited, limited.limit.0, limited.limit.1);
        let why =
            if desired > current { format!("{name} above target") } else { "All metrics below target".to_owned() };
        Ok((limited.replicas, why, statuses))
    }
}

#[cfg(test)]
mod tests;
