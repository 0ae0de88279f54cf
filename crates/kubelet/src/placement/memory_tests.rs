//! Tests of memory reservations.
use serde_json::json;

use super::*;
use crate::placement::layout::{MachineLayout, machine};

const GIB: u64 = 1 << 30;

fn pod(uid: &str, containers: &[(&str, u64)]) -> Pod {
    let all = |of: fn(&str) -> bool| -> Vec<serde_json::Value> {
        let container = |(name, gib): &(&str, u64)| {
            let amounts = json!({"cpu": "1", "memory": format!("{gib}Gi")});
            json!({"name": name, "resources": {"requests": amounts, "limits": amounts}})
        };
        containers.iter().filter(|(name, _)| of(name)).map(container).collect()
    };
    let spec = json!({"initContainers": all(|n| n.starts_with('i')), "containers": all(|n| !n.starts_with('i'))});
    serde_json::from_value(json!({"metadata": {"name": uid, "uid": uid}, "spec": spec})).expect("a pod")
}

/// Two NUMA nodes with 8 GiB, of which 1 GiB is reserved each.
fn table() -> MemoryTable {
    let of = |node| ReservedMemory { node, amounts: [("memory".to_owned(), Quantity::binary(1 << 30))].into() };
    let kept =
        BTreeMap::from([("memory".to_owned(), Quantity::binary(2 << 30)), ("cpu".to_owned(), Quantity::from_i64(1))]);
    MemoryTable::new(&machine(2, 1, 1, 1), &[of(0), of(1)], &kept).expect("a machine")
}

const ANYWHERE: NumaHint = NumaHint { nodes: None, preferred: false };

fn on(nodes: &[u32], preferred: bool) -> NumaHint {
    NumaHint { nodes: Some(NodeMask::of(nodes.iter().copied())), preferred }
}

/// Reserves memory for each container and returns the nodes or the error.
fn give(t: &mut MemoryTable, p: &Pod, hint: NumaHint) -> String {
    let mut out = Vec::new();
    for m in pod::members(p) {
        if let Err(why) = t.allocate(p, &m, hint) {
            return why.message;
        }
        let blocks = t.of(pod::uid(p), &m.container.name).into_iter().flatten();
        out.extend(blocks.map(|b| format!("{}={}@{:?}", m.container.name, b.size / GIB, b.nodes)));
    }
    out.join(" ")
}

fn free(t: &MemoryTable) -> Vec<u64> {
    t.nodes().values().map(|n| n.memory_map["memory"].free / GIB).collect()
}

#[test]
fn memory_is_reserved_once() {
    let mut t = table();
    assert_eq!(free(&t), [7, 7]);
    assert_eq!(give(&mut t, &pod("p", &[("a", 5)]), ANYWHERE), "a=5@[0]");
    assert_eq!(give(&mut t, &pod("q", &[("a", 5)]), ANYWHERE), "a=5@[1]");
    assert_eq!(free(&t), [2, 2]);
    let none = "Allocate failed due to [memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough \
                memory is available, which is unexpected";
    assert_eq!(give(&mut t, &pod("r", &[("a", 3)]), ANYWHERE), none, "both parts give alone already");
    assert!(t.take_back(|uid| uid == "q") && !t.take_back(|_| true));
    assert_eq!(free(&t), [7, 2]);
    assert_eq!(give(&mut t, &pod("s", &[("a", 7)]), on(&[0], true)), "a=7@[0]");
}

#[test]
fn numa_node_groups() {
    let mut t = table();
    assert_eq!(give(&mut t, &pod("p", &[("a", 10)]), on(&[0], false)), "a=10@[0, 1]", "one part has too little");
    assert_eq!(free(&t), [0, 4]);
    assert_eq!(give(&mut t, &pod("q", &[("a", 2)]), ANYWHERE), "a=2@[0, 1]", "those give together only");
    let worse = "Allocate failed due to [memorymanager] failed to find NUMA nodes to extend the current topology hint, \
                 which is unexpected";
    assert_eq!(give(&mut t, &pod("r", &[("a", 3)]), on(&[0], true)), worse);
    t.take_back(|_| false);
    assert_eq!((free(&t), t.nodes()[&1].cells.clone()), (vec![7, 7], vec![1]));
}

