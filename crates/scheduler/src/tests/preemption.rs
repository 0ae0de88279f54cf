//! Preemption: the victims, the node, and when there is none.
use kelson_meta::ObjectKey;
use serde_json::json;
use tokio::time::Instant;

use super::{asks, core, decide, node, on, useless};
use crate::core::{Core, Step};

fn ranked(name: &str, cpu: &str, priority: i32) -> std::sync::Arc<crate::view::Pod> {
    asks(name, cpu, json!({"metadata": {"labels": {"app": name}}, "spec": {"priority": priority}}))
}

fn preempts(core: &mut Core, pod: std::sync::Arc<crate::view::Pod>) -> (String, Vec<String>) {
    let now = Instant::now();
    core.put_pod(pod, now);
    match core.step(now) {
        Step::Preempt(p) => {
            let node = p.report.nominate.as_deref().unwrap().to_owned();
            (node, p.victims.iter().map(|v| v.name.to_string()).collect())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_least_that_must_go() {
    let placed = [on("n", ranked("low", "1", 1)), on("n", ranked("mid", "2", 5)), on("n", ranked("high", "1", 9))];
    let fresh = || core(&[node("n", json!({}))], &placed);
    assert_eq!(preempts(&mut fresh(), ranked("p", "1", 7)), ("n".into(), vec!["low".into()]));
    assert_eq!(preempts(&mut fresh(), ranked("p", "2", 7)), ("n".into(), vec!["mid".into()]));
    assert_eq!(preempts(&mut fresh(), ranked("p", "3", 7)), ("n".into(), vec!["mid".into(), "low".into()]));
    let none = useless("1 Insufficient cpu", 1, "1 Insufficient cpu");
    assert_eq!(decide(&mut fresh(), ranked("p", "4", 7)), none);
    let none = useless("1 Insufficient cpu", 1, "1 No preemption victims found for incoming pod");
    assert_eq!(decide(&mut fresh(), ranked("p", "1", 1)), none);
    let never = asks("p", "1", json!({"spec": {"priority": 7, "preemptionPolicy": "Never"}}));
    let text = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, \
        preemption: not eligible due to preemptionPolicy=Never.";
    assert_eq!(decide(&mut fresh(), never), Err(text.into()));
}

#[test]
fn the_node_that_hurts_least() {
    let nodes = [node("a", json!({})), node("b", json!({}))];
    let placed = [on("a", ranked("x", "4", 3)), on("b", ranked("y", "4", 2))];
    assert_eq!(preempts(&mut core(&nodes, &placed), ranked("p", "1", 7)).0, "b", "the lower priority");
    let mut c = core(&nodes, &placed);
    let budget = json!({"metadata": {"name": "b", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "y"}}}, "status": {"disruptionsAllowed": 0}});
    c.budgets.insert(ObjectKey::new("default", "b"), serde_json::from_value(budget).unwrap());
    assert_eq!(preempts(&mut c, ranked("p", "1", 7)).0, "a", "budgets weigh more");
}

/// A pod waits for its victim on a node; then that node becomes useless for it.
#[test]
fn who_waits_for_a_victim_looks_elsewhere_when_its_node_is_of_no_more_use() {
    type Happens = fn(&mut Core, &str, Instant);
    let cordoned = |name: &str| node(name, json!({"spec": {"unschedulable": true}}));
    let table: [(&str, Happens); 5] = [
        ("it is gone", |c, n, t| c.remove_node(n, t)),
        ("it is cordoned", |c, n, t| c.put_node(&node(n, json!({"spec": {"unschedulable": true}})), t)),
        ("it is tainted", |c, n, t| {
            c.put_node(&node(n, json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}})), t);
        }),
        ("it is too small", |c, n, t| c.put_node(&node(n, json!({"status": {"allocatable": {"cpu": "1"}}})), t)),
        ("it is cordoned, and the victim is gone before anybody looks", |c, n, t| {
            let victim =
                c.cluster.nodes().iter().find(|s| &*s.node.name == n).map(|s| std::sync::Arc::clone(&s.pods[0]));
            c.put_node(&node(n, json!({"spec": {"unschedulable": true}})), t);
            c.remove_pod(&victim.expect("the victim"), t);
        }),
    ];
    for (what, happens) in table {
        let mut c = core(
            &[node("a", json!({})), node("b", json!({}))],
            &[on("a", ranked("x", "4", 1)), on("b", ranked("y", "4", 1))],
        );
        let mut now = Instant::now();
        c.put_pod(ranked("p", "3", 7), now);
        let Step::Preempt(asked) = c.step(now) else { panic!("{what}: no preemption") };
        let first = asked.report.nominate.clone().expect("a node");
        let other = if &*first == "a" { "b" } else { "a" };
        // The victim terminates slowly.
        let going = json!({"metadata": {"labels": {"app": "x"}, "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"priority": 1}, "status": {"conditions": [{"type": "DisruptionTarget", "status": "True",
            "reason": "PreemptionByScheduler"}]}});
        c.put_pod(on(&first, asks(&asked.victims[0].name, "4", going)), now);
        c.room_asked(&asked, true, now);
        now += crate::queue::BACKOFF.max;
        match c.step(now) {
            Step::Idle(_) => {}
            Step::Report(r) => assert!(r.message.contains("terminating pod on the nominated node"), "{what}"),
            step => panic!("{what}: {step:?}"),
        }
        happens(&mut c, &first, now);
        now += crate::queue::BACKOFF.max;
        match c.step(now) {
            Step::Preempt(p) => assert_eq!(p.report.nominate.as_deref(), Some(other), "{what}"),
            step => panic!("{what}: {step:?}"),
        }
    }
    // When no other node is useful, the nomination is cleared; a node that becomes useful again is taken.
    let mut c = core(&[node("a", json!({}))], &[on("a", ranked("x", "4", 1))]);
    let mut now = Instant::now();
    c.put_pod(ranked("p", "3", 7), now);
    let Step::Preempt(asked) = c.step(now) else { panic!("no preemption") };
    c.room_asked(&asked, true, now);
    c.put_node(&cordoned("a"), now);
    now += crate::queue::BACKOFF.max;
    let Step::Report(said) = c.step(now) else { panic!("nothing said") };
    assert!(said.message.contains("Preemption is not helpful"), "{}", said.message);
    c.put_node(&node("a", json!({})), now);
    now += crate::queue::BACKOFF.max;
    assert!(matches!(c.step(now), Step::Preempt(_)), "uncordoned");
}

#[test]
fn promised_room_is_kept() {
    let mut c = core(&[node("n", json!({}))], &[on("n", ranked("low", "4", 1))]);
    let now = Instant::now();
    c.put_pod(ranked("p", "3", 7), now);
    let Step::Preempt(asked) = c.step(now) else { panic!("no preemption") };
    c.remove_pod(&on("n", ranked("low", "4", 1)), now);
    assert!(decide(&mut c, ranked("thief", "2", 1)).is_err(), "the room is promised");
    assert_eq!(decide(&mut c, ranked("small", "1", 1)), Ok("n".into()), "what is left is not");
    c.room_asked(&asked, true, now);
    let later = now + crate::queue::BACKOFF.max;
    let Step::Bind(p) = c.step(later) else { panic!("pod was not bound") };
    assert_eq!(&*p.name, "p");
}
