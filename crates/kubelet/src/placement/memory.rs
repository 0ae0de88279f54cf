//! Memory reserved for containers by NUMA node (upstream: `memorymanager/policy_static.go`). Requests of Guaranteed pods are subtracted
//! from the NUMA nodes that they may use, so that no memory is reserved twice. Pure.
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use kelson_meta::Quantity;

use super::cpus::{ByContainer, PlacementRefusal, is_guaranteed_by_container};
use super::hints::{NumaHint, ResourceHints};
use super::layout::MachineLayout;
use super::numa::{NodeMask, subsets};
pub use super::promises::{MemoryAmounts, MemoryBlock, NodeMemory, NodesMemory};
use super::promises::{amounts, are_equal, promise, release, violates};
use crate::config::placement::ReservedMemory;
use crate::pod::{self, Member, Role};

const MEMORY: &str = "memory";
/// Prefix of the names of huge page resources.
const HUGE_PAGES: &str = "hugepages-";

/// Reservations of memory by NUMA node and container.
#[derive(Clone, Debug)]
pub struct MemoryTable {
    nodes: NodesMemory,
    held: ByContainer<Vec<MemoryBlock>>,
    /// Memory of the init containers of the last processed pod, by NUMA nodes and resource.
    reusable: (String, BTreeMap<(NodeMask, String), u64>),
}

type Amounts = BTreeMap<String, u64>;

impl MemoryTable {
    /// Creates a table without reservations. `kept` is the node's reservation by resource, which must equal the sum of `reservedMemory`.
    ///
    /// # Errors
    /// The sums differ, or a NUMA node does not exist.
    pub fn new(
        machine: &MachineLayout,
        reserved: &[ReservedMemory],
        kept: &BTreeMap<String, Quantity>,
    ) -> Result<Self, String> {
        let mut sums: BTreeMap<&str, Quantity> = BTreeMap::new();
        for r in reserved {
            if !machine.nodes.iter().any(|n| n.id == r.node) {
                let node = r.node;
                return Err(format!(
                    "the reserved memory configuration references a NUMA node {node} that does not exist on this machine"
                ));
            }
            for (resource, amount) in &r.amounts {
                let sum = sums.entry(resource).or_default();
                *sum = sum.plus(*amount);
            }
        }
        let of_kept = kept.keys().map(String::as_str).filter(|r| is_memory(r));
        for resource in sums.keys().copied().chain(of_kept) {
            let (sum, kept) =
                (sums.get(resource).copied().unwrap_or_default(), kept.get(resource).copied().unwrap_or_default());
            if sum != kept {
                return Err(format!(
                    "the total amount \"{sum}\" of type {resource:?} is not equal to the value \"{kept}\" determined by Node Allocatable feature"
                ));
            }
        }
        if sums.get(MEMORY).is_none_or(|sum| sum.is_zero()) {
            return Err("[memorymanager] you should specify the system reserved memory".into());
        }
        let reserved_of = |node: u32, resource: &str| -> u64 {
            let of_node = reserved.iter().filter(|r| r.node == node).filter_map(|r| r.amounts.get(resource));
            of_node.map(|q| u64::try_from(q.value()).unwrap_or(0)).sum()
        };
        let of_part = |n: &super::layout::MemoryNode| {
            let mut memory_map = BTreeMap::new();
            for (size, total) in &n.huge_pages {
                let resource = format!("{HUGE_PAGES}{}", Quantity::binary(i64::try_from(*size).unwrap_or(i64::MAX)));
                let kept = reserved_of(n.id, &resource);
                memory_map.insert(resource, amounts(*total, kept, 0));
            }
            let pages = n.huge_pages.values().sum();
            memory_map.insert(MEMORY.to_owned(), amounts(n.memory, reserved_of(n.id, MEMORY), pages));
            (n.id, NodeMemory { number_of_assignments: 0, memory_map, cells: vec![n.id] })
        };
        let nodes = machine.nodes.iter().map(of_part).collect();
        Ok(Self { nodes, held: BTreeMap::new(), reusable: Default::default() })
    }

