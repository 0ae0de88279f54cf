//! Reads the machine's topology from sysfs.
#![allow(clippy::disallowed_methods, reason = "blocking: only kernel files, read in the lane for files")]

use std::collections::BTreeMap;
use std::path::Path;

use super::layout::{CpuPlace, Cpus, MachineLayout, MemoryNode};
use super::numa::NODE_MAX;
use crate::config::cpuset::CpuSet;

/// Reads the topology below `root` (`/sys/devices/system`). A machine that reports no NUMA nodes has one node with all `memory`.
///
/// # Errors
/// The CPUs are not reported, or a NUMA node's number is too large.
pub fn read(root: &Path, memory: u64) -> Result<MachineLayout, String> {
    let online = set(&root.join("cpu/online")).ok_or("cannot read the kernel's list of online CPUs")?;
    let nodes = set(&root.join("node/online")).filter(|n| !n.is_empty());
    if nodes.as_ref().and_then(|n| n.iter().max()).is_some_and(|n| n > NODE_MAX) {
        return Err(format!("NUMA nodes beyond number {NODE_MAX} are not supported"));
    }
    let (mut cpus, mut parts) = (BTreeMap::new(), Vec::new());
    for id in nodes.iter().flat_map(CpuSet::iter) {
        let dir = root.join(format!("node/node{id}"));
        let of_node = set(&dir.join("cpulist")).unwrap_or_default().common(&online);
        for cpu in of_node.iter() {
            cpus.insert(cpu, place(root, cpu, id, &of_node));
        }
        parts.push(part(&dir, id));
    }
    if nodes.is_none() {
        cpus.extend(online.iter().map(|cpu| (cpu, place(root, cpu, 0, &online))));
        parts.push(MemoryNode { memory, huge_pages: huge_pages(Path::new("/sys/kernel/mm")), ..MemoryNode::default() });
    }
    if cpus.is_empty() {
        return Err("could not detect number of cpus".into());
    }
    Ok(MachineLayout { cpus: Cpus(cpus), nodes: parts })
}

fn text(path: &Path) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

fn set(path: &Path) -> Option<CpuSet> {
    text(path)?.parse().ok()
}

fn number(path: &Path) -> Option<u32> {
    text(path)?.parse().ok()
}

fn place(root: &Path, cpu: u32, node: u32, of_node: &CpuSet) -> CpuPlace {
    let dir = root.join(format!("cpu/cpu{cpu}"));
    let threads = set(&dir.join("topology/thread_siblings_list")).unwrap_or_default();
    // Virtual machines may report -1.
    let socket = number(&dir.join("topology/physical_package_id")).unwrap_or(0);
    let core = threads.common(of_node).iter().next().unwrap_or(cpu);
    CpuPlace { core, socket, node, cache: cache(&dir, of_node).unwrap_or(socket) }
}

/// ID of the last-level cache, if not all CPUs of the NUMA node share it.
fn cache(dir: &Path, of_node: &CpuSet) -> Option<u32> {
    let mut index = (0..8).rev().map(|n| dir.join(format!("cache/index{n}")));
    let last = index.find(|i| number(&i.join("level")).is_some_and(|level| level > 2))?;
    let shared = set(&last.join("shared_cpu_list"))?;
    (shared.common(of_node) != *of_node).then(|| number(&last.join("id")))?
}

fn part(dir: &Path, id: u32) -> MemoryNode {
    let info = text(&dir.join("meminfo")).unwrap_or_default();
    let total = info.lines().find_map(|l| l.split_once("MemTotal:")?.1.split_whitespace().next()?.parse::<u64>().ok());
    let distances = text(&dir.join("distance")).unwrap_or_default();
    let distances = distances.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    MemoryNode { id, memory: total.unwrap_or(0) * 1024, huge_pages: huge_pages(dir), distances }
}

fn huge_pages(dir: &Path) -> BTreeMap<u64, u64> {
    let mut out = BTreeMap::new();
    for entry in std::fs::read_dir(dir.join("hugepages")).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let kib =
            name.strip_prefix("hugepages-").and_then(|n| n.strip_suffix("kB")).and_then(|n| n.parse::<u64>().ok());
        let pages = text(&entry.path().join("nr_hugepages")).and_then(|n| n.parse::<u64>().ok());
        if let (Some(kib), Some(pages)) = (kib, pages) {
            out.insert(kib * 1024, kib * 1024 * pages);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_with_two_numa_nodes() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        write("cpu/online", "0-3\n");
        write("node/online", "0-1\n");
        for cpu in 0..4 {
            let core = cpu % 2;
            write(&format!("cpu/cpu{cpu}/topology/thread_siblings_list"), &format!("{core},{}\n", core + 2));
            write(&format!("cpu/cpu{cpu}/topology/physical_package_id"), &format!("{core}\n"));
        }
        for node in 0..2 {
            write(&format!("node/node{node}/cpulist"), &format!("{node},{}\n", node + 2));
            write(
                &format!("node/node{node}/meminfo"),
                &format!("Node {node} MemTotal:  1024 kB\nNode {node} MemFree: 1 kB\n"),
            );
            write(&format!("node/node{node}/distance"), if node == 0 { "10 21\n" } else { "21 10\n" });
            write(&format!("node/node{node}/hugepages/hugepages-2048kB/nr_hugepages"), "3\n");
        }
        let layout = read(dir.path(), 0).expect("a machine");
        assert_eq!(layout.cpus.0[&3], CpuPlace { core: 1, socket: 1, node: 1, cache: 1 });
        assert_eq!(layout.nodes[1].memory, 1 << 20);
        assert_eq!(layout.nodes[1].huge_pages, BTreeMap::from([(2 << 20, 6 << 20)]));
        assert_eq!(layout.nodes[0].distances, [10, 21]);
        std::fs::remove_dir_all(dir.path().join("node")).expect("removed");
        let one = read(dir.path(), 77).expect("a machine without parts");
        assert_eq!((one.nodes.len(), one.nodes[0].memory, one.cpus.0.len()), (1, 77, 4));
    }

    #[test]
    fn this_machine() {
        let layout = read(Path::new("/sys/devices/system"), 1).expect("a machine");
        assert!(!layout.cpus.0.is_empty() && !layout.nodes.is_empty());
    }
}
