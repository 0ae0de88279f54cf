//! Order, back-off and requeueing of pods, with explicit times.
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{asks, core, node, on, pod};
use crate::core::{Core, Step};
use crate::plugins::table::{PluginSet, Table};
use crate::queue::{Queue, UNSCHEDULABLE_MAX};

fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The set of one plugin of the default table.
fn only(name: &str) -> PluginSet {
    let mut set = PluginSet::default();
    set.insert(Table::default().rows().iter().position(|p| p.name() == name).expect("a plugin of that name"));
    set
}

fn fit() -> PluginSet {
    only("NodeResourcesFit")
}

fn popped(q: &mut Queue, at: Instant) -> Option<String> {
    q.pop(at).map(|p| p.name.to_string())
}

#[test]
fn priority_then_age() {
    let (mut q, t) = (Queue::default(), Instant::now());
    let ranked = |name: &str, priority: i32| pod(name, json!({"spec": {"priority": priority}}));
    for (name, priority) in [("a", 0), ("b", 5), ("c", 0), ("d", 5)] {
        q.put(ranked(name, priority), false, t);
    }
    let order: Vec<_> = std::iter::from_fn(|| popped(&mut q, t)).collect();
    assert_eq!(order, ["b", "d", "a", "c"]);
    assert_eq!(q.due(), None, "nothing wakes an idle scheduler");
}

#[test]
fn faults_back_off_and_double() {
    let (mut q, mut t) = (Queue::default(), Instant::now());
    q.put(pod("a", json!({})), false, t);
    for wait in [1, 2, 4, 8, 10, 10] {
        assert!(popped(&mut q, t).is_some());
        q.fault("a", t);
        assert_eq!(q.due(), Some(t + s(wait)));
        assert_eq!(popped(&mut q, t + s(wait) - Duration::from_millis(1)), None);
        t += s(wait);
    }
}

#[test]
fn unschedulable_pods_wait_for_a_change_or_five_minutes() {
    let (mut q, t) = (Queue::default(), Instant::now());
    q.put(pod("a", json!({})), false, t);
    q.pop(t);
    q.refuse("a", fit(), t);
    assert_eq!(popped(&mut q, t + s(100)), None);
    assert!(q.any_refused_by(fit()));
    q.requeue(t + s(100), "test", |_, by| by.meets(only("InterPodAffinity")));
    assert_eq!(popped(&mut q, t + s(100)), None);
    q.requeue(t + s(100), "test", |_, by| by.meets(fit()));
    assert!(!q.any_refused_by(fit()));
    assert_eq!(popped(&mut q, t + s(100)).as_deref(), Some("a"));
    q.refuse("a", fit(), t + s(100));
    assert_eq!(q.due(), Some(t + s(100) + UNSCHEDULABLE_MAX));
    assert_eq!(popped(&mut q, t + s(100) + UNSCHEDULABLE_MAX).as_deref(), Some("a"));
    q.refuse("a", fit(), t + s(500));
    q.wait_at_most(s(20));
    assert_eq!((popped(&mut q, t + s(519)), popped(&mut q, t + s(520)).as_deref()), (None, Some("a")));
    q.remove("a");
    assert_eq!(q.depth(), Default::default());
}

#[test]
fn gates_and_changes() {
    let (mut q, t) = (Queue::default(), Instant::now());
    q.put(pod("a", json!({"spec": {"schedulingGates": [{"name": "g"}]}})), false, t);
    assert_eq!((popped(&mut q, t), q.depth().gated), (None, 1));
    q.put(pod("a", json!({})), false, t);
    assert_eq!((popped(&mut q, t).as_deref(), q.depth().gated), (Some("a"), 0));
    q.refuse("a", fit(), t);
    q.put(pod("a", json!({"status": {"phase": "Pending"}})), false, t);
    assert_eq!(q.depth().unschedulable, 1, "its status alone does not let it fit");
    q.put(pod("a", json!({"metadata": {"labels": {"x": "y"}}})), false, t);
    assert_eq!(q.depth().unschedulable, 0);
}

