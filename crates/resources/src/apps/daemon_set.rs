//! DaemonSets.
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::Status;
use serde_json::{Value, json};

use super::{collisions, restart_always, wide};
use crate::column::{AGE, CONTAINERS, Column, IMAGES, NAME, SELECTOR};
use crate::metadata::immutable;
use crate::options::{Options, columns};
use crate::path::{Errors, Path};
use crate::pod;
use crate::rules;
use crate::strategy::{Context, Strategy, base_create, base_status_update, base_update};
use crate::table::{age, label_map, name};
use crate::tree::{default_to, default_zero, ensure, int0, present, remove, same, set, text};

/// The strategy of daemonsets.
pub struct DaemonSets;

/// Counts that the published status always contains.
const COUNTS: &[&str] = &["currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady"];

const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

static OPTIONS: LazyLock<Options> = LazyLock::new(|| Options {
    generation: true,
    columns: columns![
        NAME,
        Column::integer("Desired", "Number of nodes that should run a pod of the daemon set."),
        Column::integer("Current", "Number of nodes that run a pod of the daemon set."),
        Column::integer("Ready", "Number of nodes with a ready pod."),
        Column::integer("Up-to-date", "Number of nodes whose pod has the current template."),
        Column::integer("Available", "Number of nodes with an available pod."),
        Column::text("Node Selector", "Labels of the nodes to run on."),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    ..Options::of("apps", "daemonsets")
});

impl Strategy for DaemonSets {
    fn options(&self) -> &Options {
        &OPTIONS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        if let Some(s) = ensure(obj, "status") {
            for c in COUNTS {
                default_to(s, c, 0);
            }
        }
        // In v1 the annotation replaces a field of earlier versions, so the client that creates the object owns it.
        if let Some(annotations) = ensure(obj, "metadata").and_then(|meta| ensure(meta, "annotations")) {
            default_to(annotations, TEMPLATE_GENERATION, "0");
        }
        let Some(spec) = ensure(obj, "spec") else { return };
        default_to(spec, "revisionHistoryLimit", 10);
        if let Some(s) = ensure(spec, "updateStrategy") {
            default_zero(s, "type", "RollingUpdate");
            if text(&s["type"]) == "RollingUpdate"
                && let Some(r) = ensure(s, "rollingUpdate")
            {
                default_to(r, "maxUnavailable", 1);
                default_to(r, "maxSurge", 0);
            }
            // For another update type the limits are not pointers upstream.
            if let Some(r) = s.get_mut("rollingUpdate") {
                default_to(r, "maxUnavailable", 0);
                default_to(r, "maxSurge", 0);
            }
        }
        if let Some(t) = ensure(spec, "template") {
            pod::default_template(t);
        }
    }
    fn initial_status(&self) -> Value {
        COUNTS.iter().map(|c| ((*c).to_owned(), json!(0))).collect::<serde_json::Map<_, _>>().into()
    }
    fn prepare_create(&self, _cx: &Context<'_>, obj: &mut Value) {
        base_create(self, obj);
        if let Some(s) = obj.get_mut("spec") {
            remove(s, "templateGeneration");
        }
        let given = template_generation(obj).max(1);
        set_template_generation(obj, given);
    }
    fn prepare_update(&self, _cx: &Context<'_>, new: &mut Value, old: &Value) {
        base_update(&OPTIONS, new, old);
        let before = template_generation(old);
        let changed = !same(&new["spec"]["template"], &old["spec"]["template"]);
        set_template_generation(new, before + i64::from(changed));
    }
    fn default(&self, version: &str, obj: &mut Value) -> Result<(), Status> {
        // The annotation is a field of the spec in another place.
        if let Some(given) = obj["metadata"]["annotations"].get(TEMPLATE_GENERATION)
            && text(given).parse::<i64>().is_err()
        {
            let why = format!("annotation {TEMPLATE_GENERATION}: {:?} is not a number", text(given));
            return Err(Status::bad_request(why));
        }
        self.set_defaults(version, obj);
        Ok(())
    }
    fn prepare_subresource_update(&self, _cx: &Context<'_>, _subresource: &str, new: &mut Value, old: &Value) {
        base_status_update(new, old);
        set_template_generation(new, template_generation(old));
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let (spec, p) = (&obj["spec"], Path::new("spec"));
        let selector = &spec["selector"];
        let faults = e.len();
        rules::label_selector(selector, &p.child("selector"), e);
        let template = p.child("template");
        let labels = &spec["template"]["metadata"]["labels"];
        // No selector selects nothing; for an invalid one there are no further errors.
        let unmatched = !present(selector) || e.len() == faults && !rules::selector_matches(selector, labels);
        if unmatched {
            let meta = template.child("metadata");
            e.invalid(&meta.child("labels"), labels, "`selector` does not match template `labels`");
        }
        if present(selector) && rules::selector_empty(selector) {
            e.invalid(&p.child("selector"), selector, "empty selector is invalid for daemonset");
        }
        pod::check_template(&spec["template"], &template, e);
        restart_always(spec, "DaemonSet", &p, e);
        rules::not_negative(&spec["minReadySeconds"], &p.child("minReadySeconds"), e);
        check_update_strategy(&spec["updateStrategy"], &p.child("updateStrategy"), e);
        rules::not_negative(&spec["revisionHistoryLimit"], &p.child("revisionHistoryLimit"), e);
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        let p = Path::new("spec");
        immutable(&new["spec"]["selector"], &old["spec"]["selector"], &p.child("selector"), e);
        self.check(new, e);
    }
    fn check_subresource_update(&self, _subresource: &str, new: &Value, old: &Value, e: &mut Errors) {
        let p = Path::new("status");
        let more = ["observedGeneration", "updatedNumberScheduled", "numberAvailable", "numberUnavailable"];
        for f in COUNTS.iter().chain(&more).chain(&["collisionCount"]) {
            rules::not_negative(&new["status"][*f], &p.child(f), e);
        }
        collisions(new, old, e);
    }
    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let mut out = Vec::new();
        if old.is_none_or(|o| !same(&o["spec"], &new["spec"])) {
            out.extend(pod::template_warnings(&new["spec"]["template"], old.map(|o| &o["spec"]["template"])));
        }
        out
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (&obj["spec"], &obj["status"]);
        let [names, images, selector] = wide(spec);
        let count = |f: &str| json!(int0(&status[f]));
        vec![
            name(obj),
            count("desiredNumberScheduled"),
            count("currentNumberScheduled"),
            count("numberReady"),
            count("updatedNumberScheduled"),
            count("numberAvailable"),
            json!(label_map(&spec["template"]["spec"]["nodeSelector"])),
            age(obj, now),
            names,
            images,
            selector,
        ]
    }
}