#[test]
fn init_containers_pass_on_their_memory() {
    let mut t = table();
    assert_eq!(give(&mut t, &pod("p", &[("i", 4), ("a", 3)]), ANYWHERE), "i=4@[0] a=3@[0]");
    assert_eq!(free(&t), [3, 7], "the larger of both");
    assert_eq!(t.of("p", "i").expect("a step")[0].size, GIB, "the rest is the container's");
    t.take_back(|_| false);
    assert_eq!(free(&t), [7, 7]);
}

#[test]
fn memory_of_init_containers_that_is_not_reused_is_released() {
    let mut t = table();
    let p = pod("p", &[("i", 6), ("i2", 1), ("a", 2)]);
    assert_eq!(give(&mut t, &p, ANYWHERE), "i=6@[0] i2=1@[0] a=2@[0]");
    assert!(!t.starts(&p, "i"), "the first step runs");
    assert_eq!(free(&t), [1, 7]);
    assert!(t.starts(&p, "i2"), "and is over when the second begins");
    assert!(t.starts(&p, "a") && !t.starts(&p, "a"));
    assert_eq!(free(&t), [5, 7], "only the container has a reservation");
    // The next kubelet places the pod again when a container restarts, after its init containers ended.
    let mut next = table().restored(t.nodes().clone(), t.held().clone()).expect("the same machine");
    assert_eq!(give(&mut next, &p, ANYWHERE), "a=2@[0]");
    assert_eq!(free(&next), [5, 7]);
    assert!(next.hints(&p, &p.spec.as_ref().expect("a spec").init_containers.as_ref().expect("steps")[0]).is_empty());
}

#[test]
fn hints() {
    let mut t = table();
    let text = |w: &ResourceHints| -> String {
        let hint = |h: &NumaHint| format!("{:?}{}", h.nodes.unwrap_or_default(), if h.preferred { "!" } else { "" });
        let all = w.get("memory").map(|l| l.as_ref().expect("a preference").iter().map(hint).collect::<Vec<_>>());
        all.map_or("none".into(), |all| all.join(" "))
    };
    assert_eq!(text(&t.pod_hints(&pod("p", &[("a", 3), ("b", 3)]))), "[0]! [1]! [0, 1]");
    assert_eq!(text(&t.pod_hints(&pod("p", &[("a", 5), ("b", 5)]))), "[0, 1]!");
    assert_eq!(text(&t.pod_hints(&pod("p", &[("i", 5), ("b", 5)]))), "[0]! [1]! [0, 1]", "one after the other");
    assert_eq!(text(&t.pod_hints(&pod("p", &[("a", 20)]))), "none");
    give(&mut t, &pod("p", &[("a", 6)]), ANYWHERE);
    assert_eq!(text(&t.pod_hints(&pod("q", &[("a", 3)]))), "[1]!", "the other gives alone, and has too little");
    assert_eq!(text(&t.pod_hints(&pod("p", &[("a", 6)]))), "[0]!", "what it has");
}

#[test]
fn reservations_must_be_those_of_the_node() {
    let of = |node, name: &str, bytes: i64| ReservedMemory {
        node,
        amounts: [(name.to_owned(), Quantity::binary(bytes))].into(),
    };
    let kept = |bytes| BTreeMap::from([("memory".to_owned(), Quantity::binary(bytes))]);
    let layout: MachineLayout = machine(1, 1, 1, 1);
    for (reserved, kept, why) in [
        (vec![of(3, "memory", 1)], kept(1), "references a NUMA node 3 that does not exist"),
        (vec![of(0, "memory", 1024)], kept(2048), "\"1Ki\" of type \"memory\" is not equal to the value \"2Ki\""),
        (vec![], kept(1024), "\"0\" of type \"memory\" is not equal to the value \"1Ki\""),
        (vec![], BTreeMap::new(), "you should specify the system reserved memory"),
    ] {
        let fault = MemoryTable::new(&layout, &reserved, &kept).expect_err("a fault");
        assert!(fault.contains(why), "{fault}");
    }
}

#[test]
fn restored_memory_reservations_must_match() {
    let mut t = table();
    give(&mut t, &pod("p", &[("a", 10)]), ANYWHERE);
    let (nodes, held) = (t.nodes().clone(), t.held().clone());
    let again = table().restored(nodes.clone(), held.clone()).expect("the same machine");
    assert_eq!(free(&again), free(&t));
    assert!(table().restored(NodesMemory::new(), held.clone()).is_err_and(|e| e.contains("can not be empty")));
    let mut other = nodes;
    other.get_mut(&1).expect("a part").memory_map.get_mut("memory").expect("memory").total -= 1;
    assert!(table().restored(other, held).is_err_and(|e| e.contains("different from the real one")));
}
