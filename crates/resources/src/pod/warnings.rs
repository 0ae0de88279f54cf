//! Warnings about pods and pod templates (upstream `pkg/api/pod/warnings.go`).
use std::collections::{BTreeMap, BTreeSet};

use kelson_meta::{Quantity, is_dns1123_label};
use serde_json::Value;

use crate::tree::{entries, int0, items, present, same, text};

const DEPRECATED_VOLUMES: &[(&str, &str)] = &[
    ("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];
const DEPRECATED_ANNOTATIONS: &[(&str, &str)] = &[
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    ("security.alpha.kubernetes.io/sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
    ("security.alpha.kubernetes.io/unsafe-sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
];
const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Returns warnings on creating a pod.
pub fn pod(obj: &Value) -> Vec<String> {
    let mut out = Vec::new();
    if let Err(why) = is_dns1123_label(text(&obj["metadata"]["name"])) {
        out.push(format!(
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [{}]",
            why.join(" ")
        ));
    }
    spec("", &obj["spec"], &obj["metadata"], &mut out);
    out
}

/// Returns warnings about a pod template at `spec.template`, when it is new or changed.
pub fn template(new: &Value, old: Option<&Value>) -> Vec<String> {
    template_at("spec.template.", new, old)
}

/// Returns warnings about a template at any path, which ends in a dot.
pub fn template_at(at: &str, new: &Value, old: Option<&Value>) -> Vec<String> {
    let mut out = Vec::new();
    if old.is_none_or(|o| !same(o, new)) {
        spec(at, &new["spec"], &new["metadata"], &mut out);
    }
    out
}

fn spec(at: &str, s: &Value, meta: &Value, out: &mut Vec<String>) {
    out.extend(super::apparmor::warnings(at, s, meta));
    for (k, why) in DEPRECATED_ANNOTATIONS {
        if meta["annotations"].get(*k).is_some() {
            out.push(format!("{at}metadata.annotations[{k}]: {why}"));
        }
    }
    for (k, _) in entries(&s["nodeSelector"]) {
        if let Some(why) = deprecated_label(k) {
            out.push(format!("{at}spec.nodeSelector[{k}]: {why}"));
        }
    }
    for (i, c) in items(&s["topologySpreadConstraints"]).iter().enumerate() {
        let key = text(&c["topologyKey"]);
        if let Some(why) = deprecated_label(key) {
            out.push(format!("{at}spec.topologySpreadConstraints[{i}].topologyKey: {key} is {why}"));
        }
        if !present(&c["labelSelector"]) {
            out.push(format!("{at}spec.topologySpreadConstraints[{i}].labelSelector: {NULL_SELECTOR}"));
        }
    }
    for (i, v) in items(&s["volumes"]).iter().enumerate() {
        // A volume has two members, and there are nine deprecated types.
        let names = |kind: &str| entries(v).any(|(name, _)| *name == *kind);
        for (kind, why) in DEPRECATED_VOLUMES.iter().filter(|(k, _)| names(k) && present(&v[*k])) {
            out.push(format!("{at}spec.volumes[{i}].{kind}: {why}"));
        }
    }
    duplicates(at, "hostAliases", "ip", s, out);
    duplicates(at, "imagePullSecrets", "name", s, out);
    for (i, p) in items(&s["imagePullSecrets"]).iter().enumerate() {
        if text(&p["name"]).is_empty() {
            out.push(format!("{at}spec.imagePullSecrets[{i}].name: invalid empty name \"\""));
        }
    }
    containers(at, s, out);
    ports(at, s, out);
    if int0(&s["terminationGracePeriodSeconds"]) < 0 {
        out.push(format!(
            "{at}spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"
        ));
    }
    affinity(at, s, out);
}

const NULL_SELECTOR: &str = "a null labelSelector results in matching no pod";

fn affinity(at: &str, s: &Value, out: &mut Vec<String>) {
    for kind in ["podAffinity", "podAntiAffinity"] {
        for (when, inner) in [
            ("requiredDuringSchedulingIgnoredDuringExecution", ""),
            ("preferredDuringSchedulingIgnoredDuringExecution", ".podAffinityTerm"),
        ] {
            for (i, t) in items(&s["affinity"][kind][when]).iter().enumerate() {
                let term = if inner.is_empty() { t } else { &t["podAffinityTerm"] };
                if !present(&term["labelSelector"]) {
                    out.push(format!("{at}spec.affinity.{kind}.{when}[{i}]{inner}.labelSelector: {NULL_SELECTOR}"));
                }
            }
        }
    }
}

fn deprecated_label(key: &str) -> Option<&'static str> {
    Some(match key {
        "failure-domain.beta.kubernetes.io/zone" => {
            "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead"
        }
        "failure-domain.beta.kubernetes.io/region" => {
            "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead"
        }
        "beta.kubernetes.io/instance-type" => {
            "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead"
        }
        "beta.kubernetes.io/arch" => "deprecated since v1.14; use \"kubernetes.io/arch\" instead",
        "beta.kubernetes.io/os" => "deprecated since v1.14; use \"kubernetes.io/os\" instead",
        _ => return None,
    })
}

fn duplicates(at: &str, list: &str, key: &str, s: &Value, out: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for (i, x) in items(&s[list]).iter().enumerate() {
        let v = text(&x[key]);
        if !seen.insert(v) {
            out.push(format!("{at}spec.{list}[{i}].{key}: duplicate {key} {v:?}"));
        }
    }
}

fn containers(at: &str, s: &Value, out: &mut Vec<String>) {
    for list in LISTS {
        for (i, c) in items(&s[list]).iter().enumerate() {
            let p = format!("{at}spec.{list}[{i}]");
            for which in ["limits", "requests"] {
                for k in ["memory", "ephemeral-storage"] {
                    let v = text(&c["resources"][which][k]);
                    if let Ok(q) = v.parse::<Quantity>()
                        && q.milli_value() % 1000 != 0
                    {
                        out.push(format!(
                            "{p}.resources.{which}[{k}]: fractional byte value {v:?} is invalid, must be an integer"
                        ));
                    }
                }
            }
            let mut names = BTreeSet::new();
            for (j, e) in items(&c["env"]).iter().enumerate() {
                let (name, value) = (text(&e["name"]), text(&e["value"]));
                let own = format!("$({name})");
                let hides = present(&e["valueFrom"]) || value == own || !value.contains(&own);
                if !names.insert(name) && hides {
                    out.push(format!(
                        "{p}.env[{j}]: hides previous definition of {name:?}, which may be dropped when using apply"
                    ));
                }
            }
        }
    }
}

fn ports(at: &str, s: &Value, out: &mut Vec<String>) {
    let mut seen: BTreeMap<(i64, &str), Vec<(String, &Value)>> = BTreeMap::new();
    let mut names: BTreeMap<&str, String> = BTreeMap::new();
    let mut named = Vec::new();
    for list in LISTS {
        for (i, c) in items(&s[list]).iter().enumerate() {
            for (j, port) in items(&c["ports"]).iter().enumerate() {
                let p = format!("{at}spec.{list}[{i}].ports[{j}]");
                let (ip, host) = (text(&port["hostIP"]), int0(&port["hostPort"]));
                if !ip.is_empty() && host == 0 {
                    out.push(format!("{p}: hostIP set without hostPort: {port}"));
                }
                let others = seen.entry((int0(&port["containerPort"]), text(&port["protocol"]))).or_default();
                for (other_path, other) in others.iter() {
                    let (other_ip, other_host) = (text(&other["hostIP"]), int0(&other["hostPort"]));
                    let how = if ip == other_ip && host == other_host {
                        "duplicate port definition"
                    } else if host == 0 || other_host == 0 {
                        "overlapping port definition"
                    } else if host == other_host && ip.is_empty() != other_ip.is_empty() {
                        "dangerously ambiguous port definition"
                    } else {
                        continue;
                    };
                    out.push(format!("{p}: {how} with {other_path}"));
                }
                others.push((p.clone(), port));
                let name = text(&port["name"]);
                if name.is_empty() {
                    continue;
                }
                match names.get(name) {
                    Some(other) => named.push(format!(
                        "{p}: duplicate port name {name:?} with {other}, services and probes that select ports by name will use {other}"
                    )),
                    None => {
                        names.insert(name, p);
                    }
                }
            }
        }
    }
    out.append(&mut named);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn hidden_variables_and_ports() {
        let p = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c",
            "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "$(A)2"}, {"name": "A", "value": "3"}],
            "ports": [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "TCP"}]}]}});
        assert_eq!(
            pod(&p),
            [
                "spec.containers[0].env[2]: hides previous definition of \"A\", which may be dropped when using apply",
                "spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]",
            ]
        );
    }
}