/// Returns the template generation of an object, if it has one.
fn template_generation(obj: &Value) -> i64 {
    text(&obj["metadata"]["annotations"][TEMPLATE_GENERATION]).parse().unwrap_or(0)
}

/// Sets the template generation, which was a field in `extensions/v1beta1`.
fn set_template_generation(obj: &mut Value, count: i64) {
    if count > 0
        && let Some(annotations) = ensure(obj, "metadata").and_then(|m| ensure(m, "annotations"))
    {
        set(annotations, TEMPLATE_GENERATION, count.to_string());
    }
}

fn check_update_strategy(s: &Value, p: &Path<'_>, e: &mut Errors) {
    match text(&s["type"]) {
        "OnDelete" => {}
        "RollingUpdate" => {
            let (rolling, at) = (&s["rollingUpdate"], p.child("rollingUpdate"));
            if !present(rolling) {
                return e.required(&at, "");
            }
            let (unavailable, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
            for (v, f) in [(unavailable, "maxUnavailable"), (surge, "maxSurge")] {
                rules::count_or_percent(v, &at.child(f), e);
                rules::not_over_100_percent(v, &at.child(f), e);
            }
            match (rules::count(unavailable) != 0, rules::count(surge) != 0) {
                (true, true) => {
                    e.invalid(&at.child("maxSurge"), surge, "may not be set when maxUnavailable is non-zero");
                }
                (false, false) => e.required(&at.child("maxUnavailable"), "cannot be 0 when maxSurge is 0"),
                _ => {}
            }
        }
        _ => e.not_supported(p, s, &["RollingUpdate", "OnDelete"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_the_template_are_counted() {
        let cx = Context::at(Timestamp::UNIX_EPOCH);
        let count = |v: &Value| v["metadata"]["annotations"][TEMPLATE_GENERATION].clone();
        let mut old = json!({"metadata": {"name": "d"}, "spec": {"template": {"spec": {}}}});
        DaemonSets.prepare_create(&cx, &mut old);
        assert_eq!(count(&old), "1");
        let mut new = json!({"metadata": {"name": "d"}, "spec": {"minReadySeconds": 1, "template": {"spec": {}}}});
        DaemonSets.prepare_update(&cx, &mut new, &old);
        assert_eq!(count(&new), "1");
        new["spec"]["template"]["spec"]["nodeName"] = "n".into();
        DaemonSets.prepare_update(&cx, &mut new, &old);
        assert_eq!(count(&new), "2");
    }
}
