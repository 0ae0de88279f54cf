//! CPU and memory placement of a container, for the runtime.
use kelson_cri::proto as cri;

use super::resources::unbound_cpu;

/// CPUs and NUMA nodes of one container; empty strings mean no restriction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerPlacement {
    /// CPUs in the kernel's list format.
    pub cpus: String,
    /// NUMA nodes of its memory in the kernel's list format.
    pub memory_nodes: String,
    /// Whether the CPUs are exclusive.
    pub has_own_cpus: bool,
}

impl ContainerPlacement {
    /// Adds the placement to the container's resources for the runtime. A container with exclusive CPUs gets no CPU quota, which would only
    /// throttle it (upstream: `DisableCPUQuotaWithExclusiveCPUs`).
    pub fn bind(&self, resources: &mut cri::LinuxContainerResources) {
        resources.cpuset_cpus.clone_from(&self.cpus);
        resources.cpuset_mems.clone_from(&self.memory_nodes);
        if self.has_own_cpus {
            unbound_cpu(resources);
        }
    }
}
