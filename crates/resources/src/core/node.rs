//! Nodes: taints, pod CIDRs set once, table with roles and conditions.
use std::collections::BTreeSet;
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::{is_label_value, is_qualified_name};
use serde_json::{Value, json};

use crate::addresses;
use crate::column::{AGE, Column, NAME};
use crate::options::{Connects, Options, columns, texts};
use crate::path::{Errors, Path};
use crate::pod::{self, canonical_quantities};
use crate::strategy::{Context, Strategy, base_status_update, base_update, field_text};
use crate::table::{UNKNOWN, age, name, or_none};
use crate::tree::{entries, flag, items, present, remove, set, text};

/// The maximum length of `status.declaredFeatures[]` in bytes.
const FEATURE_NAME_MAX: usize = 253;

/// The strategy of nodes.
pub struct Nodes;

static OPTIONS: LazyLock<Options> = LazyLock::new(|| Options {
    connects: Connects::Node,
    columns: columns![
        NAME,
        Column::text("Status", "Readiness, and whether pods may be scheduled."),
        Column::text("Roles", "Roles of the node, from its labels."),
        AGE,
        Column::text("Version", "Version of the kubelet."),
        Column::text("Internal-IP", "First internal address.").wide(),
        Column::text("External-IP", "First external address.").wide(),
        Column::text("OS-Image", "Operating system.").wide(),
        Column::text("Kernel-Version", "Kernel and architecture.").wide(),
        Column::text("Container-Runtime", "Container runtime and its version.").wide(),
    ],
    fields: texts!["spec.unschedulable"],
    ..Options::of("", "nodes")
});

/// Fields of dynamic kubelet configuration: new objects do not have them, and older ones keep them.
const NO_LONGER_USED: [(&str, &str); 2] = [("spec", "configSource"), ("status", "config")];

fn drop_unused(new: &mut Value, old: &Value, (part, field): (&str, &str)) {
    if !present(&old[part][field])
        && let Some(part) = new.get_mut(part)
    {
        remove(part, field);
    }
}

