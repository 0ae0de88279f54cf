//! Pods: creation, and updates of the main resource and of `status`, `ephemeralcontainers`, `resize`.
use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::qos::qos_class;
use super::{apparmor, defaults, table};
use crate::names::NameRule;
use crate::options::{Connects, Deletion, Options, texts};
use crate::parts::Parts;
use crate::path::Errors;
use crate::strategy::{Context, Strategy, base_status_update, base_update, bump_generation, field_text};
use crate::tree::{int0, items, items_mut, present, remove, restore, set, text};

/// The strategy of pods.
pub struct Pods;

static OPTIONS: LazyLock<Options> = LazyLock::new(|| Options {
    generation: true,
    name: NameRule::Subdomain,
    deletion: Deletion::Graceful,
    connects: Connects::Pod,
    columns: table::COLUMNS.into(),
    fields: texts![
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "status.nominatedNodeName",
    ],
    delete_returns_object: true,
    ..Options::of("", "pods")
});

impl Strategy for Pods {
    fn options(&self) -> &Options {
        &OPTIONS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        defaults::pod(obj);
        if let Some(status) = obj.get_mut("status") {
            super::status::agree(status);
        }
        for list in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
            let Some(status) = obj.get_mut("status") else { break };
            for c in items_mut(status, list) {
                if let Some(a) = c.get_mut("allocatedResources") {
                    defaults::canonical_quantities(a);
                }
                if let Some(r) = c.get_mut("resources") {
                    defaults::canonical_resources(r);
                }
            }
        }
    }
    fn prepare_create(&self, _cx: &Context<'_>, obj: &mut Value) {
        let mut status = json!({"phase": "Pending", "qosClass": qos_class(&obj["spec"])});
        if !items(&obj["spec"]["schedulingGates"]).is_empty() {
            status["conditions"] = json!([{
                "type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "lastProbeTime": null,
                "lastTransitionTime": null,
                "message": "Scheduling is blocked due to non-empty scheduling gates"}]);
        }
        set(obj, "status", status);
        if let Some(meta) = obj.get_mut("metadata") {
            set(meta, "generation", 1);
        }
        merge_match_label_keys(obj);
        apparmor::carry(obj);
    }
    fn check_create(&self, obj: &Value, e: &mut Errors) {
        super::validate::pod_create(obj, e);
    }
    fn prepare_update(&self, _cx: &Context<'_>, new: &mut Value, old: &Value) {
        base_update(&OPTIONS, new, old);
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        super::update::check(new, old, e);
    }

    fn prepare_subresource_update(&self, _cx: &Context<'_>, subresource: &str, new: &mut Value, old: &Value) {
        match subresource {
            "ephemeralcontainers" => {
                let ephemeral = new["spec"]["ephemeralContainers"].clone();
                super::update::keep_all_but(new, old);
                if let Some(spec) = new.get_mut("spec") {
                    if present(&ephemeral) {
                        set(spec, "ephemeralContainers", ephemeral);
                    } else {
                        remove(spec, "ephemeralContainers");
                    }
                }
                bump_generation(&OPTIONS, new, old);
            }
            "resize" => {
                super::resize::prepare(new, old);
                bump_generation(&OPTIONS, new, old);
            }
            _ => prepare_status(new, old),
        }
    }
    fn check_subresource_update(&self, subresource: &str, new: &Value, old: &Value, e: &mut Errors) {
        match subresource {
            "ephemeralcontainers" => super::update::check_ephemeral(new, old, e),
            "resize" => super::resize::check(new, old, e),
            _ => super::status::check(new, old, e),
        }
    }
    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        // As upstream, only creation returns warnings, since controllers and kubelets update pods.
        if old.is_some() { Vec::new() } else { super::warnings::pod(new) }
    }
    fn field_value(&self, obj: &Value, field: &str) -> String {
        match field {
            "status.podIPs" => {
                let ips: Vec<&str> = items(&obj["status"]["podIPs"]).iter().map(|i| text(&i["ip"])).collect();
                ips.join(",")
            }
            "spec.hostNetwork" => crate::tree::flag(&obj["spec"]["hostNetwork"]).to_string(),
            _ => field_text(obj, field),
        }
    }
    fn row_conditions(&self, obj: &Value) -> Vec<Value> {
        table::row_conditions(obj)
    }
    fn row_parts(&self) -> Parts {
        table::PARTS
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        table::row(obj, now)
    }
}

fn prepare_status(new: &mut Value, old: &Value) {
    base_status_update(new, old);
    if let Some(meta) = new.get_mut("metadata") {
        // Kubelets once corrupted owner references through status.
        restore(meta, &old["metadata"], "ownerReferences");
        restore(meta, &old["metadata"], "deletionTimestamp");
    }
    let Some(status) = new.get_mut("status") else { return };
    if text(&status["qosClass"]).is_empty() {
        restore(status, &old["status"], "qosClass");
    }
    if int0(&status["observedGeneration"]) == 0 {
        restore(status, &old["status"], "observedGeneration");
    }
    let before = items(&old["status"]["conditions"]);
    for c in items_mut(status, "conditions") {
        if int0(&c["observedGeneration"]) == 0
            && let Some(was) = before.iter().find(|b| b["type"] == c["type"])
            && present(&was["observedGeneration"])
        {
            let g = was["observedGeneration"].clone();
            set(c, "observedGeneration", g);
        }
    }
}

/// Converts `matchLabelKeys` of affinity terms and spread constraints to selector requirements when a pod is created
/// (KEP-3633, KEP-3243).
fn merge_match_label_keys(obj: &mut Value) {
    let labels = obj["metadata"]["labels"].clone();
    let Some(spec) = obj.get_mut("spec") else { return };
    for c in items_mut(spec, "topologySpreadConstraints") {
        merge_keys(c, &labels);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(a) = crate::tree::at_mut(spec, &["affinity", kind]) else { continue };
        for t in items_mut(a, "requiredDuringSchedulingIgnoredDuringExecution") {
            merge_keys(t, &labels);
        }
        for w in items_mut(a, "preferredDuringSchedulingIgnoredDuringExecution") {
            if let Some(t) = w.get_mut("podAffinityTerm") {
                merge_keys(t, &labels);
            }
        }
    }
}

fn merge_keys(term: &mut Value, labels: &Value) {
    if !present(&term["labelSelector"]) {
        return;
    }
    for (list, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        let keys: Vec<String> = items(&term[list]).iter().map(|k| text(k).to_owned()).collect();
        for k in keys {
            let Some(value) = labels.get(&k) else { continue };
            let requirement = json!({"key": k, "operator": operator, "values": [value]});
            let Some(selector) = term.get_mut("labelSelector") else { return };
            match selector.get_mut("matchExpressions").and_then(Value::as_array_mut) {
                Some(list) => list.push(requirement),
                None => set(selector, "matchExpressions", vec![requirement]),
            }
        }
    }
}
