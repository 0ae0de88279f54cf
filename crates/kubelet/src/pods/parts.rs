//! What pod workers work with. Only this room takes all of it together.
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};
use kelson_client::Client;
use kelson_tasks::Tasks;
use tokio::sync::watch;

use crate::cgroups::Cgroups;
use crate::cgroups::memory::MemoryRules;
use crate::cgroups::swap::SwapRules;
use crate::config::{Config, PodDirs};
use crate::devices::Devices;
use crate::dra::DynamicResources;
use crate::effects::PodEffects;
use crate::env::resolve::Environment;
use crate::images::{ImageEffects, Images};
use crate::node::facts::NodeFacts;
use crate::node::runtime::RuntimeState;
use crate::placement::Placement;
use crate::runtime::dns::HostDns;
use crate::runtime::userns::UserNamespaces;
use crate::status::writer::StatusWriter;
use crate::volumes::Volumes;

/// The parts; behind an `Arc` everywhere.
pub struct Parts {
    /// The group of the workers' tasks.
    pub tasks: Tasks,
    /// What the kubelet was told.
    pub config: Arc<Config>,
    /// Where pods' directories and logs lie.
    pub dirs: PodDirs,
    /// The API, as this node: runtime classes, and the confirmation of deletions.
    pub client: Client,
    /// Runtime, hooks, events, clock.
    pub effects: PodEffects,
    /// Volumes, and what they are rendered from.
    pub volumes: Volumes,
    /// Makes containers' environments from specs and API objects.
    pub environment: Environment,
    /// Pulls images and keeps their records.
    pub images: Images,
    /// Gives containers the node's devices.
    pub devices: Devices,
    /// Has drivers make the devices of claims ready.
    pub claims: DynamicResources,
    /// Gives containers processors and memory to themselves.
    pub placement: Placement,
    /// Makes, changes and removes pods' cgroups.
    pub cgroups: Cgroups,
    /// What containers may have of the machine's swap.
    pub swap: SwapRules,
    /// What of the memory is kept for containers, and how they end without any.
    pub memory: MemoryRules,
    /// Host IDs of pods with users of their own.
    pub user_namespaces: UserNamespaces,
    /// Pod statuses on their way to the API.
    pub statuses: StatusWriter,
    /// What pods may see of their node.
    pub node: watch::Receiver<Arc<NodeFacts>>,
    /// What the runtime says of itself.
    pub runtime_state: watch::Receiver<Arc<RuntimeState>>,
    /// The node's resolver configuration.
    pub host_dns: HostDns,
    /// The runtime's name, with which container IDs begin, e.g. `containerd`.
    pub runtime_name: String,
}

impl Parts {
    /// Addresses of the node, the primary one first.
    pub fn host_ips(&self) -> Vec<String> {
        self.config.node_ips.iter().map(ToString::to_string).collect()
    }

    /// Whether the runtime can make what is mounted below the container's read-only volumes read-only too. `handler` is waited for
    /// only where the container names such mounts.
    ///
    /// # Errors
    /// The handler is not known.
    pub async fn has_recursive_read_only(
        &self,
        c: &Container,
        handler: impl Future<Output = Result<String, String>>,
    ) -> Result<bool, String> {
        if !c.volume_mounts.iter().flatten().any(|m| m.recursive_read_only.is_some()) {
            return Ok(false);
        }
        let handler = handler.await?;
        Ok(self.runtime_state.borrow().has_recursive_read_only(&handler))
    }

    /// Whether the pod is not bounded in the time of processors: it has some alone, or nobody here is.
    pub fn unbound_cpu(&self, pod: &Pod) -> bool {
        !self.config.cpu_quota || self.placement.has_own_cpus(crate::pod::uid(pod))
    }

    /// What an image takes.
    pub fn image_effects(&self) -> ImageEffects<'_> {
        ImageEffects {
            runtime: &*self.effects.runtime,
            objects: &self.volumes.objects,
            tell: &self.effects.tell,
            metrics: &self.effects.metrics,
        }
    }
}
