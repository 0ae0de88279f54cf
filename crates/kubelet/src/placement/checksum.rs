//! Checksums of upstream's checkpoint files. They are computed over the string that Go prints for the in-memory structures, including type
//! names. Pure.
use std::fmt::Write as _;

use super::cpus::ByContainer;
use super::memory::{MemoryBlock, NodesMemory};

/// FNV-1a with 32 bits.
fn fnv(text: &str) -> u64 {
    let sum = text.bytes().fold(0x811c_9dc5_u32, |sum, b| (sum ^ u32::from(b)).wrapping_mul(0x0100_0193));
    u64::from(sum)
}

fn joined<T>(all: impl IntoIterator<Item = T>, text: impl Fn(T) -> String) -> String {
    all.into_iter().map(text).collect::<Vec<_>>().join(" ")
}

/// Checksum of `cpu_manager_state`.
pub fn of_cpus(policy: &str, shared: &str, held: &ByContainer<String>) -> u64 {
    let pods = joined(held, |(pod, all)| format!("{pod}:map[{}]", joined(all, |(name, set)| format!("{name}:{set}"))));
    fnv(&format!(
        "(*state.CPUManagerCheckpoint){{PolicyName:(string){policy} DefaultCPUSet:(string){shared} \
         Entries:(map[string]map[string]string)map[{pods}] Checksum:(checksum.Checksum)0}}"
    ))
}

/// Checksum of `memory_manager_state`.
pub fn of_memory(policy: &str, nodes: &NodesMemory, held: &ByContainer<Vec<MemoryBlock>>) -> u64 {
    let numbers = |all: &[u32]| joined(all, u32::to_string);
    let mut parts = String::new();
    for (id, n) in nodes {
        let amounts = joined(&n.memory_map, |(resource, a)| {
            format!(
                "{resource}:<*>{{TotalMemSize:(uint64){} SystemReserved:(uint64){} Allocatable:(uint64){} \
                 Reserved:(uint64){} Free:(uint64){}}}",
                a.total, a.system_reserved, a.allocatable, a.reserved, a.free
            )
        });
        let space = if parts.is_empty() { "" } else { " " };
        let (count, cells) = (n.number_of_assignments, numbers(&n.cells));
        // Writing to a `String` cannot fail.
        let _ = write!(
            parts,
            "{space}{id}:<*>{{NumberOfAssignments:(int){count} \
             MemoryMap:(map[v1.ResourceName]*state.MemoryTable)map[{amounts}] Cells:([]int)[{cells}]}}"
        );
    }
    let block = |b: &MemoryBlock| {
        let (nodes, resource, size) = (numbers(&b.nodes), &b.resource, b.size);
        format!("{{NUMAAffinity:([]int)[{nodes}] Type:(v1.ResourceName){resource} Size:(uint64){size}}}")
    };
    let pods = joined(held, |(pod, all)| {
        format!("{pod}:map[{}]", joined(all, |(name, blocks)| format!("{name}:[{}]", joined(blocks, block))))
    });
    fnv(&format!(
        "(*state.MemoryManagerCheckpoint){{PolicyName:(string){policy} MachineState:(state.NUMANodeMap)map[{parts}] \
         Entries:(state.ContainerMemoryAssignments)map[{pods}] Checksum:(checksum.Checksum)0}}"
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::placement::memory::{MemoryAmounts, NodeMemory};

    #[test]
    fn sums_are_upstreams() {
        assert_eq!(of_cpus("none", "4-6", &BTreeMap::new()), 354_655_845);
        let containers = [("container1", "4-6"), ("container2", "1-3")].map(|(n, s)| (n.to_owned(), s.to_owned()));
        let held = BTreeMap::from([("pod".to_owned(), BTreeMap::from(containers))]);
        assert_eq!(of_cpus("none", "1-3", &held), 3_610_638_499);
        // The checksum of every node that has never enabled the policy.
        assert_eq!(of_cpus("none", "", &BTreeMap::new()), 1_353_318_690);
        let memory = MemoryAmounts { total: 2048, system_reserved: 512, allocatable: 1536, reserved: 512, free: 1024 };
        let node = NodeMemory { memory_map: [("memory".to_owned(), memory)].into(), ..NodeMemory::default() };
        let block = MemoryBlock { nodes: vec![0], resource: "memory".into(), size: 512 };
        let held = BTreeMap::from([("pod".to_owned(), BTreeMap::from([("container1".to_owned(), vec![block])]))]);
        assert_eq!(of_memory("static", &BTreeMap::from([(0, node)]), &held), 4_215_593_881);
    }
}
