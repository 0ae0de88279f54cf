//! Where a container runs, told to the runtime.
use kelson_cri::proto as cri;

use super::resources::unbound_cpu;

/// Where one container runs; empty: wherever.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// The processors that it runs on, as the kernel writes them.
    pub cpus: String,
    /// The parts of the machine that its memory is from.
    pub memory_nodes: String,
    /// Whether nobody else has these processors.
    pub has_own_cpus: bool,
}

impl Placed {
    /// Says so in what the runtime is told. Whoever has processors alone is not bounded in their time besides: that would slow it down
    /// for nothing (upstream: `DisableCPUQuotaWithExclusiveCPUs`).
    pub fn bind(&self, resources: &mut cri::LinuxContainerResources) {
        resources.cpuset_cpus.clone_from(&self.cpus);
        resources.cpuset_mems.clone_from(&self.memory_nodes);
        if self.has_own_cpus {
            unbound_cpu(resources);
        }
    }
}
