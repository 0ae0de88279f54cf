//! Arguments of plugins that apply to every pod: added node affinity, default spreading, and balanced resources.
use std::sync::Arc;

use kelson_meta::{LabelSelector, ObjectKey};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::profiles::{by, document};
use super::{decide, node, on, pod, useless};
use crate::configuration;
use crate::core::Core;
use crate::view::Pod;

fn reported(name: &str, args: &Value) -> Value {
    json!({"profiles": [{"pluginConfig": [{"name": name, "args": args}]}]})
}

/// A scheduler in which only this plugin scores.
pub fn alone(name: &str, args: &Value) -> Core {
    let plugins = json!({"score": {"disabled": [{"name": "*"}], "enabled": [{"name": name}]}});
    by(json!({"profiles": [{"pluginConfig": [{"name": name, "args": args}], "plugins": plugins}]}))
}

fn labelled(c: &mut Core, name: &str, labels: &Value) {
    c.put_node(&node(name, json!({"metadata": {"labels": labels}})), Instant::now());
}

#[test]
fn affinity_that_is_enforced() {
    let fast = json!({"matchExpressions": [{"key": "disk", "operator": "In", "values": ["fast"]}]});
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [fast]}});
    let mut c = by(reported("NodeAffinity", &json!({"addedAffinity": required})));
    let why = "3 node(s) didn't match scheduler-enforced node affinity";
    let tail = "3 Preemption is not helpful for scheduling";
    assert_eq!(decide(&mut c, pod("p", json!({}))), useless(why, 3, tail));
    labelled(&mut c, "c", &json!({"disk": "fast"}));
    assert_eq!(decide(&mut c, pod("q", json!({}))), Ok("c".into()));
    let elsewhere = json!({"spec": {"nodeSelector": {"disk": "slow"}}});
    let why = decide(&mut c, pod("r", elsewhere)).unwrap_err();
    assert!(why.contains("1 node(s) didn't match Pod's node affinity/selector, 2 node(s) didn't match sched"), "{why}");
}

#[test]
fn affinity_that_is_preferred_for_all() {
    let fast = json!({"matchExpressions": [{"key": "disk", "operator": "Exists"}]});
    let preferred = json!([{"weight": 5, "preference": fast}]);
    let added = json!({"addedAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}});
    let mut c = alone("NodeAffinity", &added);
    labelled(&mut c, "b", &json!({"disk": "any"}));
    assert_eq!(decide(&mut c, pod("p", json!({}))), Ok("b".into()));
}

fn member(name: &str) -> Arc<Pod> {
    pod(
        name,
        json!({"metadata": {"labels": {"app": "x"}, "ownerReferences": [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "x", "controller": true}]}}),
    )
}

/// Pods of a set are on `a` and `b`; `c` has none of them.
fn with_set(defaulting: &Value) -> Core {
    let mut c = by(reported("PodTopologySpread", defaulting));
    let labels = [("app".to_owned(), "x".to_owned())].into_iter().collect();
    let selector = LabelSelector::from_map(&labels);
    c.cluster.workloads.put_owner("ReplicaSet", &ObjectKey::new("default", "x"), Some(selector));
    ["a", "b"].into_iter().for_each(|n| c.put_pod(on(n, member(&format!("on-{n}"))), Instant::now()));
    c
}

#[test]
fn pods_that_say_nothing_are_spread_as_is_configured() {
    let hosts = json!({"topologyKey": "kubernetes.io/hostname", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"});
    let mut c = with_set(&json!({"defaultConstraints": [hosts], "defaultingType": "List"}));
    assert_eq!(decide(&mut c, member("p")), Ok("c".into()));
    let cordoned = json!({"spec": {"unschedulable": true}});
    c.put_node(&node("c", cordoned), Instant::now());
    c.remove_pod(&on("c", member("p")), Instant::now());
    let why = decide(&mut c, member("q")).unwrap_err();
    assert!(why.contains("2 node(s) didn't match pod topology spread constraints"), "{why}");
    // A pod that nothing selects is not spread.
    assert!(decide(&mut c, pod("single", json!({"metadata": {"labels": {"app": "y"}}}))).is_ok());
    // With an empty list no pod is spread.
    let mut c = with_set(&json!({"defaultConstraints": [], "defaultingType": "List"}));
    c.put_node(&node("c", json!({"spec": {"unschedulable": true}})), Instant::now());
    assert!(decide(&mut c, member("p")).is_ok());
}

#[test]
fn other_resources_can_be_what_is_used_evenly() {
    let with = |gpu: &str| json!({"status": {"allocatable": {"example.com/gpu": gpu}}});
    let asks = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2", "example.com/gpu": "1"}}}]}});
    let resources = json!([{"name": "cpu", "weight": 1}, {"name": "example.com/gpu", "weight": 1}]);
    let mut c = alone("NodeResourcesBalancedAllocation", &json!({"resources": resources}));
    // Half of the CPUs and half of the devices on `a`, an eighth of them on the others.
    [("a", "2"), ("b", "8"), ("c", "8")]
        .into_iter()
        .for_each(|(n, gpu)| c.put_node(&node(n, with(gpu)), Instant::now()));
    assert_eq!(decide(&mut c, pod("p", asks)), Ok("a".into()));
}

#[test]
fn faults() {
    let affinity = |term: Value| json!({"addedAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}});
    let spread = |c: Value| json!({"defaultConstraints": [c], "defaultingType": "List"});
    let hosts = json!({"topologyKey": "host", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"});
    let term = "addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]";
    for (name, args, want) in [
        (
            "NodeAffinity",
            affinity(json!({"matchExpressions": [{"key": "a", "operator": "Near", "values": ["b"]}]})),
            format!("{term}.matchExpressions[0].operator: Invalid value: \"Near\": not a valid selector operator"),
        ),
        (
            "NodeAffinity",
            affinity(json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a", "b"]}]})),
            format!("{term}.matchFields[0].values: Required value: must have one element"),
        ),
        (
            "PodTopologySpread",
            json!({"defaultConstraints": [hosts]}),
            "defaultingType: Invalid value: \"System\": when .defaultConstraints are not empty".into(),
        ),
        (
            "PodTopologySpread",
            json!({"defaultingType": "Some"}),
            "defaultingType: Unsupported value: \"Some\": supported values: \"List\", \"System\"".into(),
        ),
        (
            "PodTopologySpread",
            spread(json!({"topologyKey": "host", "maxSkew": 0, "whenUnsatisfiable": "ScheduleAnyway"})),
            "defaultConstraints[0].maxSkew: Invalid value: 0: not in valid range (0, inf)".into(),
        ),
        (
            "NodeResourcesBalancedAllocation",
            json!({"resources": [{"name": "cpu", "weight": 2}]}),
            "resources[0].weight: Invalid value: 2: must be 1".into(),
        ),
    ] {
        let found = configuration::read(&document(reported(name, &args))).unwrap_err().0;
        assert_eq!(found, [format!("profiles[0].pluginConfig[0].args.{want}")]);
    }
}
