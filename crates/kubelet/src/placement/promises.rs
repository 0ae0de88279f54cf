//! How much memory each part of a machine has promised, and to whom. Pure.
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::numa::NodeMask;

/// Bytes of one resource in one part of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryAmounts {
    /// All that there is.
    pub total: u64,
    /// What no pod gets.
    pub system_reserved: u64,
    /// What pods may get.
    pub allocatable: u64,
    /// What they have been promised.
    pub reserved: u64,
    /// What is left.
    pub free: u64,
}

/// One part of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeMemory {
    /// How many promises name it: one for each resource of a container.
    pub number_of_assignments: i64,
    /// What there is of each resource.
    pub memory_map: BTreeMap<String, MemoryAmounts>,
    /// The parts from which containers get memory together with this one, itself among them.
    pub cells: Vec<u32>,
}

/// What a container was promised of one resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryBlock {
    /// From which parts of the machine.
    #[serde(rename = "numaAffinity")]
    pub nodes: Vec<u32>,
    /// `memory` or huge pages of a size.
    #[serde(rename = "type")]
    pub resource: String,
    /// How many bytes.
    pub size: u64,
}

/// By number of the part.
pub type NodesMemory = BTreeMap<u32, NodeMemory>;

/// Of so much, less what the system and other kinds of memory have.
pub(super) fn amounts(total: u64, system_reserved: u64, others: u64) -> MemoryAmounts {
    let allocatable = total.saturating_sub(system_reserved).saturating_sub(others);
    MemoryAmounts { total, system_reserved, allocatable, reserved: 0, free: allocatable }
}

/// Takes so much from these parts, from the first as much as it has.
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

/// Whether both say the same of each part alone, and of the parts of each group together: from which of them a promise was taken
/// first depends on the order of the promises.
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
