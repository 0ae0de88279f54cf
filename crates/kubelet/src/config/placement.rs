//! Configuration of exclusive CPUs and memory (`cpuManagerPolicy`, `memoryManagerPolicy`, `topologyManagerPolicy`).
use std::collections::BTreeMap;
use std::time::Duration;

use kelson_meta::Quantity;

use super::cpuset::CpuSet;

/// Default maximum number of NUMA nodes (upstream: `defaultMaxAllowableNUMANodes`). The number of tried combinations grows exponentially
/// with it.
pub const NODES_MAX: u32 = 8;

/// `cpuManagerPolicyOptions`: how CPUs are selected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// `full-pcpus-only`: only whole physical cores are assigned.
    pub whole_cores: bool,
    /// `distribute-cpus-across-numa`: CPUs are taken evenly from the NUMA nodes in use.
    pub across_nodes: bool,
    /// `align-by-socket`: CPUs of one socket count as aligned.
    pub by_socket: bool,
    /// `distribute-cpus-across-cores`: one thread of each core is taken first.
    pub across_cores: bool,
    /// `strict-cpu-reservation`: no pod runs on reserved CPUs.
    pub strict_reservation: bool,
    /// `prefer-align-cpus-by-uncorecache`: CPUs that share a last-level cache are preferred if it has enough.
    pub by_cache: bool,
}

/// `topologyManagerPolicy`: how strictly resources of a container must share NUMA nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AlignmentPolicy {
    /// Resources are not aligned.
    #[default]
    None,
    /// Alignment is preferred but not required.
    BestEffort,
    /// The best alignment that the machine allows is required; otherwise the pod fails.
    Restricted,
    /// All resources must be on one NUMA node; otherwise the pod fails.
    SingleNumaNode,
}

/// `topologyManagerScope`: the unit that is aligned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AlignmentScope {
    /// Resources of each container are aligned.
    #[default]
    Container,
    /// Resources of the whole pod are aligned.
    Pod,
}

/// One entry of `reservedMemory`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservedMemory {
    /// Number of the NUMA node.
    pub node: u32,
    /// Reserved amounts by resource (`memory`, `hugepages-…`).
    pub amounts: BTreeMap<String, Quantity>,
}

/// Configuration of the CPU, memory and topology managers. By default no resource is exclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementConfig {
    /// Whether `cpuManagerPolicy` is `static`.
    pub has_own_cpus: bool,
    /// `cpuManagerPolicyOptions` of the static policy.
    pub cpu_options: CpuOptions,
    /// `cpuManagerReconcilePeriod`: interval at which the CPU sets of containers are corrected.
    pub reconcile_every: Duration,
    /// `reservedSystemCPUs`: CPUs reserved by number; empty if only amounts are reserved.
    pub reserved_cpus: CpuSet,
    /// Whether `memoryManagerPolicy` is `Static`.
    pub has_own_memory: bool,
    /// `reservedMemory`, entry by entry.
    pub reserved_memory: Vec<ReservedMemory>,
    /// `topologyManagerPolicy`: required alignment.
    pub alignment: AlignmentPolicy,
    /// `topologyManagerScope`: alignment per container or per pod.
    pub scope: AlignmentScope,
    /// `prefer-closest-numa-nodes` of `topologyManagerPolicyOptions`.
    pub prefers_closest: bool,
    /// `max-allowable-numa-nodes` of `topologyManagerPolicyOptions`.
    pub nodes_max: u32,
}

impl PlacementConfig {
    /// Returns whether the CPU manager or the memory manager assigns exclusive resources.
    pub fn is_exclusive(&self) -> bool {
        self.has_own_cpus || self.has_own_memory
    }
}

impl Default for PlacementConfig {
    fn default() -> Self {
        Self {
            has_own_cpus: false,
            cpu_options: CpuOptions::default(),
            reconcile_every: Duration::from_secs(10),
            reserved_cpus: CpuSet::default(),
            has_own_memory: false,
            reserved_memory: Vec::new(),
            alignment: AlignmentPolicy::None,
            scope: AlignmentScope::Container,
            prefers_closest: false,
            nodes_max: NODES_MAX,
        }
    }
}