    /// Restores reservations from a checkpoint.
    ///
    /// # Errors
    /// They do not match the machine or the configuration.
    pub fn restored(self, nodes: NodesMemory, held: ByContainer<Vec<MemoryBlock>>) -> Result<Self, String> {
        if nodes.is_empty() {
            let why = "machine state can not be empty when it has memory assignments";
            return if held.is_empty() { Ok(self) } else { Err(format!("[memorymanager] {why}")) };
        }
        let mut expected = self.nodes.clone();
        for (pod, containers) in &held {
            for (container, blocks) in containers {
                for b in blocks {
                    let known =
                        b.nodes.iter().all(|n| expected.get(n).is_some_and(|n| n.memory_map.contains_key(&b.resource)));
                    if !known {
                        return Err(format!(
                            "[memorymanager] (pod: {pod}, container: {container}) the memory assignment uses memory that does not exist"
                        ));
                    }
                    promise(&mut expected, &b.nodes, &b.resource, b.size);
                }
            }
        }
        if !are_equal(&expected, &nodes) {
            return Err("[memorymanager] the expected machine state is different from the real one".into());
        }
        Ok(Self { nodes, held, ..self })
    }

    /// State of each NUMA node's memory.
    pub fn nodes(&self) -> &NodesMemory {
        &self.nodes
    }
    /// Reservations of all containers.
    pub fn held(&self) -> &ByContainer<Vec<MemoryBlock>> {
        &self.held
    }
    /// Reservations of one container.
    pub fn of(&self, pod: &str, container: &str) -> Option<&Vec<MemoryBlock>> {
        self.held.get(pod)?.get(container)
    }
    /// Memory that could be reserved if none were.
    pub fn allocatable(&self) -> Vec<MemoryBlock> {
        let of_node = |(id, n): (&u32, &NodeMemory)| -> Vec<MemoryBlock> {
            let all = n.memory_map.iter().filter(|(_, a)| a.allocatable > 0);
            all.map(|(r, a)| MemoryBlock { nodes: vec![*id], resource: r.clone(), size: a.allocatable }).collect()
        };
        self.nodes.iter().flat_map(of_node).collect()
    }

    /// NUMA hints for the memory of one container.
    pub fn hints(&self, pod: &Pod, c: &Container) -> ResourceHints {
        if !is_guaranteed_by_container(pod) || self.is_over(pod, &c.name) {
            return ResourceHints::new();
        }
        let wanted = wants(c);
        match self.of(pod::uid(pod), &c.name) {
            Some(blocks) => again(blocks, &wanted),
            None => self.wishes(pod::uid(pod), &wanted),
        }
    }

    /// NUMA hints for all memory of a pod.
    pub fn pod_hints(&self, pod: &Pod) -> ResourceHints {
        let wanted = of_pod(pod);
        if !is_guaranteed_by_container(pod) || wanted.is_empty() {
            return ResourceHints::new();
        }
        let mut members = pod::members(pod).filter(|m| m.role != Role::Ephemeral);
        match members.find_map(|m| self.of(pod::uid(pod), &m.container.name)) {
            Some(blocks) => again(blocks, &wanted),
            None => self.wishes(pod::uid(pod), &wanted),
        }
    }

    fn wishes(&self, uid: &str, wanted: &Amounts) -> ResourceHints {
        let places = self.places(uid, wanted);
        if places.is_empty() {
            // Like upstream, returns no hint; the reservation then fails.
            return ResourceHints::new();
        }
        wanted.keys().map(|r| (r.clone(), Some(places.clone()))).collect()
    }

    fn places(&self, uid: &str, wanted: &Amounts) -> Vec<NumaHint> {
        let ids: Vec<u32> = self.nodes.keys().copied().collect();
        let mut least = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        let mut places = Vec::new();
        for mask in subsets(&ids) {
            let sum = |r: &String, of: fn(&MemoryAmounts) -> u64| -> u64 {
                let parts = self.nodes.iter().filter(|(n, _)| mask.has(**n));
                parts.filter_map(|(_, n)| n.memory_map.get(r)).map(of).sum()
            };
            if wanted.iter().any(|(r, size)| sum(r, |a| a.allocatable) < *size) {
                continue;
            }
            least = least.min(mask.count());
            // A node that is used in a group cannot be used alone, and the reverse.
            let members = mask.nodes();
            let parts = || members.iter().filter_map(|n| self.nodes.get(n));
            let clashes = match members.len() {
                1 => parts().any(|n| n.cells.len() > 1),
                _ => parts().any(|n| n.number_of_assignments > 0 && NodeMask::of(n.cells.iter().copied()) != mask),
            };
            let has = |r: &String| sum(r, |a| a.free) + self.reusable(uid, mask, r);
            if !clashes && wanted.iter().all(|(r, size)| has(r) >= *size) {
                places.push(mask);
            }
        }
        places.into_iter().map(|m| NumaHint { nodes: Some(m), preferred: m.count() == least }).collect()
    }

