//! Tests of exclusive CPUs.
use serde_json::{Value, json};

use super::*;
use crate::placement::layout::machine;

/// A pod whose containers request these CPUs. A name that begins with `i` is an init container, with `s` a sidecar.
fn pod(uid: &str, containers: &[(&str, &str)]) -> Pod {
    let all = |of: fn(&str) -> bool| -> Vec<Value> {
        let container = |(name, cpu): &(&str, &str)| {
            let amounts = json!({"cpu": cpu, "memory": "1Gi"});
            let policy = name.starts_with('s').then_some("Always");
            json!({"name": name, "restartPolicy": policy, "resources": {"requests": amounts, "limits": amounts}})
        };
        containers.iter().filter(|(name, _)| of(name)).map(container).collect()
    };
    let first = |name: &str| name.starts_with(['i', 's']);
    let spec = json!({"initContainers": all(first), "containers": all(|name| !name.starts_with(['i', 's']))});
    serde_json::from_value(json!({"metadata": {"name": uid, "uid": uid}, "spec": spec})).expect("a pod")
}

fn table(m: &MachineLayout, reserved: usize, options: CpuOptions) -> CpuTable {
    CpuTable::new(Arc::new(m.clone()), options, reserved, &CpuSet::default()).expect("a machine")
}

const ANYWHERE: NumaHint = NumaHint { nodes: None, preferred: false };

/// Assigns CPUs to each container of the pod and returns the result or the error.
fn give(t: &mut CpuTable, p: &Pod, hint: NumaHint) -> String {
    let mut out = Vec::new();
    for m in pod::members(p) {
        if let Err(why) = t.allocate(p, &m, hint) {
            return format!("{}: {}", why.reason, why.message);
        }
        let has = t.of(pod::uid(p), &m.container.name).map(CpuSet::to_string);
        out.push(format!("{}={}", m.container.name, has.unwrap_or_else(|| "-".into())));
    }
    out.join(" ")
}

#[test]
fn whole_cpu_requests_get_exclusive_cpus() {
    let m = machine(1, 1, 4, 2);
    let mut t = table(&m, 1, CpuOptions::default());
    assert_eq!((t.shared().to_string(), t.allocatable().to_string()), ("0-7".into(), "1-7".into()), "0 is reserved");
    assert_eq!(give(&mut t, &pod("p", &[("a", "2"), ("b", "1500m")]), ANYWHERE), "a=1,5 b=-");
    assert_eq!(give(&mut t, &pod("q", &[("a", "1")]), ANYWHERE), "a=4", "the core that is broken already");
    assert_eq!(t.shared().to_string(), "0,2-3,6-7");
    assert_eq!(give(&mut t, &pod("p", &[("a", "2")]), ANYWHERE), "a=1,5", "once and for all");
    let none = "UnexpectedAdmissionError: Allocate failed due to not enough cpus available to satisfy request: \
                requested=5, available=4, which is unexpected";
    assert_eq!(give(&mut t, &pod("r", &[("a", "5")]), ANYWHERE), none);
    assert_eq!(t.by_node(), BTreeMap::from([(0, 3)]));
    assert_eq!(t.take_back(|uid| uid != "p").to_string(), "1,5");
    assert_eq!(t.shared().to_string(), "0-3,5-7");
}

#[test]
fn init_containers_pass_on_their_cpus() {
    let m = machine(1, 1, 8, 1);
    let mut t = table(&m, 1, CpuOptions::default());
    assert_eq!(give(&mut t, &pod("p", &[("i1", "2"), ("i2", "3"), ("a", "1")]), ANYWHERE), "i1=1-2 i2=1-3 a=1");
    assert_eq!(t.shared().to_string(), "0,4-7");
    assert_eq!(give(&mut t, &pod("q", &[("s", "1"), ("i", "1"), ("a", "1")]), ANYWHERE), "s=4 i=5 a=5");
    t.take_back(|_| false);
    assert_eq!(t.shared().to_string(), "0-7");
}

#[test]
fn full_pcpus_only() {
    let m = machine(1, 1, 4, 2);
    let mut t = table(&m, 1, CpuOptions { whole_cores: true, ..CpuOptions::default() });
    let odd = "SMTAlignmentError: SMT Alignment Error: requested 1 cpus not multiple cpus per core = 2";
    assert_eq!(give(&mut t, &pod("p", &[("a", "1")]), ANYWHERE), odd);
    assert_eq!(give(&mut t, &pod("p", &[("a", "4")]), ANYWHERE), "a=1-2,5-6");
    // The sibling of the reserved CPU is free, but no whole core is.
    let few = "SMTAlignmentError: SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 2, \
               requested CPUs = 4, CPUs per core = 2";
    assert_eq!(give(&mut t, &pod("q", &[("a", "4")]), ANYWHERE), few);
}

#[test]
fn reserved_by_number_and_strictly() {
    let m = machine(2, 1, 2, 1);
    let by_number: CpuSet = "1,3".parse().expect("a set");
    let strict = CpuOptions { strict_reservation: true, ..CpuOptions::default() };
    let t = CpuTable::new(Arc::new(m.clone()), strict, 2, &by_number).expect("they are there");
    assert_eq!((t.shared().to_string(), t.free().to_string()), ("0,2".into(), "0,2".into()));
    for (amount, by_number, why) in [
        (0, "", "to be greater than zero"),
        (5, "", "unable to reserve the required amount of CPUs (size of  did not equal 5)"),
        (1, "0-1", "did not equal 1"),
        (1, "9", "9 is not"),
    ] {
        let by_number: CpuSet = by_number.parse().expect("a set");
        let fault = CpuTable::new(Arc::new(m.clone()), strict, amount, &by_number).expect_err("a fault");
        assert!(fault.contains(why), "{fault}");
    }
}

