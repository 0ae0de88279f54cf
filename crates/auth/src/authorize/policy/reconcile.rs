//! Reconciles the default policy: missing rules are added, administrators' additions stay, and an object with
//! `autoupdate: "false"` is not changed (upstream `registry/rbac/reconciliation`, which extends and never removes).
use serde_json::Value;

use super::AUTOUPDATE;
use crate::authorize::rbac::{PolicyRule, Uncovered, covers};

/// The action for one default object.
#[derive(Clone, Debug, PartialEq)]
pub enum Reconciled {
    /// The object is correct, or protected.
    Keep,
    /// The object is missing: create this one.
    Create(Value),
    /// Replace the stored object with this one.
    Update(Value),
    /// Its `roleRef` is immutable and wrong: delete it, then create this one.
    Recreate(Value),
}

/// Compares a default object with the stored one.
pub fn reconcile(wanted: &Value, stored: Option<&Value>) -> Reconciled {
    let Some(stored) = stored else { return Reconciled::Create(wanted.clone()) };
    let annotation = stored.get("metadata").and_then(|m| m.get("annotations")).and_then(|a| a.get(AUTOUPDATE));
    if annotation.and_then(Value::as_str) == Some("false") {
        return Reconciled::Keep;
    }
    let mut next = stored.clone();
    for map in ["labels", "annotations"] {
        extend_map(&mut next["metadata"][map], &wanted["metadata"][map]);
    }
    if wanted.get("roleRef").is_some() {
        if stored["roleRef"] != wanted["roleRef"] {
            return Reconciled::Recreate(wanted.clone());
        }
        extend_list(&mut next, wanted, "subjects");
    } else if wanted.get("aggregationRule").is_some() {
        let mut inner = next.get("aggregationRule").cloned().unwrap_or_default();
        extend_list(&mut inner, &wanted["aggregationRule"], "clusterRoleSelectors");
        next["aggregationRule"] = inner;
    } else {
        extend_rules(&mut next, wanted);
    }
    if &next == stored { Reconciled::Keep } else { Reconciled::Update(next) }
}

/// Adds missing keys; values that an administrator changed stay.
fn extend_map(have: &mut Value, want: &Value) {
    let Some(want) = want.as_object().filter(|w| !w.is_empty()) else {
        if have.is_null() {
            *have = Value::Object(serde_json::Map::new());
        }
        return;
    };
    if !have.is_object() {
        *have = Value::Object(serde_json::Map::new());
    }
    if let Some(have) = have.as_object_mut() {
        for (k, v) in want {
            have.entry(k.clone()).or_insert_with(|| v.clone());
        }
    }
}

fn extend_list(have: &mut Value, want: &Value, field: &str) {
    let missing: Vec<Value> = want[field]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|w| !have[field].as_array().is_some_and(|h| h.contains(w)))
        .cloned()
        .collect();
    if missing.is_empty() {
        return;
    }
    match have[field].as_array_mut() {
        Some(list) => list.extend(missing),
        None => have[field] = Value::Array(missing),
    }
}

fn extend_rules(next: &mut Value, wanted: &Value) {
    let rules = |v: &Value| -> Vec<PolicyRule> { serde_json::from_value(v["rules"].clone()).unwrap_or_default() };
    let have = rules(next);
    for rule in rules(wanted) {
        let missing = match covers(have.iter(), std::slice::from_ref(&rule)) {
            Ok(()) => continue,
            Err(Uncovered::Missing(missing, false)) => missing,
            // The stored role is too large to find out what is missing.
            Err(Uncovered::Missing(_, true) | Uncovered::TooMany) => vec![rule],
        };
        let missing = missing.iter().map(|r| serde_json::to_value(r).unwrap_or_default());
        match next["rules"].as_array_mut() {
            Some(list) => list.extend(missing),
            None => next["rules"] = missing.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authorize::policy::bootstrap_objects;
    use serde_json::json;

    #[test]
    fn additions_stay_and_gaps_close() {
        let all = bootstrap_objects(|_| true);
        for o in &all {
            assert_eq!(reconcile(o, None), Reconciled::Create(o.clone()));
            assert_eq!(reconcile(o, Some(o)), Reconciled::Keep, "{o}");
        }
        let role = all.iter().find(|o| o["metadata"]["name"] == "system:kube-dns").unwrap();
        let mut stored = role.clone();
        stored["metadata"]["labels"]["mine"] = json!("x");
        stored["rules"] = json!([{"apiGroups": ["x"], "resources": ["y"], "verbs": ["get"]}]);
        let Reconciled::Update(next) = reconcile(role, Some(&stored)) else { panic!("expected an update") };
        assert_eq!(next["metadata"]["labels"]["mine"], "x");
        assert_eq!(next["rules"][0]["resources"][0], "y");
        assert!(next["rules"].as_array().unwrap().len() > 1);
        assert_eq!(reconcile(role, Some(&next)), Reconciled::Keep);
        stored["metadata"]["annotations"][AUTOUPDATE] = json!("false");
        assert_eq!(reconcile(role, Some(&stored)), Reconciled::Keep);

        let binding = all.iter().find(|o| o["kind"] == "ClusterRoleBinding").unwrap();
        let mut stored = binding.clone();
        stored["subjects"] = json!([{"kind": "User", "name": "extra"}]);
        let Reconciled::Update(next) = reconcile(binding, Some(&stored)) else { panic!("expected an update") };
        assert_eq!(next["subjects"].as_array().unwrap().len(), 2);
        stored["roleRef"]["name"] = json!("other");
        assert_eq!(reconcile(binding, Some(&stored)), Reconciled::Recreate(binding.clone()));
    }
}