    fn reusable(&self, uid: &str, mask: NodeMask, resource: &str) -> u64 {
        let found = self.reusable.1.get(&(mask, resource.to_owned())).copied();
        if self.reusable.0 == uid { found.unwrap_or(0) } else { 0 }
    }

    /// Reserves memory for a container from the nodes in `hint`, extended by others if these have too little. Returns whether anything was
    /// reserved.
    ///
    /// # Errors
    /// Why the request cannot be met.
    pub fn allocate(&mut self, pod: &Pod, m: &Member<'_>, hint: NumaHint) -> Result<bool, PlacementRefusal> {
        let uid = pod::uid(pod);
        if !is_guaranteed_by_container(pod) || self.is_over(pod, &m.container.name) {
            return Ok(false);
        }
        if let Some(blocks) = self.of(uid, &m.container.name).cloned() {
            self.reuse(uid, m.role, &blocks);
            return Ok(false);
        }
        let wanted = wants(&m.container);
        let fault = |why: &str| PlacementRefusal::unexpected(format!("[memorymanager] {why}"));
        let mut best = hint;
        if hint.nodes.is_none() {
            let no_memory = "failed to get the default NUMA affinity, no NUMA nodes with enough memory is available";
            best = best_of(&self.places(uid, &wanted)).ok_or_else(|| fault(no_memory))?;
            if hint.preferred && !best.preferred {
                return Err(fault("failed to find the default preferred hint"));
            }
        }
        let mask = best.nodes.unwrap_or_default();
        let free = |r: &String| -> u64 {
            let parts = self.nodes.iter().filter(|(n, _)| mask.has(**n));
            parts.filter_map(|(_, n)| n.memory_map.get(r)).map(|a| a.free).sum()
        };
        if wanted.iter().any(|(r, size)| free(r) < *size) {
            let mut places = self.places(uid, &wanted);
            places.retain(|p| p.nodes.is_some_and(|n| n.and(mask) == mask));
            let wider = best_of(&places)
                .ok_or_else(|| fault("failed to find NUMA nodes to extend the current topology hint"))?;
            if best.preferred && !wider.preferred {
                return Err(fault("failed to find the extended preferred hint"));
            }
            best = wider;
        }
        let mask = best.nodes.unwrap_or_default();
        if violates(&self.nodes, mask) {
            return Err(fault("preferred hint violates NUMA node allocation"));
        }
        self.promise(pod, m, mask, &wanted);
        Ok(true)
    }

    fn promise(&mut self, pod: &Pod, m: &Member<'_>, mask: NodeMask, wanted: &Amounts) {
        let (uid, nodes) = (pod::uid(pod), mask.nodes());
        let mut blocks = Vec::new();
        for (resource, size) in wanted {
            blocks.push(MemoryBlock { nodes: nodes.clone(), resource: resource.clone(), size: *size });
            let own = self.reusable(uid, mask, resource);
            promise(&mut self.nodes, &nodes, resource, size.saturating_sub(own));
        }
        self.reuse(uid, m.role, &blocks);
        self.of_steps(pod, &m.container.name, &blocks);
        self.held.entry(uid.to_owned()).or_default().insert(m.container.name.clone(), blocks);
    }

    /// Removes from init containers what a later container reuses, so that it is released only once.
    fn of_steps(&mut self, pod: &Pod, container: &str, blocks: &[MemoryBlock]) {
        let Some(containers) = self.held.get_mut(pod::uid(pod)) else { return };
        let before = pod::members(pod).take_while(|m| m.container.name != container);
        let steps: Vec<String> = before.filter(|m| m.role == Role::Init).map(|m| m.container.name.clone()).collect();
        for b in blocks {
            let mut left = b.size;
            for step in &steps {
                let of_step = containers.get_mut(step).into_iter().flatten();
                for own in of_step.filter(|o| o.resource == b.resource && o.nodes == b.nodes) {
                    let taken = own.size.min(left);
                    own.size -= taken;
                    left -= taken;
                }
            }
        }
    }

    fn reuse(&mut self, uid: &str, role: Role, blocks: &[MemoryBlock]) {
        if self.reusable.0 != uid {
            self.reusable = (uid.to_owned(), BTreeMap::new());
        }
        for b in blocks {
            let of_it = self.reusable.1.entry((NodeMask::of(b.nodes.iter().copied()), b.resource.clone())).or_default();
            *of_it = if role == Role::Init { (*of_it).max(b.size) } else { of_it.saturating_sub(b.size) };
        }
    }