/// A pod is rejected because of other pods; then a placed pod is added, updated or deleted.
#[test]
fn which_pods_are_of_use_to_which() {
    let labelled = |name: &str, app: &str, over: Value| {
        let mut p = json!({"metadata": {"labels": {"app": app}}});
        super::merge(&mut p, &over);
        pod(name, p)
    };
    let term =
        |app: &str| json!([{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": app}}}]);
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let near = |app: &str| json!({"spec": {"affinity": {"podAffinity": {required: term(app)}}}});
    let far = |app: &str| json!({"spec": {"affinity": {"podAntiAffinity": {required: term(app)}}}});
    let even = json!({"spec": {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "x"}}, "minDomains": 2}]}});
    let there = |name: &str, app: &str| on("n", labelled(name, app, json!({})));
    type Happens<'a> = &'a dyn Fn(&mut Core, Instant);
    let table: [(&str, &Value, Happens<'_>, bool); 9] = [
        ("one it wants comes", &near("w"), &|c, t| c.put_pod(there("new", "w"), t), true),
        ("another one comes", &near("w"), &|c, t| c.put_pod(there("new", "y"), t), false),
        ("one becomes what it wants", &near("w"), &|c, t| c.put_pod(there("x", "w"), t), true),
        ("one it hates goes", &far("x"), &|c, t| c.remove_pod(&there("x", "x"), t), true),
        ("one it does not hate goes", &far("x"), &|c, t| c.remove_pod(&there("y", "y"), t), false),
        ("one is no longer what it hates", &far("x"), &|c, t| c.put_pod(there("x", "y"), t), true),
        ("one that is counted goes", &even, &|c, t| c.remove_pod(&there("x", "x"), t), true),
        ("one that is not counted goes", &even, &|c, t| c.remove_pod(&there("y", "y"), t), false),
        ("one is counted no more", &even, &|c, t| c.put_pod(there("x", "z"), t), true),
    ];
    for (what, over, happens, again) in table {
        // Too small for the new pod, so that only the hints requeue it.
        let small = node("n", json!({"status": {"allocatable": {"cpu": "1"}}}));
        let mut c = core(&[small], &[there("x", "x"), there("y", "y")]);
        let mut p = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "500m"}}}]}});
        super::merge(&mut p, over);
        c.put_pod(labelled("p", "x", p), Instant::now());
        assert!(matches!(c.step(Instant::now()), Step::Report(_)), "{what}");
        // The node is full with pods that are not related to this one.
        c.put_pod(on("n", asks("full", "1", json!({"metadata": {"namespace": "other"}}))), Instant::now());
        assert!(waits(&mut c), "{what}");
        happens(&mut c, Instant::now() + s(60));
        assert_eq!(c.queue.depth().unschedulable == 0, again, "{what}");
    }
}

fn waits(core: &mut Core) -> bool {
    matches!(core.step(Instant::now()), Step::Idle(_))
}

/// A pod is rejected on one node, then something changes: whether it is requeued.
#[test]
fn what_requeues_a_pod() {
    type Happens = fn(&mut Core, Instant);
    let table: [(&str, Value, Happens, bool); 9] = [
        ("a node of use", json!({}), |c, t| c.put_node(&node("m", json!({})), t), true),
        (
            "a node too small",
            json!({}),
            |c, t| {
                c.put_node(&node("m", json!({"status": {"allocatable": {"cpu": "1"}}})), t);
            },
            false,
        ),
        (
            "a tainted node",
            json!({}),
            |c, t| {
                c.put_node(&node("m", json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}})), t);
            },
            false,
        ),
        ("a heartbeat", json!({}), |c, t| c.put_node(&node("n", json!({})), t), false),
        (
            "more to allocate",
            json!({}),
            |c, t| {
                c.put_node(&node("n", json!({"status": {"allocatable": {"cpu": "8"}}})), t);
            },
            true,
        ),
        ("less asked for", json!({}), |c, t| c.put_pod(on("n", asks("big", "1", json!({}))), t), true),
        (
            "another label",
            json!({}),
            |c, t| c.put_pod(on("n", asks("big", "3", json!({"metadata": {"labels": {"x": "y"}}}))), t),
            false,
        ),
        ("room", json!({}), |c, t| c.remove_pod(&on("n", asks("big", "3", json!({}))), t), true),
        ("too little room", json!({}), |c, t| c.remove_pod(&on("n", asks("small", "500m", json!({}))), t), false),
    ];
    for (what, over, happens, again) in table {
        let placed = [on("n", asks("big", "3", json!({}))), on("n", asks("small", "500m", json!({})))];
        let mut c = core(&[node("n", json!({}))], &placed);
        c.put_pod(asks("p", "2", over), Instant::now());
        assert!(matches!(c.step(Instant::now()), Step::Report(_)), "{what}");
        assert!(waits(&mut c), "{what}");
        happens(&mut c, Instant::now());
        assert_eq!(!waits(&mut c), again, "{what}");
    }
}