#[test]
fn restored_cpu_assignments_must_match() {
    let m = machine(1, 1, 4, 1);
    let set = |text: &str| text.parse::<CpuSet>().expect("a set");
    let held = |text: &str| ByContainer::from([("p".to_owned(), [("a".to_owned(), set(text))].into())]);
    let strict = CpuOptions { strict_reservation: true, ..CpuOptions::default() };
    for (options, shared, own, fault) in [
        (CpuOptions::default(), "0,2-3", "1", ""),
        (strict, "2-3", "1", ""),
        (CpuOptions::default(), "", "1", "default cpuset cannot be empty"),
        (CpuOptions::default(), "1-3", "", "not all reserved cpus"),
        (strict, "0-3", "", "some of strictly reserved cpus"),
        (CpuOptions::default(), "0-3", "1", "overlaps with default cpuset"),
        (CpuOptions::default(), "0,2-5", "1", "doesn't match with CPUs in state"),
    ] {
        let held = if own.is_empty() { ByContainer::new() } else { held(own) };
        let got = table(&m, 1, options).restored(set(shared), held);
        match fault {
            "" => assert_eq!(got.expect("it fits").of("p", "a").map(CpuSet::to_string).as_deref(), Some("1")),
            _ => assert!(got.is_err_and(|e| e.contains(fault)), "{fault}"),
        }
    }
}

#[test]
fn hints_and_assigned_cpus() {
    let m = machine(2, 1, 2, 2);
    let mut t = table(&m, 1, CpuOptions::default());
    let text = |w: &ResourceHints| -> String {
        let hint = |h: &NumaHint| format!("{:?}{}", h.nodes.unwrap_or_default(), if h.preferred { "!" } else { "" });
        let all = w.get("cpu").map(|l| l.as_ref().expect("a preference").iter().map(hint).collect::<Vec<_>>());
        all.map_or("none".into(), |all| all.join(" "))
    };
    let of = |t: &CpuTable, p: &Pod| text(&t.hints(p, &p.spec.as_ref().expect("a spec").containers[0]));
    // Each NUMA node has two cores with two threads; one CPU of the first node is reserved.
    assert_eq!(of(&t, &pod("p", &[("a", "2")])), "[0]! [1]! [0, 1]");
    assert_eq!(of(&t, &pod("p", &[("a", "4")])), "[1]! [0, 1]");
    assert_eq!(of(&t, &pod("p", &[("a", "6")])), "[0, 1]!");
    assert_eq!(of(&t, &pod("p", &[("a", "8")])), "", "there are not so many");
    assert_eq!(of(&t, &pod("p", &[("a", "500m")])), "none");
    assert_eq!(text(&t.pod_hints(&pod("p", &[("i", "4"), ("a", "1"), ("b", "1")]))), "[1]! [0, 1]");
    let second = NumaHint { nodes: Some(NodeMask::of([1])), preferred: true };
    assert_eq!(give(&mut t, &pod("p", &[("a", "2")]), second), "a=2,6");
    assert_eq!(of(&t, &pod("p", &[("a", "2")])), "[1]! [0, 1]", "what it has");
    assert_eq!(of(&t, &pod("p", &[("a", "3")])), "", "it asks for more than it has");
    assert_eq!(
        give(&mut t, &pod("q", &[("a", "3")]), second),
        "a=3-4,7",
        "the rest from a core that is broken already"
    );
}

#[test]
fn by_socket() {
    // Two sockets with two NUMA nodes each: two nodes of one socket are as good as one.
    let m = machine(2, 2, 2, 1);
    let t = table(&m, 1, CpuOptions { by_socket: true, ..CpuOptions::default() });
    let p = pod("p", &[("a", "1")]);
    let hints = t.hints(&p, &p.spec.as_ref().expect("a spec").containers[0]);
    let preferred: Vec<NodeMask> =
        hints["cpu"].iter().flatten().filter(|h| h.preferred).filter_map(|h| h.nodes).collect();
    let of = |nodes: &[u32]| NodeMask::of(nodes.iter().copied());
    assert_eq!(preferred, [of(&[0]), of(&[1]), of(&[2]), of(&[3]), of(&[0, 1]), of(&[2, 3])]);
    let fault = CpuTable::new(
        Arc::new(machine(2, 1, 1, 1)),
        CpuOptions { by_socket: true, ..CpuOptions::default() },
        1,
        &CpuSet::default(),
    );
    assert!(fault.is_ok(), "as many sockets as parts");
}

#[test]
fn pod_level_requests_get_no_exclusive_cpus() {
    let mut p = pod("p", &[("a", "1")]);
    let whole = json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}});
    p.spec.as_mut().expect("a spec").resources = serde_json::from_value(whole).expect("resources");
    assert_eq!(whole_cpus(&p, &p.spec.as_ref().expect("a spec").containers[0]), 0);
}
