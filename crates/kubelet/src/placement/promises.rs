//! State of reserved memory of each NUMA node, in the format of upstream's checkpoint. Pure.
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::numa::NodeMask;

/// Bytes of one resource on one NUMA node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryAmounts {
    /// Amount on the node.
    pub total: u64,
    /// Amount reserved for the system.
    pub system_reserved: u64,
    /// Amount available to pods.
    pub allocatable: u64,
    /// Amount reserved by pods.
    pub reserved: u64,
    /// Amount that is free.
    pub free: u64,
}

/// Memory of one NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeMemory {
    /// Number of reservations on it: one per container and resource.
    pub number_of_assignments: i64,
    /// Amounts by resource.
    pub memory_map: BTreeMap<String, MemoryAmounts>,
    /// Numbers of the NUMA nodes in its group, including itself.
    pub cells: Vec<u32>,
}

/// Memory of one resource that is reserved for a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryBlock {
    /// NUMA nodes of the memory.
    #[serde(rename = "numaAffinity")]
    pub nodes: Vec<u32>,
    /// Either `memory` or a huge pages resource.
    #[serde(rename = "type")]
    pub resource: String,
    /// Size in bytes.
    pub size: u64,
}

/// Memory by number of the NUMA node.
pub type NodesMemory = BTreeMap<u32, NodeMemory>;

/// Creates the amounts from the total, the system's reservation, and the size of other memory types.
pub(super) fn amounts(total: u64, system_reserved: u64, others: u64) -> MemoryAmounts {
    let allocatable = total.saturating_sub(system_reserved).saturating_sub(others);
    MemoryAmounts { total, system_reserved, allocatable, reserved: 0, free: allocatable }
}

/// Reserves an amount on these nodes, using each node completely before the next.
pub(super) fn promise(all: &mut NodesMemory, nodes: &[u32], resource: &str, size: u64) {
    let mut left = size;
    for id in nodes {
        let Some(node) = all.get_mut(id) else { continue };
        node.number_of_assignments += 1;
        node.cells = nodes.to_vec();
        if let Some(a) = node.memory_map.get_mut(resource) {
            let taken = a.free.min(left);
            a.reserved += taken;
            a.free -= taken;
            left -= taken;
        }
    }
}

pub(super) fn release(all: &mut NodesMemory, block: &MemoryBlock) {
    let mut left = block.size;
    for id in &block.nodes {
        let Some(node) = all.get_mut(id) else { continue };
        node.number_of_assignments -= 1;
        if node.number_of_assignments == 0 {
            node.cells = vec![*id];
        }
        if let Some(a) = node.memory_map.get_mut(&block.resource) {
            let given = a.reserved.min(left);
            a.reserved -= given;
            a.free += given;
            left -= given;
        }
    }
}

/// Whether two states are equal, comparing only the sums within groups: how a reservation is distributed in a group depends on the order of
/// reservations.
pub(super) fn are_equal(a: &NodesMemory, b: &NodesMemory) -> bool {
    let alone = |n: &NodeMemory| {
        let of = |(r, a): (&String, &MemoryAmounts)| (r.clone(), (a.total, a.system_reserved, a.allocatable));
        let cells = NodeMask::of(n.cells.iter().copied());
        (n.number_of_assignments, cells, n.memory_map.iter().map(of).collect::<BTreeMap<_, _>>())
    };
    let together = |all: &NodesMemory, n: &NodeMemory, r: &String| -> (u64, u64) {
        let of_group = n.cells.iter().filter_map(|c| all.get(c)).filter_map(|n| n.memory_map.get(r));
        of_group.fold((0, 0), |(free, reserved), a| (free + a.free, reserved + a.reserved))
    };
    a.len() == b.len()
        && a.iter().all(|(id, n)| {
            let same = |other: &NodeMemory| {
                alone(n) == alone(other) && n.memory_map.keys().all(|r| together(a, n, r) == together(b, other, r))
            };
            b.get(id).is_some_and(same)
        })
}

pub(super) fn violates(nodes: &NodesMemory, mask: NodeMask) -> bool {
    let used = |n: &NodeMemory| n.number_of_assignments > 0 && NodeMask::of(n.cells.iter().copied()) != mask;
    mask.count() > 1 && mask.nodes().iter().filter_map(|id| nodes.get(id)).any(used)
}
