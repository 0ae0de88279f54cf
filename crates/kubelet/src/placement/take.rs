//! Selection of free CPUs for a container: whole NUMA nodes, sockets and cores before single threads, and partly used units before unused
//! ones (upstream: `cpu_assignment.go`). Pure.
use std::collections::BTreeMap;

use super::layout::{Cpus, Level, MachineLayout};
use crate::config::cpuset::CpuSet;
use crate::config::placement::CpuOptions;

/// Selects `wanted` CPUs of `free` according to the options.
///
/// # Errors
/// There are too few.
pub fn take(machine: &MachineLayout, free: &CpuSet, wanted: usize, options: CpuOptions) -> Result<CpuSet, String> {
    if options.across_nodes {
        let group = if options.whole_cores { machine.each(Level::Core).max(1) } else { 1 };
        return distributed(machine, free, wanted, (group, options.across_cores));
    }
    packed(machine, free, wanted, (options.across_cores, options.by_cache))
}

struct CpuSelection<'m> {
    machine: &'m MachineLayout,
    free: Cpus,
    needed: usize,
    taken: CpuSet,
    /// Sockets and NUMA nodes, the larger unit first.
    levels: [Level; 2],
    is_spread: bool,
}

impl<'m> CpuSelection<'m> {
    fn new(machine: &'m MachineLayout, free: &CpuSet, wanted: usize, is_spread: bool) -> Result<Self, String> {
        let (sockets, nodes) = (machine.cpus.ids(Level::Socket).len(), machine.cpus.ids(Level::Node).len());
        let levels = if sockets >= nodes { [Level::Node, Level::Socket] } else { [Level::Socket, Level::Node] };
        let cpus = machine.cpus.only(free);
        if wanted > cpus.0.len() {
            let available = free.len();
            return Err(format!(
                "not enough cpus available to satisfy request: requested={wanted}, available={available}"
            ));
        }
        Ok(Self { machine, free: cpus, needed: wanted, taken: CpuSet::default(), levels, is_spread })
    }

    fn is_done(&self) -> bool {
        self.needed == 0
    }

    fn take(&mut self, cpus: &CpuSet) {
        self.needed = self.needed.saturating_sub(cpus.len());
        self.taken = self.taken.plus(cpus);
        self.free.0.retain(|cpu, _| !cpus.contains(*cpu));
    }

    /// Sorts by the number of free CPUs, ascending.
    fn sorted(&self, mut ids: Vec<u32>, level: Level) -> Vec<u32> {
        ids.sort_by_key(|id| (self.free.count(level, *id), *id));
        ids
    }

    /// Returns the units of a level with free CPUs, in the order of selection.
    fn order(&self, level: Level) -> Vec<u32> {
        let inside = |above: Level| -> Vec<u32> {
            let each = self.order(above).into_iter();
            each.flat_map(|id| self.sorted(self.free.ids_in(level, (above, id)), level)).collect()
        };
        match level {
            l if l == self.levels[0] => self.sorted(self.free.ids(level).into_iter().collect(), level),
            Level::Core => inside(self.levels[1]),
            Level::Cache => inside(Level::Node),
            _ => inside(self.levels[0]),
        }
    }

    fn is_whole(&self, level: Level, id: u32) -> bool {
        let all = match level {
            Level::Core | Level::Socket => self.machine.each(level),
            Level::Node | Level::Cache => self.machine.cpus.count(level, id),
        };
        self.free.count(level, id) == all
    }

    /// Takes whole free units as long as they are completely needed.
    fn whole(&mut self, level: Level) {
        let whole: Vec<u32> = self.order(level).into_iter().filter(|id| self.is_whole(level, *id)).collect();
        for id in whole {
            let cpus = self.machine.cpus.within(level, id);
            if self.needed >= cpus.len() {
                self.take(&cpus);
            }
        }
    }

    fn caches(&mut self) {
        let each = self.machine.each(Level::Cache);
        for cache in self.order(Level::Cache) {
            if self.needed >= each {
                self.whole(Level::Cache);
            }
            if !self.is_done() {
                self.part_of_cache(cache);
            }
            if self.is_done() {
                return;
            }
        }
    }

    /// Takes all needed CPUs from one cache, if it has enough.
    fn part_of_cache(&mut self, cache: u32) {
        let threads = self.machine.each(Level::Core).max(1);
        let cores = self.free.ids_in(Level::Core, (Level::Cache, cache));
        let cores = cores.into_iter().take(self.needed.div_ceil(threads));
        let mut cpus: Vec<u32> =
            cores.flat_map(|core| self.free.within(Level::Core, core).iter().collect::<Vec<_>>()).collect();
        cpus.sort_unstable();
        if !self.needed.is_multiple_of(2) && threads > 1 && cpus.len() > self.needed {
            cpus.pop();
        }
        if cpus.len() == self.needed {
            self.take(&cpus.into_iter().collect());
        }
    }

    fn single(&mut self) {
        let level = if self.is_spread { Level::Socket } else { Level::Core };
        let each: Vec<u32> = self
            .order(level)
            .into_iter()
            .flat_map(|id| self.free.within(level, id).iter().collect::<Vec<_>>())
            .collect();
        for cpu in each.into_iter().take(self.needed) {
            self.take(&[cpu].into_iter().collect());
        }
    }
}

fn packed(
    machine: &MachineLayout,
    free: &CpuSet,
    wanted: usize,
    (is_spread, by_cache): (bool, bool),
) -> Result<CpuSet, String> {
    let mut t = CpuSelection::new(machine, free, wanted, is_spread)?;
    for step in 0..5 {
        if t.is_done() {
            break;
        }
        match step {
            0 => t.whole(t.levels[0]),
            1 => t.whole(t.levels[1]),
            2 if by_cache => t.caches(),
            3 if !is_spread => t.whole(Level::Core),
            4 => t.single(),
            _ => {}
        }
    }
    if t.is_done() { Ok(t.taken) } else { Err("failed to allocate cpus".into()) }
}

