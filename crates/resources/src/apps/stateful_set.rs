//! StatefulSets.
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::is_dns1123_label;
use serde_json::{Value, json};

use super::{SelectorWords, collisions, replica_counts, restart_always, selector_and_template};
use crate::column::{AGE, CONTAINERS, Column, IMAGES, NAME};
use crate::names::NameRule;
use crate::options::{Options, ScalePaths, columns};
use crate::path::{Errors, GoStruct, Path};
use crate::pod;
use crate::rules;
use crate::strategy::Strategy;
use crate::table::{age, containers, name};
use crate::tree::{default_to, default_zero, ensure, int0, items, items_mut, present, restore, same, set, text};

/// The strategy of statefulsets.
pub struct StatefulSets;

static OPTIONS: LazyLock<Options> = LazyLock::new(|| Options {
    generation: true,
    name: NameRule::Label,
    scale: Some(ScalePaths::usual()),
    columns: columns![NAME, Column::text("Ready", "Ready pods of those desired."), AGE, CONTAINERS, IMAGES],
    ..Options::of("apps", "statefulsets")
});

const SELECTOR_WORDS: SelectorWords =
    SelectorWords { empty: "empty selector is invalid for statefulset", unreadable: "" };
const FORBIDDEN: &str = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
const MUTABLE: &[&str] = &[
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

impl Strategy for StatefulSets {
    fn options(&self) -> &Options {
        &OPTIONS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        if let Some(s) = ensure(obj, "status") {
            default_to(s, "replicas", 0);
            default_to(s, "availableReplicas", 0);
        }
        let Some(spec) = ensure(obj, "spec") else { return };
        default_to(spec, "replicas", 1);
        default_to(spec, "revisionHistoryLimit", 10);
        default_zero(spec, "podManagementPolicy", "OrderedReady");
        default_to(spec, "serviceName", "");
        if let Some(s) = ensure(spec, "updateStrategy") {
            if text(&s["type"]).is_empty() {
                default_zero(s, "type", "RollingUpdate");
                ensure(s, "rollingUpdate");
            }
            if text(&s["type"]) == "RollingUpdate"
                && let Some(r) = crate::tree::object_mut(s, "rollingUpdate")
            {
                default_to(r, "partition", 0);
            }
        }
        if let Some(r) = ensure(spec, "persistentVolumeClaimRetentionPolicy") {
            default_zero(r, "whenDeleted", "Retain");
            default_zero(r, "whenScaled", "Retain");
        }
        if let Some(t) = ensure(spec, "template") {
            pod::default_template(t);
        }
        for c in items_mut(spec, "volumeClaimTemplates") {
            // Whatever the client sent, these are claims.
            set(c, "apiVersion", "v1");
            set(c, "kind", "PersistentVolumeClaim");
            if let Some(s) = ensure(c, "spec") {
                pod::claim_spec(s);
            }
            if let Some(s) = ensure(c, "status") {
                default_zero(s, "phase", "Pending");
            }
        }
    }
    fn initial_status(&self) -> Value {
        json!({"replicas": 0, "availableReplicas": 0})
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        self.check_spec(obj, false, e);
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        self.check_spec(new, true, e);
        let mut rest = new["spec"].clone();
        for f in MUTABLE {
            restore(&mut rest, &old["spec"], f);
        }
        if !same(&rest, &old["spec"]) {
            e.forbidden(&Path::new("spec"), FORBIDDEN);
        }
    }
    fn check_subresource_update(&self, _subresource: &str, new: &Value, old: &Value, e: &mut Errors) {
        const COUNTS: &[&str] = &["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"];
        replica_counts(&new["status"], COUNTS, e);
        collisions(new, old, e);
    }
    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let spec = &new["spec"];
        let mut out = pod::template_warnings(&spec["template"], old.map(|o| &o["spec"]["template"]));
        if int0(&spec["revisionHistoryLimit"]) < 0 {
            out.push("spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended".to_owned());
        }
        out
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (&obj["spec"], &obj["status"]);
        let (names, images) = containers(&spec["template"]["spec"]);
        let ready = format!("{}/{}", int0(&status["readyReplicas"]), int0(&spec["replicas"]));
        vec![name(obj), json!(ready), age(obj, now), names, images]
    }
}

