//! Workload kinds: the apps group and replication controllers, one file each, with their shared parts here.
mod controller_revision;
mod daemon_set;
mod deployment;
mod replica_set;
mod replication_controller;
mod stateful_set;

pub use controller_revision::ControllerRevisions;
pub use daemon_set::DaemonSets;
pub use deployment::Deployments;
pub use replica_set::ReplicaSets;
pub use replication_controller::ReplicationControllers;
pub use stateful_set::StatefulSets;

use serde_json::{Value, json};

use crate::path::{Errors, Path};
use crate::pod;
use crate::rules;
use crate::table;
use crate::tree::{int0, present, text};

/// Messages for a selector that selects everything, and for an invalid one.
pub(crate) struct SelectorWords {
    pub(crate) empty: &'static str,
    pub(crate) unreadable: &'static str,
}

/// The messages for deployments and replica sets.
pub(crate) const OF_DEPLOYMENTS: SelectorWords =
    SelectorWords { empty: "empty selector is invalid for deployment", unreadable: "invalid label selector" };

/// Validates a required selector, and a template that must match it and restart always. With an invalid selector the
/// template is not validated.
pub(crate) fn selector_and_template(spec: &Value, p: &Path<'_>, words: &SelectorWords, e: &mut Errors) {
    let selector = &spec["selector"];
    let at = p.child("selector");
    let faults = e.len();
    if present(selector) {
        rules::label_selector(selector, &at, e);
        if rules::selector_empty(selector) {
            e.invalid(&at, selector, words.empty);
        } else if e.len() > faults {
            return e.invalid(&at, selector, words.unreadable);
        }
    } else {
        e.required(&at, "");
    }
    let t = p.child("template");
    let labels = &spec["template"]["metadata"]["labels"];
    // No selector selects nothing, an empty one everything.
    let matches = present(selector) && rules::selector_matches(selector, labels);
    if !matches && (!present(selector) || !rules::selector_empty(selector)) {
        let meta = t.child("metadata");
        e.invalid(&meta.child("labels"), labels, "`selector` does not match template `labels`");
    }
    pod::check_template(&spec["template"], &t, e);
}

/// Validates a template of a controller that restarts pods always.
pub(crate) fn restart_always(spec: &Value, kind: &str, p: &Path<'_>, e: &mut Errors) {
    let t = p.child("template");
    let s = t.child("spec");
    let policy = text(&spec["template"]["spec"]["restartPolicy"]);
    if policy != "Always" {
        e.not_supported(&s.child("restartPolicy"), policy, &["Always"]);
    }
    if present(&spec["template"]["spec"]["activeDeadlineSeconds"]) {
        e.forbidden(&s.child("activeDeadlineSeconds"), format!("activeDeadlineSeconds in {kind} is not Supported"));
    }
}

/// Validates counts of a status: not negative, not above `replicas`, and available not above ready.
pub(crate) fn replica_counts(status: &Value, fields: &[&str], e: &mut Errors) {
    let p = Path::new("status");
    for f in fields.iter().chain(&["replicas", "observedGeneration", "terminatingReplicas", "collisionCount"]) {
        rules::not_negative(&status[*f], &p.child(f), e);
    }
    let n = |f: &str| int0(&status[f]);
    for f in fields.iter().filter(|f| **f != "unavailableReplicas") {
        if n(f) > n("replicas") {
            e.invalid(&p.child(f), n(f), "cannot be greater than status.replicas");
        }
    }
    if n("availableReplicas") > n("readyReplicas") {
        e.invalid(&p.child("availableReplicas"), n("availableReplicas"), "cannot be greater than readyReplicas");
    }
}

/// Checks that `collisionCount` only grows.
pub(crate) fn collisions(new: &Value, old: &Value, e: &mut Errors) {
    let count = |v: &Value| int0(&v["status"]["collisionCount"]);
    let has = |v: &Value| present(&v["status"]["collisionCount"]);
    // A missing count is less than any, including zero.
    if has(old) && (!has(new) || count(new) < count(old)) {
        let p = Path::new("status");
        e.invalid(&p.child("collisionCount"), count(new), "cannot be decremented");
    }
}

/// Returns the wide cells: container names, images, selector.
pub(crate) fn wide(spec: &Value) -> [Value; 3] {
    let (names, images) = table::containers(&spec["template"]["spec"]);
    [names, images, json!(table::selector(&spec["selector"]))]
}

/// Returns a warning about the name, which becomes part of pod names and host names.
pub(crate) fn name_warning(obj: &Value, old: Option<&Value>, what: &str) -> Vec<String> {
    match kelson_meta::is_dns1123_label(text(&obj["metadata"]["name"])) {
        Err(why) if old.is_none() => vec![format!(
            "metadata.name: this is used in {what}, which can result in surprising behavior; a DNS label is recommended: [{}]",
            why.join(" ")
        )],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_of_collisions_is_never_less_than_it_was() {
        let of = |count: Value| json!({"status": {"collisionCount": count}});
        for (old, new, refused) in [
            (Value::Null, Value::Null, false),
            (Value::Null, json!(0), false),
            (json!(0), json!(0), false),
            (json!(0), Value::Null, true),
            (json!(2), Value::Null, true),
            (json!(2), json!(1), true),
            (json!(2), json!(3), false),
        ] {
            let mut errors = Errors::new();
            collisions(&of(new.clone()), &of(old.clone()), &mut errors);
            assert_eq!(!errors.finish().is_empty(), refused, "{old} to {new}");
        }
    }
}