/// Takes the same number from each of as few NUMA nodes as possible, such that the remaining free CPUs are most even.
fn distributed(
    machine: &MachineLayout,
    free: &CpuSet,
    wanted: usize,
    (group, is_spread): (usize, bool),
) -> Result<CpuSet, String> {
    if !wanted.is_multiple_of(group) {
        return packed(machine, free, wanted, (is_spread, false));
    }
    let mut t = CpuSelection::new(machine, free, wanted, is_spread)?;
    if t.is_done() {
        return Ok(t.taken);
    }
    let nodes = t.order(Level::Node);
    let groups_all = machine.cpus.0.len().div_ceil(group);
    let groups_of_node = groups_all.div_ceil(machine.cpus.ids(Level::Node).len().max(1)).max(1);
    let groups = wanted.div_ceil(group);
    for count in groups.div_ceil(groups_of_node)..=groups.min(nodes.len()) {
        let left: BTreeMap<u32, usize> = nodes.iter().map(|n| (*n, t.free.count(Level::Node, *n))).collect();
        let Some((chosen, rest)) = super::spread::best(&nodes, &left, (wanted, group), count) else { continue };
        let each = wanted / chosen.len() / group * group;
        for node in &chosen {
            let cpus = packed(machine, &t.free.within(Level::Node, *node), each, (is_spread, false))?;
            t.take(&cpus);
        }
        while !t.is_done() {
            let before = t.needed;
            for node in &rest {
                if t.is_done() || t.free.count(Level::Node, *node) < group {
                    continue;
                }
                let cpus = packed(machine, &t.free.within(Level::Node, *node), group, (is_spread, false))?;
                t.take(&cpus);
            }
            if t.needed == before {
                return Err(format!("accounting error, not enough CPUs allocated, remaining: {before}"));
            }
        }
        return Ok(t.taken);
    }
    packed(machine, free, wanted, (is_spread, false))
}

/// Returns whether these CPUs share one last-level cache.
pub fn shares_cache(machine: &MachineLayout, cpus: &CpuSet) -> bool {
    machine.cpus.only(cpus).ids(Level::Cache).len() == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::layout::machine;

    fn check(m: &MachineLayout, free: &str, wanted: usize, options: CpuOptions, expected: &str) {
        let free: CpuSet = free.parse().expect("a set");
        let got = take(m, &free, wanted, options).map_or_else(|e| e, |s| s.to_string());
        assert_eq!(got, expected, "{wanted} of {free} by {options:?}");
    }

    #[test]
    fn whole_units_first_and_partly_used_ones_before_unused_ones() {
        let plain = CpuOptions::default();
        // One socket with four cores of two threads: 0-3 and their siblings 4-7.
        let smt = machine(1, 1, 4, 2);
        for (free, wanted, expected) in [
            ("0-7", 1, "0"),
            ("0-7", 2, "0,4"),
            ("1-7", 1, "4"),
            ("1-7", 3, "1,4-5"),
            ("0-7", 8, "0-7"),
            ("0-3", 2, "0-1"),
            ("0,1", 3, "not enough cpus available to satisfy request: requested=3, available=2"),
            ("0-7", 0, ""),
        ] {
            check(&smt, free, wanted, plain, expected);
        }
        // Two sockets with three cores.
        let two = machine(2, 1, 3, 2);
        check(&two, "0-11", 6, plain, "0-2,6-8");
        check(&two, "1-11", 6, plain, "3-5,9-11");
        check(&two, "1-11", 2, plain, "1,7");
        check(&two, "0-11", 7, plain, "0-3,6-8");
        // Two cores without hyper-threading.
        check(&machine(1, 1, 2, 1), "1", 1, plain, "1");
    }

    #[test]
    fn spread_over_cores_and_parts() {
        let cores = CpuOptions { across_cores: true, ..CpuOptions::default() };
        check(&machine(1, 1, 4, 2), "0-7", 4, cores, "0-3");
        let nodes = CpuOptions { across_nodes: true, ..CpuOptions::default() };
        // Two sockets with two NUMA nodes of four cores each.
        let four = machine(2, 2, 4, 1);
        check(&four, "0-15", 4, nodes, "0-3");
        check(&four, "0-15", 6, nodes, "0-2,4-6");
        check(&four, "0-15", 8, nodes, "0-7");
        check(&four, "0-15", 9, nodes, "0-2,4-6,8-10");
        check(&four, "0-15", 16, nodes, "0-15");
        let whole = CpuOptions { whole_cores: true, ..nodes };
        // Each of two NUMA nodes has eight CPUs in four cores; six cores are three on each.
        check(&machine(2, 1, 4, 2), "0-15", 12, whole, "0-2,4-6,8-10,12-14");
    }

    #[test]
    fn one_cache_where_it_has_enough() {
        // One NUMA node with two caches of four cores.
        let mut m = machine(1, 1, 8, 1);
        m.cpus.0.iter_mut().for_each(|(cpu, p)| p.cache = cpu / 4);
        let by_cache = CpuOptions { by_cache: true, ..CpuOptions::default() };
        check(&m, "0-7", 4, by_cache, "0-3");
        check(&m, "1-7", 4, by_cache, "4-7");
        check(&m, "1-7", 3, by_cache, "1-3");
        check(&m, "1-7", 5, by_cache, "1,4-7");
        check(&m, "3-5", 3, by_cache, "3-5");
        assert!(shares_cache(&m, &"4-6".parse().expect("a set")) && !shares_cache(&m, &"3-4".parse().expect("a set")));
    }
}
