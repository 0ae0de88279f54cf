//! Effects that several modules share: recording events and what is needed to start and stop a pod's containers. Any other effect is passed
//! only to the module that uses it.
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Node, Pod};
use kelson_client::{EventRecorder, EventType, ObjectRef};
use kelson_cri::Runtime;
use kelson_meta::Clock;

use crate::metrics::Metrics;
use crate::pod::{self, Role};
use crate::probes::{Handler, Outcome, ProbeRunner, Target};
use crate::spans::Spans;

/// Records events about pods, their containers and the node. Clones share one recorder.
#[derive(Clone)]
pub struct EventReporter {
    recorder: EventRecorder,
    node_name: String,
}

impl EventReporter {
    /// Creates a reporter for the node `node_name`; the kubelet is the events' source.
    pub fn new(recorder: EventRecorder, node_name: &str) -> Self {
        Self { recorder, node_name: node_name.to_owned() }
    }

    /// Records an event about a pod.
    pub fn pod(&self, pod: &Pod, kind: EventType, reason: &str, message: impl Into<String>) {
        self.recorder.event(&ObjectRef::of(pod), kind, reason, message);
    }

    /// Records an event about one container of a pod. The event's field path names the container.
    pub fn container(
        &self,
        pod: &Pod,
        role: Role,
        container: &str,
        kind: EventType,
        reason: &str,
        message: impl Into<String>,
    ) {
        let about = ObjectRef::of(pod).at(pod::field_path(role, container));
        self.recorder.event(&about, kind, reason, message);
    }

    /// Records an event about any other object.
    pub fn object(&self, about: &ObjectRef, kind: EventType, reason: &str, message: impl Into<String>) {
        self.recorder.event(about, kind, reason, message);
    }

    /// Records an event about this node. Like upstream, the event has the node's name as the UID.
    pub fn node(&self, kind: EventType, reason: &str, message: impl Into<String>) {
        let mut node = Node::default();
        node.metadata.name = Some(self.node_name.clone());
        node.metadata.uid = Some(self.node_name.clone());
        self.recorder.event(&ObjectRef::of(&node), kind, reason, message);
    }
}

/// Delays the containers of a pod until its network is ready, for example until the network policies that select the pod are programmed.
#[async_trait]
pub trait NetworkGate: Send + Sync {
    /// Returns when a container of a pod with these addresses may start. Called before each container is created, for pods that do not use
    /// the host network.
    ///
    /// # Errors
    /// Why the container cannot start yet. The kubelet retries with back-off.
    async fn pass(&self, pod: &Pod, ips: &[String]) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// The dependencies for starting and stopping containers.
#[derive(Clone)]
pub struct PodEffects {
    /// Client of the container runtime (CRI).
    pub runtime: Arc<dyn Runtime>,
    /// Runs the handlers of probes and lifecycle hooks.
    pub prober: Arc<dyn ProbeRunner>,
    /// Records events about pods.
    pub events: EventReporter,
    /// Source of timestamps and timers.
    pub clock: Arc<dyn Clock>,
    /// Counters and histograms of the kubelet.
    pub metrics: Arc<Metrics>,
    /// Records trace spans; a no-op without a tracing configuration.
    pub spans: Spans,
    /// Delays containers until the pod's network is ready. `None` means no delay.
    pub network_gate: Option<Arc<dyn NetworkGate>>,
}

impl PodEffects {
    /// Runs a lifecycle hook of a container for at most `limit`.
    ///
    /// # Errors
    /// A message that says what failed, for the event.
    pub async fn hook(&self, pod: &Pod, handler: &Handler, target: &Target, limit: Duration) -> Result<(), String> {
        match self.prober.run(handler, target, limit).await {
            Outcome::Success | Outcome::Warning(_) => Ok(()),
            Outcome::FellBack(text) => {
                self.metrics.hook_fell_back();
                self.events.pod(pod, EventType::Warning, "LifecycleHTTPFallback", text);
                Ok(())
            }
            Outcome::Failure(why) | Outcome::Unknown(why) => Err(why),
        }
    }
}
