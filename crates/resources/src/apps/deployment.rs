//! Deployments.
use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{OF_DEPLOYMENTS, collisions, name_warning, replica_counts, restart_always, selector_and_template, wide};
use crate::column::{AGE, CONTAINERS, Column, IMAGES, NAME, SELECTOR};
use crate::metadata::immutable;
use crate::options::{Options, ScalePaths, columns, texts};
use crate::path::{Errors, GoStruct, Path};
use crate::pod;
use crate::rules;
use crate::strategy::{Context, Strategy, base_status_update, base_update};
use crate::table::{age, name};
use crate::text::Texts;
use crate::tree::{default_to, default_zero, ensure, int, int0, present, restore, same, set, text};

/// The strategy of deployments.
pub struct Deployments;

static OPTIONS: LazyLock<Options> = LazyLock::new(|| Options {
    generation: true,
    scale: Some(ScalePaths::usual()),
    columns: columns![
        NAME,
        Column::text("Ready", "Ready pods of those desired."),
        Column::text("Up-to-date", "Number of pods with the current template."),
        Column::text("Available", "Number of available pods."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    ..Options::of("apps", "deployments")
});

impl Strategy for Deployments {
    fn options(&self) -> &Options {
        &OPTIONS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        ensure(obj, "status");
        let Some(spec) = ensure(obj, "spec") else { return };
        default_to(spec, "replicas", 1);
        default_to(spec, "revisionHistoryLimit", 10);
        default_to(spec, "progressDeadlineSeconds", 600);
        if let Some(s) = ensure(spec, "strategy") {
            default_zero(s, "type", "RollingUpdate");
            if text(&s["type"]) == "RollingUpdate"
                && let Some(r) = ensure(s, "rollingUpdate")
            {
                default_to(r, "maxUnavailable", "25%");
                default_to(r, "maxSurge", "25%");
            }
        }
        if let Some(t) = ensure(spec, "template") {
            pod::default_template(t);
        }
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let (spec, p) = (&obj["spec"], Path::new("spec"));
        rules::not_negative(&spec["replicas"], &p.child("replicas"), e);
        selector_and_template(spec, &p, &OF_DEPLOYMENTS, e);
        restart_always(spec, "ReplicaSet", &p, e);
        check_strategy(&spec["strategy"], &p.child("strategy"), e);
        rules::not_negative(&spec["minReadySeconds"], &p.child("minReadySeconds"), e);
        rules::not_negative(&spec["revisionHistoryLimit"], &p.child("revisionHistoryLimit"), e);
        if let Some(deadline) = int(&spec["progressDeadlineSeconds"]) {
            let at = p.child("progressDeadlineSeconds");
            rules::not_negative(&spec["progressDeadlineSeconds"], &at, e);
            if deadline <= int0(&spec["minReadySeconds"]) {
                e.invalid(&at, deadline, "must be greater than minReadySeconds");
            }
        }
    }
    fn prepare_update(&self, _cx: &Context<'_>, new: &mut Value, old: &Value) {
        base_update(&OPTIONS, new, old);
        // Annotations are copied to replica sets, so they count as well.
        let before = int0(&old["metadata"]["generation"]);
        if int0(&new["metadata"]["generation"]) == before
            && !same(&new["metadata"]["annotations"], &old["metadata"]["annotations"])
            && let Some(m) = new.get_mut("metadata")
        {
            set(m, "generation", before + 1);
        }
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        self.check(new, e);
        let p = Path::new("spec");
        immutable(&new["spec"]["selector"], &old["spec"]["selector"], &p.child("selector"), e);
    }
    fn prepare_subresource_update(&self, _cx: &Context<'_>, _subresource: &str, new: &mut Value, old: &Value) {
        base_status_update(new, old);
        if let Some(m) = new.get_mut("metadata") {
            restore(m, &old["metadata"], "labels");
        }
    }
    fn check_subresource_update(&self, _subresource: &str, new: &Value, old: &Value, e: &mut Errors) {
        const COUNTS: &[&str] = &["updatedReplicas", "readyReplicas", "availableReplicas", "unavailableReplicas"];
        replica_counts(&new["status"], COUNTS, e);
        collisions(new, old, e);
    }
    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let mut out = name_warning(new, old, "Pod names and hostnames");
        out.extend(pod::template_warnings(&new["spec"]["template"], old.map(|o| &o["spec"]["template"])));
        out
    }
    fn reset_fields(&self, subresource: &str) -> Vec<Texts> {
        match subresource {
            "" => vec![texts!["status"]],
            "status" => vec![texts!["spec"], texts!["metadata", "labels"]],
            _ => Vec::new(),
        }
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (&obj["spec"], &obj["status"]);
        let [names, images, selector] = wide(spec);
        vec![
            name(obj),
            json!(format!("{}/{}", int0(&status["readyReplicas"]), int0(&spec["replicas"]))),
            json!(int0(&status["updatedReplicas"])),
            json!(int0(&status["availableReplicas"])),
            age(obj, now),
            names,
            images,
            selector,
        ]
    }
}

fn check_strategy(s: &Value, p: &Path<'_>, e: &mut Errors) {
    let rolling = &s["rollingUpdate"];
    let at = p.child("rollingUpdate");
    match text(&s["type"]) {
        "Recreate" => {
            if present(rolling) {
                e.forbidden(&at, "may not be specified when strategy `type` is 'Recreate'");
            }
        }
        "RollingUpdate" if !present(rolling) => {
            e.required(&at, "this should be defaulted and never be nil");
        }
        "RollingUpdate" => {
            let (unavailable, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
            rules::count_or_percent(unavailable, &at.child("maxUnavailable"), e);
            rules::count_or_percent(surge, &at.child("maxSurge"), e);
            if rules::count(unavailable) == 0 && rules::count(surge) == 0 {
                e.invalid(&at.child("maxUnavailable"), unavailable, "may not be 0 when `maxSurge` is 0");
            }
            rules::not_over_100_percent(unavailable, &at.child("maxUnavailable"), e);
        }
        _ => {
            let shown = GoStruct([("Type", &s["type"]), ("RollingUpdate", rolling)]);
            e.not_supported(p, shown, &["Recreate", "RollingUpdate"]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid() -> Value {
        let mut d = json!({"metadata": {"name": "d", "namespace": "n", "resourceVersion": "1"}, "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
        Deployments.set_defaults("v1", &mut d);
        d
    }

    #[test]
    fn defaults_and_rules() {
        let d = valid();
        assert_eq!(d["spec"]["strategy"]["rollingUpdate"], json!({"maxSurge": "25%", "maxUnavailable": "25%"}));
        assert_eq!(Deployments.validate_create(&d).to_string(), "[]");
        let mut bad = d.clone();
        bad["spec"]["template"]["metadata"]["labels"] = json!({"a": "c"});
        bad["spec"]["replicas"] = json!(-1);
        assert_eq!(
            Deployments.validate_create(&bad).to_string(),
            "[spec.replicas: Invalid value: -1: must be greater than or equal to 0, spec.template.metadata.labels: Invalid value: {\"a\":\"c\"}: `selector` does not match template `labels`]"
        );
    }

    #[test]
    fn updates() {
        let cx = Context::at(Timestamp::UNIX_EPOCH);
        let mut old = valid();
        Deployments.prepare_create(&cx, &mut old);
        let mut new = old.clone();
        new["status"] = json!({"replicas": 5});
        Deployments.prepare_update(&cx, &mut new, &old);
        assert_eq!((&new["status"], &new["metadata"]["generation"]), (&json!({}), &json!(1)));
        new["spec"]["replicas"] = json!(3);
        Deployments.prepare_update(&cx, &mut new, &old);
        assert_eq!(new["metadata"]["generation"], 2);
        new["spec"]["selector"] = json!({"matchLabels": {"a": "b", "c": "d"}});
        new["spec"]["template"]["metadata"]["labels"] = json!({"a": "b", "c": "d"});
        assert_eq!(
            Deployments.validate_update(&new, &old).to_string(),
            "spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\",\"c\":\"d\"}}: field is immutable"
        );
    }
}
