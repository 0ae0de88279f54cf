//! Which nodes are eligible for a daemon set's pods, and the additions to a pod's spec with which the scheduler binds
//! it to its node. Pure.
use kelson_meta::tree::ensure;
use serde_json::{Value, json};

use crate::shared::toleration::tolerates;
use crate::views::{DaemonNodesView, NodeView, Toleration};

/// Taints that all daemon pods tolerate: key and effect. The last one only applies to pods with the host network.
const TOLERATED: &[(&str, &str)] = &[
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
    ("node.kubernetes.io/network-unavailable", "NoSchedule"),
];

fn tolerated(host_network: bool) -> &'static [(&'static str, &'static str)] {
    &TOLERATED[..TOLERATED.len() - usize::from(!host_network)]
}

/// The eligibility of a node for a daemon set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Whether the node should run a pod.
    pub run: bool,
    /// Whether an existing pod may stay.
    pub stay: bool,
}

/// Returns the eligibility of one node.
pub fn fit(template: &DaemonNodesView, node: &NodeView) -> Fit {
    let labels = &node.metadata.labels;
    let named = template.node_name.is_empty() || template.node_name == node.metadata.name;
    let selected = template.node_selector.iter().all(|(k, v)| labels.get(k) == Some(v));
    let affine =
        template.affinity.node_affinity.required.as_ref().is_none_or(|r| {
            r.matches_with(&node.metadata.name, |key| node.metadata.labels.get(key).map(String::as_str))
        });
    if !(named && selected && affine) {
        return Fit { run: false, stay: false };
    }
    let always: Vec<Toleration> = tolerated(template.host_network).iter().map(|t| exists(t.0, t.1)).collect();
    let untolerated = |effects: &[&str]| {
        let bad = node.spec.taints.iter().filter(|t| effects.contains(&t.effect.as_str()));
        bad.into_iter().any(|taint| !template.tolerations.iter().chain(&always).any(|t| tolerates(t, taint)))
    };
    // An existing pod is removed only because of a `NoExecute` taint.
    Fit { run: !untolerated(&["NoSchedule", "NoExecute"]), stay: !untolerated(&["NoExecute"]) }
}

fn exists(key: &str, effect: &str) -> Toleration {
    Toleration { key: key.into(), operator: "Exists".into(), effect: effect.into(), ..Toleration::default() }
}

/// Adds the tolerations of daemon pods to a pod spec. Existing tolerations of the same taints are replaced.
pub fn add_tolerations(spec: &mut Value) {
    let host_network = spec["hostNetwork"] == true;
    let list = &mut spec["tolerations"];
    if !list.is_array() {
        *list = json!([]);
    }
    let Some(list) = list.as_array_mut() else { return };
    for (key, effect) in tolerated(host_network) {
        let new = json!({"key": key, "operator": "Exists", "effect": effect});
        let same = |t: &&mut Value| {
            t["key"] == *key
                && t["effect"] == *effect
                && t["operator"] == "Exists"
                && t["value"].as_str().is_none_or(str::is_empty)
        };
        match list.iter_mut().find(same) {
            Some(there) => *there = new,
            None => list.push(new),
        }
    }
}

/// Binds a pod spec to one node with required node affinity to its name. This replaces the template's terms, which were
/// used to choose the node.
pub fn pin(spec: &mut Value, node: &str) {
    let terms = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]);
    let required = ensure(spec, "affinity")
        .and_then(|a| ensure(a, "nodeAffinity"))
        .and_then(|n| ensure(n, "requiredDuringSchedulingIgnoredDuringExecution"));
    if let Some(required) = required {
        required["nodeSelectorTerms"] = terms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_nodes() {
        let taint = |key: &str, effect: &str| json!([{"key": key, "effect": effect}]);
        let (yes, no, only_stay) = ((true, true), (false, false), (false, true));
        let rows = [
            ("any", json!({}), json!([]), yes),
            ("named", json!({"nodeName": "a"}), json!([]), yes),
            ("another named", json!({"nodeName": "b"}), json!([]), no),
            ("label", json!({"nodeSelector": {"disk": "ssd"}}), json!([]), yes),
            ("other label", json!({"nodeSelector": {"disk": "hdd"}}), json!([]), no),
            (
                "affinity",
                json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                    {"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]}}}}),
                json!([]),
                no,
            ),
            ("tainted", json!({}), taint("x", "NoSchedule"), only_stay),
            ("driven out", json!({}), taint("x", "NoExecute"), no),
            ("only disliked", json!({}), taint("x", "PreferNoSchedule"), yes),
            ("tolerant", json!({"tolerations": [{"key": "x", "operator": "Exists"}]}), taint("x", "NoExecute"), yes),
            ("cordoned", json!({}), taint("node.kubernetes.io/unschedulable", "NoSchedule"), yes),
            ("silent", json!({}), taint("node.kubernetes.io/unreachable", "NoExecute"), yes),
            ("no network", json!({}), taint("node.kubernetes.io/network-unavailable", "NoSchedule"), only_stay),
            (
                "needs none",
                json!({"hostNetwork": true}),
                taint("node.kubernetes.io/network-unavailable", "NoSchedule"),
                yes,
            ),
        ];
        for (what, template, taints, (run, stay)) in rows {
            let node = json!({"metadata": {"name": "a", "labels": {"disk": "ssd"}}, "spec": {"taints": taints}});
            let node: NodeView = serde_json::from_value(node).unwrap();
            let template: DaemonNodesView = serde_json::from_value(template).unwrap();
            assert_eq!(fit(&template, &node), Fit { run, stay }, "{what}");
        }
    }

    #[test]
    fn what_a_pod_gets() {
        let mut spec = json!({"tolerations": [{"key": "x", "operator": "Exists"},
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]});
        add_tolerations(&mut spec);
        let all = spec["tolerations"].as_array().unwrap();
        assert_eq!(all.len(), 7, "{spec}");
        assert!(all[1].get("tolerationSeconds").is_none());
        let mut spec = json!({"hostNetwork": true, "affinity": {"podAffinity": {"x": 1}, "nodeAffinity": {
            "preferred": [], "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"a": 1}, {"b": 2}]}}}});
        add_tolerations(&mut spec);
        assert_eq!(spec["tolerations"].as_array().unwrap().len(), 7);
        pin(&mut spec, "n1");
        assert_eq!(
            spec["affinity"],
            json!({"podAffinity": {"x": 1}, "nodeAffinity": {"preferred": [], "requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}}})
        );
    }
}
