//! How a machine is built: which logical processors share a core, a cache, a socket, a part of memory. Pure; `sysfs` reads it.
use std::collections::{BTreeMap, BTreeSet};

use crate::config::cpuset::CpuSet;

/// Where a logical processor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuPlace {
    /// The lowest processor of its core.
    pub core: u32,
    /// The socket that it is in.
    pub socket: u32,
    /// The part of the machine (NUMA node) that it is in.
    pub node: u32,
    /// The last cache that only some of that part share; the socket where there is none such.
    pub cache: u32,
}

/// What processors are together in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Threads of a core.
    Core,
    /// Cores of a socket.
    Socket,
    /// A part of the machine.
    Node,
    /// A last cache.
    Cache,
}

impl CpuPlace {
    /// The number of the core, socket, … that it is in.
    pub fn at(&self, level: Level) -> u32 {
        match level {
            Level::Core => self.core,
            Level::Socket => self.socket,
            Level::Node => self.node,
            Level::Cache => self.cache,
        }
    }
}

/// Processors by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpus(pub BTreeMap<u32, CpuPlace>);

impl Cpus {
    /// All of them.
    pub fn all(&self) -> CpuSet {
        self.0.keys().copied().collect()
    }
    /// The numbers of all cores, sockets, …
    pub fn ids(&self, level: Level) -> BTreeSet<u32> {
        self.0.values().map(|p| p.at(level)).collect()
    }
    /// The cores, sockets, … that have a processor in this one.
    pub fn ids_in(&self, level: Level, within: (Level, u32)) -> Vec<u32> {
        let inside = self.0.values().filter(|p| p.at(within.0) == within.1);
        let ids: BTreeSet<u32> = inside.map(|p| p.at(level)).collect();
        ids.into_iter().collect()
    }
    /// The processors of one core, socket, …
    pub fn within(&self, level: Level, id: u32) -> CpuSet {
        self.0.iter().filter(|(_, p)| p.at(level) == id).map(|(cpu, _)| *cpu).collect()
    }
    /// How many those are.
    pub fn count(&self, level: Level, id: u32) -> usize {
        self.0.values().filter(|p| p.at(level) == id).count()
    }
    /// Without all but these.
    #[must_use]
    pub fn only(&self, cpus: &CpuSet) -> Self {
        Self(self.0.iter().filter(|(cpu, _)| cpus.contains(**cpu)).map(|(cpu, p)| (*cpu, *p)).collect())
    }
}

/// One part of the machine, its memory first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryNode {
    /// The kernel's number of it.
    pub id: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of huge pages, by the size of a page in bytes.
    pub huge_pages: BTreeMap<u64, u64>,
    /// How far each part is, by number; empty where the machine does not say.
    pub distances: Vec<u64>,
}

/// How one machine is built.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineLayout {
    /// All its logical processors.
    pub cpus: Cpus,
    /// Its parts, by number.
    pub nodes: Vec<MemoryNode>,
}

impl MachineLayout {
    /// How many processors one core, socket or cache has, where all are alike.
    pub fn each(&self, level: Level) -> usize {
        self.cpus.0.len() / self.cpus.ids(level).len().max(1)
    }
    /// The numbers of its parts.
    pub fn node_ids(&self) -> Vec<u32> {
        self.nodes.iter().map(|n| n.id).collect()
    }
}

/// Machines for tests: sockets, parts of each, cores of each part, threads of each core. The second threads have the numbers after
/// all first ones, as on usual hardware.
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
