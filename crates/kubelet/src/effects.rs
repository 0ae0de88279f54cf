//! What every part of the kubelet shares: configuration, effects behind their traits, and the caches.
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kelson_client::{Client, EventRecorder, EventType, InformerHandle, ObjectRef};
use kelson_cri::Runtime;
use kelson_meta::Clock;
use tokio::sync::watch;

use crate::cgroups::Cgroups;
use crate::config::Config;
use crate::env::fields::NodeFacts;
use crate::env::services::ServiceView;
use crate::images::Images;
use crate::node::facts::Pressure;
use crate::objects::Objects;
use crate::objects::tokens::Tokens;
use crate::probes::ProbeRunner;
use crate::status::writer::StatusWriter;
use crate::volumes::mounts::Mounts;

/// The shared parts; behind an `Arc` everywhere.
pub struct Context {
    /// Configuration.
    pub config: Config,
    /// The API, as this node.
    pub client: Client,
    /// Its name, e.g. `containerd`.
    pub runtime_name: String,
    /// The container runtime.
    pub runtime: Arc<dyn Runtime>,
    /// Wall clock.
    pub clock: Arc<dyn Clock>,
    /// Events.
    pub recorder: EventRecorder,
    /// Config maps and secrets that pods refer to.
    pub objects: Objects,
    /// Service account tokens.
    pub tokens: Tokens,
    /// Image pulls.
    pub images: Images,
    /// Services, for environments.
    pub services: InformerHandle<ServiceView>,
    /// Mounts.
    pub mounts: Arc<dyn Mounts>,
    /// Probe handlers.
    pub prober: Arc<dyn ProbeRunner>,
    /// Pods' cgroups.
    pub cgroups: Cgroups,
    /// Pod statuses on their way to the API.
    pub statuses: StatusWriter,
    /// What pods may see of their node.
    pub node: watch::Receiver<Arc<NodeFacts>>,
    /// Why the runtime's network is not ready; `None`: it is.
    pub network_fault: watch::Receiver<Option<String>>,
    /// What the node is short of.
    pub pressure: watch::Receiver<Pressure>,
}

impl Context {
    /// Records an event about a pod.
    pub fn event(&self, pod: &Pod, kind: EventType, reason: &str, message: impl Into<String>) {
        self.recorder.event(&ObjectRef::of(pod), kind, reason, message);
    }
    /// Records an event about one container of a pod.
    pub fn container_event(
        &self,
        pod: &Pod,
        role: crate::pod::Role,
        container: &str,
        kind: EventType,
        reason: &str,
        message: impl Into<String>,
    ) {
        let about = ObjectRef::of(pod).at(crate::pod::field_path(role, container));
        self.recorder.event(&about, kind, reason, message);
    }
    /// The runtime's name, as container IDs begin with it.
    pub fn node_runtime_name(&self) -> String {
        self.runtime_name.clone()
    }
    /// Addresses of the node, the primary one first.
    pub fn host_ips(&self) -> Vec<String> {
        self.config.node_ips.iter().map(ToString::to_string).collect()
    }
}
