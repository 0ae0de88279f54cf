//! Effects that several rooms share: telling events about pods, and what touching a pod's containers takes. Everything
//! else is handed to the one room that uses it.
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

/// Records events about pods, their containers and the node; cheap to clone.
#[derive(Clone)]
pub struct Tell {
    recorder: EventRecorder,
    node_name: String,
}

impl Tell {
    /// Records under the kubelet's name on the node `node_name`.
    pub fn new(recorder: EventRecorder, node_name: &str) -> Self {
        Self { recorder, node_name: node_name.to_owned() }
    }

    /// An event about a pod.
    pub fn pod(&self, pod: &Pod, kind: EventType, reason: &str, message: impl Into<String>) {
        self.recorder.event(&ObjectRef::of(pod), kind, reason, message);
    }

    /// An event about one container of a pod.
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

    /// An event about something else.
    pub fn object(&self, about: &ObjectRef, kind: EventType, reason: &str, message: impl Into<String>) {
        self.recorder.event(about, kind, reason, message);
    }

    /// An event about this node. As upstream, it names the node by its name where the UID belongs.
    pub fn node(&self, kind: EventType, reason: &str, message: impl Into<String>) {
        let mut node = Node::default();
        node.metadata.name = Some(self.node_name.clone());
        node.metadata.uid = Some(self.node_name.clone());
        self.recorder.event(&ObjectRef::of(&node), kind, reason, message);
    }
}

/// Holds the containers of a pod until its network is ready for them, such as until the network policies that apply to the
/// pod are in force.
#[async_trait]
pub trait NetworkGate: Send + Sync {
    /// Returns when a container of a pod with these addresses may start. Called for pods with a network namespace of their
    /// own, before each container is created.
    ///
    /// # Errors
    /// Why the container cannot start yet. The kubelet tries again with back-off.
    async fn pass(&self, pod: &Pod, ips: &[String]) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// What starting and ending containers takes.
#[derive(Clone)]
pub struct PodEffects {
    /// The container runtime.
    pub runtime: Arc<dyn Runtime>,
    /// Handlers of probes and hooks.
    pub prober: Arc<dyn ProbeRunner>,
    /// Tells events of pods to the API.
    pub tell: Tell,
    /// The clock that timestamps and delays are read from.
    pub clock: Arc<dyn Clock>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Who is told where the time of work on pods goes.
    pub spans: Spans,
    /// Holds containers until the pod's network is ready; `None`: nothing holds them.
    pub network_gate: Option<Arc<dyn NetworkGate>>,
}

impl PodEffects {
    /// Runs a hook of a container for at most `limit`; the text of what went wrong, if it did.
    pub async fn hook(&self, pod: &Pod, handler: &Handler, target: &Target, limit: Duration) -> Result<(), String> {
        match self.prober.run(handler, target, limit).await {
            Outcome::Success | Outcome::Warning(_) => Ok(()),
            Outcome::FellBack(text) => {
                self.metrics.hook_fell_back();
                self.tell.pod(pod, EventType::Warning, "LifecycleHTTPFallback", text);
                Ok(())
            }
            Outcome::Failure(why) | Outcome::Unknown(why) => Err(why),
        }
    }
}