impl StatefulSets {
    fn check_spec(&self, obj: &Value, update: bool, e: &mut Errors) {
        let (spec, p) = (&obj["spec"], Path::new("spec"));
        match text(&spec["podManagementPolicy"]) {
            "" => e.required(&p.child("podManagementPolicy"), ""),
            "OrderedReady" | "Parallel" => {}
            other => {
                e.invalid(&p.child("podManagementPolicy"), other, "must be 'OrderedReady' or 'Parallel'");
            }
        }
        check_update_strategy(&spec["updateStrategy"], &p.child("updateStrategy"), e);
        let retention = p.child("persistentVolumeClaimRetentionPolicy");
        for f in ["whenDeleted", "whenScaled"] {
            let v = &spec["persistentVolumeClaimRetentionPolicy"][f];
            rules::optional_one_of(v, &retention.child(f), &["Retain", "Delete"], e);
        }
        rules::not_negative(&spec["replicas"], &p.child("replicas"), e);
        rules::not_negative(&spec["minReadySeconds"], &p.child("minReadySeconds"), e);
        rules::not_negative(&spec["ordinals"]["start"], &p.child("ordinals.start"), e);
        let service = text(&spec["serviceName"]);
        if !update && !service.is_empty() {
            e.invalid_each(&p.child("serviceName"), service, is_dns1123_label(service));
        }
        let claims = items(&spec["volumeClaimTemplates"]);
        if !update {
            let list = p.child("volumeClaimTemplates");
            for (i, c) in claims.iter().enumerate() {
                let at = list.index(i);
                crate::core::check_claim_spec(&c["spec"], &at.child("spec"), e);
            }
        }
        let named = ["hostname", "subdomain"].iter().any(|f| present(&spec["template"]["spec"][*f]));
        if claims.is_empty() && !named {
            selector_and_template(spec, &p, &SELECTOR_WORDS, e);
        } else {
            let as_made = as_pods_are_made(spec, claims);
            selector_and_template(&as_made, &p, &SELECTOR_WORDS, e);
        }
        restart_always(spec, "StatefulSet", &p, e);
    }
}

/// Returns the template as its pods will be: each claim template is a volume, and the controller sets host names.
fn as_pods_are_made(spec: &Value, claims: &[Value]) -> Value {
    let mut out = json!({"selector": spec["selector"], "template": spec["template"]});
    if let Some(s) = crate::tree::at_mut(&mut out, &["template", "spec"]) {
        crate::tree::remove(s, "hostname");
        crate::tree::remove(s, "subdomain");
    }
    if claims.is_empty() {
        return out;
    }
    let names: std::collections::BTreeSet<&str> = claims.iter().map(|c| text(&c["metadata"]["name"])).collect();
    let mut volumes: Vec<Value> =
        names.iter().map(|n| json!({"name": n, "persistentVolumeClaim": {"claimName": n}})).collect();
    for v in items(&spec["template"]["spec"]["volumes"]) {
        if !names.contains(text(&v["name"])) {
            volumes.push(v.clone());
        }
    }
    if let Some(s) = crate::tree::at_mut(&mut out, &["template", "spec"]) {
        set(s, "volumes", volumes);
    }
    out
}

fn check_update_strategy(s: &Value, p: &Path<'_>, e: &mut Errors) {
    let (rolling, at) = (&s["rollingUpdate"], p.child("rollingUpdate"));
    match text(&s["type"]) {
        "" => e.required(p, ""),
        "OnDelete" => {
            if present(rolling) {
                e.invalid(&at, rolling, "only allowed for updateStrategy 'RollingUpdate'");
            }
        }
        "RollingUpdate" => {
            rules::not_negative(&rolling["partition"], &at.child("partition"), e);
            let unavailable = &rolling["maxUnavailable"];
            if present(unavailable) {
                let m = at.child("maxUnavailable");
                rules::count_or_percent(unavailable, &m, e);
                if rules::count(unavailable) == 0 {
                    e.invalid(&m, unavailable, "cannot be 0");
                }
                rules::not_over_100_percent(unavailable, &m, e);
            }
        }
        _ => {
            let shown = GoStruct([("Type", &s["type"]), ("RollingUpdate", &s["rollingUpdate"])]);
            e.invalid(p, shown, "must be 'RollingUpdate' or 'OnDelete'");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_some_fields_change() {
        let mut old = json!({"metadata": {"name": "s", "namespace": "n", "resourceVersion": "1"}, "spec": {
            "serviceName": "x", "selector": {"matchLabels": {"a": "b"}},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}}}}],
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [
                {"name": "c", "image": "i", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}]}}}});
        StatefulSets.set_defaults("v1", &mut old);
        assert_eq!(StatefulSets.validate_create(&old).to_string(), "[]");
        let mut new = old.clone();
        new["spec"]["replicas"] = json!(3);
        assert_eq!(StatefulSets.validate_update(&new, &old).to_string(), "[]");
        new["spec"]["serviceName"] = json!("y");
        assert_eq!(StatefulSets.validate_update(&new, &old).to_string(), format!("spec: Forbidden: {FORBIDDEN}"));
    }
}
