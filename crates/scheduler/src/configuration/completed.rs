//! Writes a configuration with all defaults filled in (`--write-config-to`), in upstream's format.
use serde_json::{Map, Value, json};

use super::{API_VERSION, KIND, POINTS};

/// The plugins of the default profile in upstream's order, with their weights.
const PLUGINS: &[(&str, u8)] = &[
    ("SchedulingGates", 0),
    ("PrioritySort", 0),
    ("NodeUnschedulable", 0),
    ("NodeName", 0),
    ("TaintToleration", 3),
    ("NodeAffinity", 2),
    ("NodePorts", 0),
    ("NodeResourcesFit", 1),
    ("VolumeRestrictions", 0),
    ("NodeVolumeLimits", 0),
    ("VolumeBinding", 0),
    ("VolumeZone", 0),
    ("PodTopologySpread", 2),
    ("InterPodAffinity", 2),
    ("DynamicResources", 2),
    ("DefaultPreemption", 0),
    ("NodeResourcesBalancedAllocation", 1),
    ("ImageLocality", 1),
    ("DefaultBinder", 0),
    ("NodeDeclaredFeatures", 0),
];

/// Merges a configuration into the defaults, member by member. Lists are replaced.
fn over(mut usual: Value, said: &Value) -> Value {
    match (&mut usual, said) {
        (Value::Object(usual), Value::Object(said)) => {
            for (name, value) in said {
                let below = usual.remove(name).unwrap_or_default();
                usual.insert(name.clone(), over(below, value));
            }
        }
        (_, Value::Null) => {}
        (usual, said) => *usual = said.clone(),
    }
    usual
}

/// The default arguments of all plugins that have arguments, by plugin name.
fn arguments() -> Vec<(&'static str, Value)> {
    let two = json!([{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}]);
    vec![
        ("DefaultPreemption", json!({"minCandidateNodesAbsolute": 100, "minCandidateNodesPercentage": 10})),
        ("DynamicResources", json!({"bindingTimeout": "10m0s", "filterTimeout": "10s"})),
        ("InterPodAffinity", json!({"hardPodAffinityWeight": 1, "ignorePreferredTermsOfExistingPods": false})),
        ("NodeAffinity", json!({})),
        ("NodeResourcesBalancedAllocation", json!({"resources": two.clone()})),
        ("NodeResourcesFit", json!({"scoringStrategy": {"resources": two, "type": "LeastAllocated"}})),
        ("PodTopologySpread", json!({"defaultingType": "System"})),
        ("VolumeBinding", json!({"bindTimeoutSeconds": 600})),
    ]
}

fn profile(said: &Value) -> Value {
    let own = |name: &str| said["pluginConfig"].as_array().into_iter().flatten().find(|e| e["name"] == name);
    let config = arguments().into_iter().map(|(name, args)| {
        let kind = json!({"apiVersion": API_VERSION, "kind": format!("{name}Args")});
        let args = over(args, own(name).map_or(&Value::Null, |e| &e["args"]));
        json!({"name": name, "args": over(kind, &args)})
    });
    let config: Vec<Value> = config.collect();
    let points = POINTS.iter().map(|point| {
        let said = &said["plugins"][*point];
        let value = if *point == "multiPoint" { every_point(said) } else { over(json!({}), &weighed(said)) };
        ((*point).to_owned(), value)
    });
    let points: Map<String, Value> = points.collect();
    let name = said["schedulerName"].as_str().unwrap_or("default-scheduler");
    let mut out = json!({"pluginConfig": config, "plugins": points, "schedulerName": name});
    if !said["percentageOfNodesToScore"].is_null() {
        out["percentageOfNodesToScore"] = said["percentageOfNodesToScore"].clone();
    }
    out
}

/// The plugins of an extension point, each with a weight.
fn weighed(point: &Value) -> Value {
    let mut out = point.clone();
    for list in ["enabled", "disabled"] {
        for entry in out.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if entry["weight"].is_null() {
                entry["weight"] = 0.into();
            }
        }
    }
    out
}

/// The plugins of `multiPoint`: the default plugins that are not disabled, with configured weights, then the other
/// plugins.
fn every_point(said: &Value) -> Value {
    let said = weighed(said);
    let (enabled, disabled) = (said["enabled"].as_array(), said["disabled"].as_array());
    let is_off = |name: &str| disabled.into_iter().flatten().any(|e| e["name"] == name || e["name"] == "*");
    let of = |name: &str| enabled.into_iter().flatten().find(|e| e["name"] == name);
    let usual = PLUGINS.iter().filter(|(name, _)| !is_off(name));
    let usual =
        usual.map(|(name, weight)| of(name).cloned().unwrap_or_else(|| json!({"name": name, "weight": weight})));
    let more = enabled.into_iter().flatten().filter(|e| {
        let name = e["name"].as_str().unwrap_or_default();
        is_off(name) || !PLUGINS.iter().any(|(usual, _)| *usual == name)
    });
    let all: Vec<Value> = usual.chain(more.cloned()).collect();
    let mut out = json!({"enabled": all});
    if let Some(disabled) = disabled {
        out["disabled"] = disabled.clone().into();
    }
    out
}

/// Returns the complete configuration; `said` is the document that was read, or null.
pub fn completed(said: &Value) -> Value {
    let usual = json!({
        "apiVersion": API_VERSION, "kind": KIND,
        "clientConnection": {"acceptContentTypes": "", "burst": 100,
            "contentType": "application/vnd.kubernetes.protobuf", "kubeconfig": "", "qps": 50},
        "enableContentionProfiling": true, "enableProfiling": true,
        "leaderElection": {"leaderElect": true, "leaseDuration": "15s", "renewDeadline": "10s", "resourceLock": "leases",
            "resourceName": "kube-scheduler", "resourceNamespace": "kube-system", "retryPeriod": "2s"},
        "parallelism": 16, "percentageOfNodesToScore": 0, "podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 10,
    });
    let mut out = over(usual, said);
    let profiles: Vec<Value> = said["profiles"].as_array().into_iter().flatten().map(profile).collect();
    out["profiles"] = if profiles.is_empty() { json!([profile(&Value::Null)]) } else { profiles.into() };
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::read;

    #[test]
    fn what_is_written_is_read_again_and_means_the_same() {
        let bare = json!({"apiVersion": API_VERSION, "kind": KIND});
        let own = json!({"apiVersion": API_VERSION, "kind": KIND, "podMaxBackoffSeconds": 30, "profiles": [{
            "schedulerName": "mine",
            "plugins": {"score": {"disabled": [{"name": "ImageLocality"}]},
                "multiPoint": {"enabled": [{"name": "NodeResourcesFit", "weight": 7}]}},
            "pluginConfig": [{"name": "InterPodAffinity", "args": {"hardPodAffinityWeight": 5}}]}]});
        for said in [bare, own.clone()] {
            let whole = completed(&said);
            let again = read(&whole).expect("what is written can be read");
            let before = read(&said).expect("a configuration");
            assert_eq!(format!("{:?}", again.config.profiles), format!("{:?}", before.config.profiles));
            assert_eq!(completed(&whole), whole);
        }
        let whole = completed(&own);
        assert_eq!(whole["profiles"][0]["pluginConfig"][2]["args"]["hardPodAffinityWeight"], 5);
        assert_eq!((&whole["podMaxBackoffSeconds"], &whole["parallelism"]), (&json!(30), &json!(16)));
    }
}