    /// Called when a container is about to start: releases memory of earlier init containers that is not reused. Returns whether there was
    /// any.
    pub fn starts(&mut self, pod: &Pod, container: &str) -> bool {
        let Some(containers) = self.held.get_mut(pod::uid(pod)) else { return false };
        let before = pod::members(pod).take_while(|m| m.container.name != container);
        let over: Vec<Vec<MemoryBlock>> =
            before.filter(|m| m.role == Role::Init).filter_map(|m| containers.remove(&m.container.name)).collect();
        for b in over.iter().flatten() {
            release(&mut self.nodes, b);
        }
        !over.is_empty()
    }

    /// Whether a container is an init container of a pod whose later containers have their memory: its reservation was released, and it
    /// runs without one if it starts again.
    fn is_over(&self, pod: &Pod, container: &str) -> bool {
        let Some(held) = self.held.get(pod::uid(pod)).filter(|held| !held.contains_key(container)) else {
            return false;
        };
        let mut after = pod::members(pod).skip_while(|m| m.container.name != container);
        after.next().is_some_and(|m| m.role == Role::Init) && after.any(|m| held.contains_key(&m.container.name))
    }

    /// Releases the memory of pods for which `stays` is false. Returns whether there was any.
    pub fn take_back(&mut self, stays: impl Fn(&str) -> bool) -> bool {
        let gone: Vec<String> = self.held.keys().filter(|pod| !stays(pod)).cloned().collect();
        for blocks in gone.iter().filter_map(|pod| self.held.remove(pod)).flat_map(BTreeMap::into_values).flatten() {
            release(&mut self.nodes, &blocks);
        }
        !gone.is_empty()
    }
}

fn is_memory(resource: &str) -> bool {
    resource == MEMORY || resource.starts_with(HUGE_PAGES)
}

/// Returns the hint of an existing reservation; none if it differs from the request.
fn again(blocks: &[MemoryBlock], wanted: &Amounts) -> ResourceHints {
    if blocks.len() != wanted.len() || blocks.iter().any(|b| wanted.get(&b.resource) != Some(&b.size)) {
        return ResourceHints::new();
    }
    let hint = |b: &MemoryBlock| NumaHint { nodes: Some(NodeMask::of(b.nodes.iter().copied())), preferred: true };
    blocks.iter().map(|b| (b.resource.clone(), Some(vec![hint(b)]))).collect()
}

fn best_of(places: &[NumaHint]) -> Option<NumaHint> {
    let better = |best: NumaHint, other: NumaHint| {
        let narrower = match (other.nodes, best.nodes) {
            (Some(other), Some(best)) => other.is_narrower_than(best),
            _ => false,
        };
        let is_better = other.preferred && !best.preferred || other.preferred == best.preferred && narrower;
        if is_better { other } else { best }
    };
    places.iter().copied().reduce(better)
}

/// A container's requests of memory and huge pages.
fn wants(c: &Container) -> Amounts {
    let all = c.resources.iter().flat_map(|r| r.requests.iter().flatten().chain(r.limits.iter().flatten()));
    let names = all.map(|(name, _)| name).filter(|name| is_memory(name));
    names.filter_map(|r| Some((r.clone(), u64::try_from(pod::request(c, r)?.value()).ok()?))).collect()
}

/// A pod's maximum request at one time; init containers run one after another.
fn of_pod(pod: &Pod) -> Amounts {
    let (mut sidecars, mut steps, mut apps) = (Amounts::new(), Amounts::new(), Amounts::new());
    for m in pod::members(pod) {
        for (r, size) in wants(&m.container) {
            let beside = sidecars.get(&r).copied().unwrap_or(0);
            match m.role {
                Role::Init => {
                    let of_steps = steps.entry(r).or_default();
                    *of_steps = (*of_steps).max(beside + size);
                }
                Role::Sidecar => *sidecars.entry(r).or_default() += size,
                Role::App => *apps.entry(r).or_default() += size,
                Role::Ephemeral => {}
            }
        }
    }
    let of = |list: &Amounts, r: &String| list.get(r).copied().unwrap_or(0);
    apps.keys().map(|r| (r.clone(), of(&steps, r).max(of(&apps, r) + of(&sidecars, r)))).collect()
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
