//! Topology of a machine: cores, caches, sockets and NUMA nodes of its CPUs. Pure; `sysfs` reads it.
use std::collections::{BTreeMap, BTreeSet};

use crate::config::cpuset::CpuSet;

/// Position of a logical CPU in the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuPlace {
    /// Lowest CPU number of its core.
    pub core: u32,
    /// Number of its socket.
    pub socket: u32,
    /// Number of its NUMA node.
    pub node: u32,
    /// ID of its last-level cache, if only a part of the NUMA node shares it; otherwise the socket.
    pub cache: u32,
}

/// A level of the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Threads of a core.
    Core,
    /// Cores of a socket.
    Socket,
    /// CPUs of a NUMA node.
    Node,
    /// CPUs of a last-level cache.
    Cache,
}

impl CpuPlace {
    /// Number of the CPU's core, socket, NUMA node or cache.
    pub fn at(&self, level: Level) -> u32 {
        match level {
            Level::Core => self.core,
            Level::Socket => self.socket,
            Level::Node => self.node,
            Level::Cache => self.cache,
        }
    }
}

/// CPUs by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpus(pub BTreeMap<u32, CpuPlace>);

impl Cpus {
    /// Returns all CPU numbers.
    pub fn all(&self) -> CpuSet {
        self.0.keys().copied().collect()
    }
    /// Returns the numbers of all units of a level.
    pub fn ids(&self, level: Level) -> BTreeSet<u32> {
        self.0.values().map(|p| p.at(level)).collect()
    }
    /// Returns the units of `level` with a CPU in the unit `within`.
    pub fn ids_in(&self, level: Level, within: (Level, u32)) -> Vec<u32> {
        let inside = self.0.values().filter(|p| p.at(within.0) == within.1);
        let ids: BTreeSet<u32> = inside.map(|p| p.at(level)).collect();
        ids.into_iter().collect()
    }
    /// Returns the CPUs of one unit.
    pub fn within(&self, level: Level, id: u32) -> CpuSet {
        self.0.iter().filter(|(_, p)| p.at(level) == id).map(|(cpu, _)| *cpu).collect()
    }
    /// Number of CPUs of one unit.
    pub fn count(&self, level: Level, id: u32) -> usize {
        self.0.values().filter(|p| p.at(level) == id).count()
    }
    /// Keeps only these CPUs.
    #[must_use]
    pub fn only(&self, cpus: &CpuSet) -> Self {
        Self(self.0.iter().filter(|(cpu, _)| cpus.contains(**cpu)).map(|(cpu, p)| (*cpu, *p)).collect())
    }
}

/// A NUMA node, mainly its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryNode {
    /// Number of the node in the kernel.
    pub id: u32,
    /// Memory in bytes.
    pub memory: u64,
    /// Huge pages in bytes, by page size in bytes.
    pub huge_pages: BTreeMap<u64, u64>,
    /// Distances to all NUMA nodes, by number; empty if the machine does not report them.
    pub distances: Vec<u64>,
}

/// Topology of one machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineLayout {
    /// All logical CPUs.
    pub cpus: Cpus,
    /// NUMA nodes, by number.
    pub nodes: Vec<MemoryNode>,
}

impl MachineLayout {
    /// Number of CPUs per unit of a level, if all units are equal.
    pub fn each(&self, level: Level) -> usize {
        self.cpus.0.len() / self.cpus.ids(level).len().max(1)
    }
    /// Numbers of the NUMA nodes.
    pub fn node_ids(&self) -> Vec<u32> {
        self.nodes.iter().map(|n| n.id).collect()
    }
}

/// A machine for tests: sockets, NUMA nodes per socket, cores per node, threads per core. The second threads are numbered after all first
/// ones, as on common hardware.
#[cfg(test)]
pub fn machine(sockets: u32, nodes: u32, cores: u32, threads: u32) -> MachineLayout {
    let all = sockets * nodes * cores;
    let place = |cpu: u32| {
        let core = cpu % all;
        let node = core / cores;
        CpuPlace { core, socket: node / nodes, node, cache: node / nodes }
    };
    let part = |id: u32| MemoryNode {
        id,
        memory: 8 << 30,
        huge_pages: BTreeMap::new(),
        distances: (0..sockets * nodes)
            .map(|other| match () {
                () if other == id => 10,
                () if other / nodes == id / nodes => 12,
                () => 21,
            })
            .collect(),
    };
    MachineLayout {
        cpus: Cpus((0..all * threads).map(|cpu| (cpu, place(cpu))).collect()),
        nodes: (0..sockets * nodes).map(part).collect(),
    }
}