impl Strategy for Nodes {
    fn options(&self) -> &Options {
        &OPTIONS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        crate::tree::ensure(obj, "spec");
        let Some(status) = crate::tree::ensure(obj, "status") else { return };
        for k in ["capacity", "allocatable"] {
            if let Some(list) = status.get_mut(k) {
                canonical_quantities(list);
            }
        }
        if !present(&status["allocatable"]) && present(&status["capacity"]) {
            let all = status["capacity"].clone();
            set(status, "allocatable", all);
        }
        // The published type always contains this endpoint and these facts, empty or not.
        if let Some(d) = crate::tree::ensure(status, "daemonEndpoints")
            && let Some(k) = crate::tree::ensure(d, "kubeletEndpoint")
        {
            crate::tree::default_to(k, "Port", 0);
        }
        if let Some(info) = crate::tree::ensure(status, "nodeInfo") {
            for f in [
                "machineID",
                "systemUUID",
                "bootID",
                "kernelVersion",
                "osImage",
                "containerRuntimeVersion",
                "kubeletVersion",
                "kubeProxyVersion",
                "operatingSystem",
                "architecture",
            ] {
                crate::tree::default_to(info, f, "");
            }
        }
        if let Some(spec) = obj.get_mut("spec") {
            let (one, many) = (text(&spec["podCIDR"]).to_owned(), items(&spec["podCIDRs"]).first().cloned());
            match many {
                // If the two differ, the older field is used, since older clients only know that one.
                Some(first) if !one.is_empty() && first != one.as_str() => set(spec, "podCIDRs", vec![json!(one)]),
                None if !one.is_empty() => set(spec, "podCIDRs", vec![json!(one)]),
                Some(first) => set(spec, "podCIDR", first),
                None => {}
            }
        }
    }
    fn prepare_create(&self, _cx: &Context<'_>, obj: &mut Value) {
        // A kubelet registers with its status, so nothing of it is cleared.
        for (part, field) in NO_LONGER_USED {
            if let Some(part) = obj.get_mut(part) {
                remove(part, field);
            }
        }
    }
    fn prepare_update(&self, _cx: &Context<'_>, new: &mut Value, old: &Value) {
        base_update(&OPTIONS, new, old);
        drop_unused(new, old, NO_LONGER_USED[0]);
    }
    fn prepare_subresource_update(&self, _cx: &Context<'_>, _subresource: &str, new: &mut Value, old: &Value) {
        base_status_update(new, old);
        drop_unused(new, old, NO_LONGER_USED[1]);
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let meta = Path::new("metadata");
        taints(&obj["spec"]["taints"], &meta.child("taints"), e);
        resources(&obj["status"], e);
        declared_features(&obj["status"], e);
        let spec = Path::new("spec");
        let p = spec.child("podCIDRs");
        let cidrs = items(&obj["spec"]["podCIDRs"]);
        for (i, c) in cidrs.iter().enumerate() {
            addresses::cidr(text(c), &[], &p.index(i), e);
        }
        if cidrs.len() > 1 {
            let families: BTreeSet<bool> =
                cidrs.iter().filter_map(|c| addresses::parse_cidr(text(c))).map(|(ip, _)| ip.is_ipv4()).collect();
            if cidrs.iter().any(|c| addresses::parse_cidr(text(c)).is_none()) {
                e.internal(&p, "failed to check for dual stack: an entry is not a CIDR");
            }
            if families.len() != 2 || cidrs.len() > 2 {
                e.invalid(&p, cidrs, "may specify no more than one CIDR for each IP family");
            }
        }
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        self.check(new, e);
        check_node_update(new, old, e);
    }
    fn check_subresource_update(&self, _subresource: &str, new: &Value, old: &Value, e: &mut Errors) {
        check_node_update(new, old, e);
        let meta = Path::new("metadata");
        taints(&new["spec"]["taints"], &meta.child("taints"), e);
        resources(&new["status"], e);
        declared_features(&new["status"], e);
    }
    fn field_value(&self, obj: &Value, field: &str) -> String {
        let value = field_text(obj, field);
        if field == "spec.unschedulable" && value.is_empty() { "false".to_owned() } else { value }
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let info = &obj["status"]["nodeInfo"];
        let known = |f: &str| {
            let s = text(&info[f]);
            if s.is_empty() { UNKNOWN.to_owned() } else { s.to_owned() }
        };
        let mut kernel = known("kernelVersion");
        let architecture = text(&info["architecture"]);
        if !architecture.is_empty() {
            kernel = format!("{kernel} ({architecture})");
        }
        vec![
            name(obj),
            json!(status(obj)),
            or_none(&roles(obj)),
            age(obj, now),
            json!(text(&info["kubeletVersion"])),
            or_none(address(obj, "InternalIP")),
            or_none(address(obj, "ExternalIP")),
            json!(known("osImage")),
            json!(kernel),
            json!(known("containerRuntimeVersion")),
        ]
    }
}

fn check_node_update(new: &Value, old: &Value, e: &mut Errors) {
    let status = Path::new("status");
    let list = status.child("addresses");
    let mut seen = Vec::new();
    for (i, a) in items(&new["status"]["addresses"]).iter().enumerate() {
        let key = (text(&a["type"]), text(&a["address"]));
        if seen.contains(&key) {
            e.duplicate(&list.index(i), a);
        }
        seen.push(key);
    }
    let spec = Path::new("spec");
    let (was, now) = (items(&old["spec"]["podCIDRs"]), items(&new["spec"]["podCIDRs"]));
    if !was.is_empty() && was != now {
        e.forbidden(&spec.child("podCIDRs"), "node updates may not change podCIDR except from \"\" to valid");
    }
    let provider = text(&old["spec"]["providerID"]);
    if !provider.is_empty() && provider != text(&new["spec"]["providerID"]) {
        e.forbidden(&spec.child("providerID"), "node updates may not change providerID except from \"\" to valid");
    }
    if text(&new["spec"]["externalID"]) != text(&old["spec"]["externalID"]) {
        e.forbidden(&spec.child("externalID"), "may not be updated");
    }
}

fn resources(status: &Value, e: &mut Errors) {
    let root = Path::new("status");
    for f in ["capacity", "allocatable"] {
        let p = root.child(f);
        for (k, v) in entries(&status[f]) {
            pod::resource_value(k, v, &p.child(k), e);
        }
    }
}