/// A pod is rejected on nodes `n` and `m` because of what plugins see there; then `n` changes.
#[test]
fn which_changes_of_a_node_are_of_use() {
    let term = json!([{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "w"}}}]);
    let near = json!({"spec": {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}}});
    let even = json!({"metadata": {"labels": {"app": "w"}}, "spec": {"topologySpreadConstraints": [{"maxSkew": 1,
        "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "w"}}}]}});
    let large = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "3"}}}]}});
    let selects = json!({"spec": {"nodeSelector": {"disk": "fast"}}});
    let label = |k: &str, v: &str| json!({"metadata": {"labels": {k: v}}});
    let taint = json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}});
    let cpus = |n: &str| json!({"status": {"allocatable": {"cpu": n}}});
    let memory = json!({"status": {"allocatable": {"memory": "16Gi"}}});
    for (what, refused, change, again) in [
        ("it has the label", &selects, label("disk", "fast"), true),
        ("it has another label", &selects, label("disk", "slow"), false),
        ("it has more processors", &large, cpus("8"), true),
        ("it has more of what is not asked for", &large, memory.clone(), false),
        ("it has a label that nobody asked for", &large, label("x", "y"), false),
        ("it is in a zone", &near, label("zone", "a"), true),
        ("it is elsewhere, by a label that says nothing", &near, label("x", "y"), false),
        ("it has more memory", &near, memory.clone(), false),
        ("it is in a zone to spread over", &even, label("zone", "b"), true),
        ("it has a taint, and no zone", &even, taint.clone(), false),
    ] {
        let tainted = |name: &str| node(name, json!({"metadata": {"labels": {"zone": "z"}}, "spec": taint["spec"]}));
        let full = on("n", asks("full", "2", json!({})));
        let mut c = core(&[node("n", json!({})), tainted("m")], &[full]);
        c.put_pod(pod("p", refused.clone()), Instant::now());
        assert!(matches!(c.step(Instant::now()), Step::Report(_)), "{what}");
        assert!(waits(&mut c), "{what}");
        c.put_node(&node("n", change), Instant::now());
        assert_eq!(c.queue.depth().unschedulable == 0, again, "{what}");
    }
}

#[test]
fn bindings_that_fail() {
    let (mut c, t) = (core(&[node("n", json!({}))], &[]), Instant::now());
    c.put_pod(asks("p", "3", json!({})), t);
    let Step::Bind(p) = c.step(t) else { panic!("pod was not bound") };
    c.put_pod(asks("p", "3", json!({"status": {"phase": "Pending"}})), t);
    assert!(matches!(c.step(t), Step::Idle(_)), "an assumed pod does not wait");
    c.failed(&p, false, t);
    assert_eq!(c.cluster.nodes()[0].requested.cpu, 0, "the assumption is taken back");
    assert!(matches!(c.step(t), Step::Idle(Some(due)) if due == t + s(1)));
    let Step::Bind(p) = c.step(t + s(1)) else { panic!("not tried again") };
    c.failed(&p, true, t);
    assert!(matches!(c.step(t + s(99)), Step::Idle(None)), "gone is gone");
}

/// A pod is rejected and extenders or preemption are asked; then something changes.
#[test]
fn what_happens_while_others_are_asked_is_not_missed() {
    type Happens = fn(&mut Queue, Instant);
    let table: [(&str, Happens, bool); 5] = [
        ("nothing", |_, _| {}, false),
        ("a change of use", |q, t| q.requeue(t, "test", |_, by| by.meets(fit())), true),
        ("another one", |q, t| q.requeue(t, "test", |_, by| by.meets(only("InterPodAffinity"))), false),
        ("its node changes", |q, t| q.wake("a", "test", t), true),
        ("it changes itself", |q, t| q.put(pod("a", json!({"metadata": {"labels": {"x": "y"}}})), false, t), true),
    ];
    for (what, happens, again) in table {
        let (mut q, t) = (Queue::default(), Instant::now());
        q.put(pod("a", json!({})), false, t);
        q.pop(t);
        q.ask_others("a", fit());
        happens(&mut q, t);
        q.refuse("a", fit(), t);
        assert_eq!((q.depth().backoff, q.depth().unschedulable), (again.into(), (!again).into()), "{what}");
        assert_eq!(popped(&mut q, t + s(1)).is_some(), again, "{what}");
    }
}
