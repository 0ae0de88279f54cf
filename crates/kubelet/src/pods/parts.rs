//! The dependencies of pod workers. Only this module uses all of them together.
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

/// Dependencies shared by all pod workers, always behind an `Arc`.
pub struct Parts {
    /// The group of the workers' tasks.
    pub tasks: Tasks,
    /// Configuration of the kubelet.
    pub config: Arc<Config>,
    /// Paths of pods' directories and logs.
    pub dirs: PodDirs,
    /// Client of the API, as this node: reads RuntimeClasses and confirms deletions.
    pub client: Client,
    /// Runtime, hooks, events, clock.
    pub effects: PodEffects,
    /// Volumes and the sources of their contents.
    pub volumes: Volumes,
    /// Builds containers' environment variables from specs and API objects.
    pub environment: Environment,
    /// Pulls images and keeps pull records.
    pub images: Images,
    /// Allocates devices of device plugins to containers.
    pub devices: Devices,
    /// Prepares the devices of resource claims through DRA drivers.
    pub claims: DynamicResources,
    /// Assigns exclusive CPUs and memory to containers.
    pub placement: Placement,
    /// Creates, updates and removes pods' cgroups.
    pub cgroups: Cgroups,
    /// Rules for containers' use of swap.
    pub swap: SwapRules,
    /// Rules for memory protection and for the OOM killer.
    pub memory: MemoryRules,
    /// Assigns host ID ranges to pods with user namespaces.
    pub user_namespaces: UserNamespaces,
    /// Writes pod statuses to the API.
    pub statuses: StatusWriter,
    /// Facts about the node that pods can read.
    pub node: watch::Receiver<Arc<NodeFacts>>,
    /// Status and features of the runtime.
    pub runtime_state: watch::Receiver<Arc<RuntimeState>>,
    /// The node's resolver configuration.
    pub host_dns: HostDns,
    /// Name of the runtime, the prefix of container IDs, for example `containerd`.
    pub runtime_name: String,
}

impl Parts {
    /// Addresses of the node, the primary one first.
    pub fn host_ips(&self) -> Vec<String> {
        self.config.node_ips.iter().map(ToString::to_string).collect()
    }

    /// Whether the runtime supports recursive read-only mounts for the container. `handler` is awaited only if the container uses such
    /// mounts.
    ///
    /// # Errors
    /// The runtime handler is not known.
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

    /// Returns whether the pod has no CPU quota: it has exclusive CPUs, or quotas are disabled on the node.
    pub fn unbound_cpu(&self, pod: &Pod) -> bool {
        !self.config.cpu_quota || self.placement.has_own_cpus(crate::pod::uid(pod))
    }

    /// Dependencies of the image module.
    pub fn image_effects(&self) -> ImageEffects<'_> {
        ImageEffects {
            runtime: &*self.effects.runtime,
            objects: &self.volumes.objects,
            events: &self.effects.events,
            metrics: &self.effects.metrics,
        }
    }
}