/// Validates the features of a node, which must be sorted by name (KEP-5328).
fn declared_features(status: &Value, e: &mut Errors) {
    let root = Path::new("status");
    let p = root.child("declaredFeatures");
    let features: Vec<&str> = items(&status["declaredFeatures"]).iter().map(text).collect();
    for (i, feature) in features.iter().enumerate() {
        if !is_feature_name(feature) {
            e.invalid(&p.index(i), feature, "must be a name such as MyFeature or MyFeature/mySubFeature");
        }
        match features.get(i + 1) {
            Some(next) if next == feature => e.duplicate(&p.index(i + 1), next),
            Some(next) if next < feature => e.invalid(&p.index(i + 1), next, "list must be sorted alphabetically"),
            _ => {}
        }
    }
}

fn is_feature_name(name: &str) -> bool {
    let starts = |part: &str, with: fn(&u8) -> bool| part.as_bytes().first().is_some_and(with);
    name.len() <= FEATURE_NAME_MAX
        && starts(name, u8::is_ascii_uppercase)
        && name
            .split('/')
            .all(|part| starts(part, u8::is_ascii_alphabetic) && part.bytes().all(|c| c.is_ascii_alphanumeric()))
}

fn taints(list: &Value, p: &Path<'_>, e: &mut Errors) {
    const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];
    let mut seen = BTreeSet::new();
    for (i, t) in items(list).iter().enumerate() {
        let at = p.index(i);
        let (key, value, effect) = (text(&t["key"]), text(&t["value"]), text(&t["effect"]));
        e.invalid_each(&at.child("key"), key, is_qualified_name(key));
        if let Err(why) = is_label_value(value) {
            e.invalid(&at.child("value"), value, why.join(";"));
        }
        if effect.is_empty() {
            e.required(&at.child("effect"), "");
        } else if !EFFECTS.contains(&effect) {
            e.not_supported(&at.child("effect"), effect, EFFECTS);
        }
        if !seen.insert((key, effect)) {
            e.duplicate(&at, t);
        }
    }
}

fn status(obj: &Value) -> String {
    let ready = items(&obj["status"]["conditions"]).iter().find(|c| text(&c["type"]) == "Ready");
    let base = match ready.map(|c| text(&c["status"])) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    if flag(&obj["spec"]["unschedulable"]) { format!("{base},SchedulingDisabled") } else { base.to_owned() }
}

fn roles(obj: &Value) -> String {
    let roles: BTreeSet<&str> = entries(&obj["metadata"]["labels"])
        .filter_map(|(k, v)| match k.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if k == "kubernetes.io/role" => Some(text(v)),
            None => None,
        })
        .filter(|r| !r.is_empty())
        .collect();
    roles.into_iter().collect::<Vec<_>>().join(",")
}

fn address<'a>(obj: &'a Value, kind: &str) -> &'a str {
    items(&obj["status"]["addresses"]).iter().find(|a| text(&a["type"]) == kind).map_or("", |a| text(&a["address"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        let n = json!({"metadata": {"name": "n", "labels": {"node-role.kubernetes.io/control-plane": ""}},
            "spec": {"unschedulable": true},
            "status": {"conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "nodeInfo": {"kubeletVersion": "v1", "kernelVersion": "6", "architecture": "amd64"}}});
        let got = Nodes.row(&n, Timestamp::UNIX_EPOCH);
        let got: Vec<&str> = got.iter().map(text).collect();
        assert_eq!(
            got,
            [
                "n",
                "Ready,SchedulingDisabled",
                "control-plane",
                "<unknown>",
                "v1",
                "10.0.0.1",
                "<none>",
                "<unknown>",
                "6 (amd64)",
                "<unknown>"
            ]
        );
    }

    #[test]
    fn cidr_once() {
        let mut e = Errors::new();
        let old = json!({"spec": {"podCIDRs": ["10.0.0.0/24"]}});
        Nodes.check_update(&json!({"spec": {"podCIDRs": ["10.0.1.0/24"]}}), &old, &mut e);
        assert_eq!(
            e.finish().to_string(),
            "spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid"
        );
    }
}
