//! Validates affinity, tolerations and topology spread.
use std::collections::{BTreeMap, BTreeSet};

use kelson_meta::{is_dns1123_label, is_dns1123_subdomain, is_label_value, is_qualified_name};
use serde_json::Value;

use crate::path::{Errors, Path};
use crate::rules;
use crate::tree::{entries, int, int0, items, present, text};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Validates `spec.affinity` of a pod.
pub fn affinity(a: &Value, p: &Path<'_>, e: &mut Errors) {
    let node = &a["nodeAffinity"];
    let at = p.child("nodeAffinity");
    if present(&node[REQUIRED]) {
        node_selector(&node[REQUIRED], &at.child(REQUIRED), e);
    }
    let list = at.child(PREFERRED);
    for (i, t) in items(&node[PREFERRED]).iter().enumerate() {
        let at = list.index(i);
        weight(&t["weight"], &at.child("weight"), e);
        node_term(&t["preference"], true, &at.child("preference"), e);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let at = p.child(kind);
        let list = at.child(REQUIRED);
        for (i, t) in items(&a[kind][REQUIRED]).iter().enumerate() {
            pod_term(t, &list.index(i), e);
        }
        let list = at.child(PREFERRED);
        for (i, t) in items(&a[kind][PREFERRED]).iter().enumerate() {
            let at = list.index(i);
            weight(&t["weight"], &at.child("weight"), e);
            pod_term(&t["podAffinityTerm"], &at.child("podAffinityTerm"), e);
        }
    }
}

fn weight(v: &Value, p: &Path<'_>, e: &mut Errors) {
    let n = int0(v);
    if !(1..=100).contains(&n) {
        e.invalid(p, n, "must be in the range 1-100");
    }
}

/// Validates a node selector: at least one term.
pub fn node_selector(s: &Value, p: &Path<'_>, e: &mut Errors) {
    let terms = items(&s["nodeSelectorTerms"]);
    let at = p.child("nodeSelectorTerms");
    if terms.is_empty() {
        return e.required(&at, "must have at least one node selector term");
    }
    for (i, t) in terms.iter().enumerate() {
        node_term(t, false, &at.index(i), e);
    }
}

fn node_term(t: &Value, any_value: bool, p: &Path<'_>, e: &mut Errors) {
    let list = p.child("matchExpressions");
    for (i, r) in items(&t["matchExpressions"]).iter().enumerate() {
        node_requirement(r, any_value, &list.index(i), e);
    }
    let list = p.child("matchFields");
    for (i, r) in items(&t["matchFields"]).iter().enumerate() {
        let at = list.index(i);
        let values = items(&r["values"]);
        match text(&r["operator"]) {
            "In" | "NotIn" => {
                if values.len() != 1 {
                    e.required(
                        &at.child("values"),
                        "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
                    );
                }
            }
            other => e.invalid(&at.child("operator"), other, "not a valid selector operator"),
        }
        if text(&r["key"]) == "metadata.name" {
            let list = at.child("values");
            for (j, v) in values.iter().map(text).enumerate() {
                e.invalid_each(&list.index(j), v, is_dns1123_subdomain(v));
            }
        } else {
            e.invalid(&at.child("key"), &r["key"], "not a valid field selector key");
        }
    }
}

fn node_requirement(r: &Value, any_value: bool, p: &Path<'_>, e: &mut Errors) {
    let values = items(&r["values"]);
    let at = p.child("values");
    match text(&r["operator"]) {
        "In" | "NotIn" if values.is_empty() => {
            e.required(&at, "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            e.forbidden(&at, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
        }
        "Gt" | "Lt" if values.len() != 1 => {
            e.required(&at, "must be specified single value when `operator` is 'Lt' or 'Gt'");
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => e.invalid(&p.child("operator"), other, "not a valid selector operator"),
    }
    let key = text(&r["key"]);
    e.invalid_each(&p.child("key"), key, is_qualified_name(key));
    if !any_value {
        for (i, v) in values.iter().map(text).enumerate() {
            e.invalid_each(&at.index(i), v, is_label_value(v));
        }
    }
}

fn pod_term(t: &Value, p: &Path<'_>, e: &mut Errors) {
    rules::label_selector(&t["labelSelector"], &p.child("labelSelector"), e);
    rules::label_selector(&t["namespaceSelector"], &p.child("namespaceSelector"), e);
    for n in items(&t["namespaces"]).iter().map(text) {
        e.invalid_each(&p.child("namespace"), n, is_dns1123_label(n));
    }
    match_label_keys(t, p, e);
    let key = text(&t["topologyKey"]);
    if key.is_empty() {
        e.required(&p.child("topologyKey"), "can not be empty");
    }
    e.invalid_each(&p.child("topologyKey"), key, is_qualified_name(key));
}

fn match_label_keys(t: &Value, p: &Path<'_>, e: &mut Errors) {
    let selector = &t["labelSelector"];
    for f in ["matchLabelKeys", "mismatchLabelKeys"] {
        let keys = items(&t[f]);
        let at = p.child(f);
        if keys.is_empty() {
            continue;
        }
        if !present(selector) {
            e.forbidden(&at, "must not be specified when labelSelector is not set");
            continue;
        }
        for (i, k) in keys.iter().map(text).enumerate() {
            e.invalid_each(&at.index(i), k, is_qualified_name(k));
        }
    }
    let keys: Vec<&str> = items(&t["matchLabelKeys"]).iter().map(text).collect();
    let mut in_selector: BTreeSet<&str> = entries(&selector["matchLabels"]).map(|(k, _)| k.as_str()).collect();
    for r in items(&selector["matchExpressions"]) {
        let k = text(&r["key"]);
        // The key's own requirement is merged in already, so only a second one is a conflict.
        if let Some(i) = keys.iter().position(|x| *x == k)
            && in_selector.contains(k)
        {
            e.invalid(&p.index(i), k, "exists in both matchLabelKeys and labelSelector");
        }
        in_selector.insert(k);
    }
    let at = p.child("matchLabelKeys");
    for (i, k) in keys.iter().enumerate() {
        if crate::tree::holds(&t["mismatchLabelKeys"], k) {
            e.invalid(&at.index(i), k, "exists in both matchLabelKeys and mismatchLabelKeys");
        }
    }
}

/// Validates the list `spec.topologySpreadConstraints`.
pub fn spread(list: &Value, p: &Path<'_>, e: &mut Errors) {
    let all = items(list);
    for (i, c) in all.iter().enumerate() {
        let at = p.index(i);
        let skew = int0(&c["maxSkew"]);
        if skew <= 0 {
            e.invalid(&at.child("maxSkew"), skew, "must be greater than zero");
        }
        if text(&c["topologyKey"]).is_empty() {
            e.required(&at.child("topologyKey"), "can not be empty");
        }
        let action = text(&c["whenUnsatisfiable"]);
        if !matches!(action, "DoNotSchedule" | "ScheduleAnyway") {
            e.not_supported(&at.child("whenUnsatisfiable"), action, &["DoNotSchedule", "ScheduleAnyway"]);
        }
        let pair = (&c["topologyKey"], &c["whenUnsatisfiable"]);
        if all[i + 1..].iter().any(|o| (&o["topologyKey"], &o["whenUnsatisfiable"]) == pair) {
            let shown = format!("{{{}, {action}}}", text(&c["topologyKey"]));
            e.duplicate(&at.child("{topologyKey, whenUnsatisfiable}"), shown);
        }
        if let Some(n) = int(&c["minDomains"]) {
            if n <= 0 {
                e.invalid(&at.child("minDomains"), n, "must be greater than zero");
            }
            if action != "DoNotSchedule" {
                let why = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
                e.invalid(&at.child("minDomains"), n, why);
            }
        }
        for f in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            rules::optional_one_of(&c[f], &at.child(f), &["Honor", "Ignore"], e);
        }
        match_label_keys(c, &at, e);
        rules::label_selector(&c["labelSelector"], &at.child("labelSelector"), e);
    }
}

/// Validates the list `spec.tolerations`.
pub fn tolerations(list: &Value, p: &Path<'_>, e: &mut Errors) {
    for (i, t) in items(list).iter().enumerate() {
        let at = p.index(i);
        let (key, operator, v, effect) = (text(&t["key"]), text(&t["operator"]), text(&t["value"]), text(&t["effect"]));
        if !key.is_empty() {
            e.invalid_each(&at.child("key"), key, is_qualified_name(key));
        } else if operator != "Exists" {
            e.invalid(
                &at.child("operator"),
                operator,
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            );
        }
        if present(&t["tolerationSeconds"]) && effect != "NoExecute" {
            e.invalid(&at.child("effect"), effect, "effect must be 'NoExecute' when `tolerationSeconds` is set");
        }
        match operator {
            "Equal" | "" => {
                if let Err(why) = is_label_value(v) {
                    e.invalid(&at.child("operator"), v, why.join(";"));
                }
            }
            "Exists" if !v.is_empty() => {
                e.invalid(&at.child("operator"), v, "value must be empty when `operator` is 'Exists'");
            }
            "Exists" => {}
            other => e.not_supported(&at.child("operator"), other, &["Equal", "Exists"]),
        }
        if !effect.is_empty() && !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
            e.not_supported(&at.child("effect"), effect, &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
        }
    }
}

/// Validates `allowedTopologies` of storage classes: keys once per term, values unique.
pub fn topology_terms(list: &Value, p: &Path<'_>, e: &mut Errors) {
    for (i, t) in items(list).iter().enumerate() {
        let at = p.index(i);
        let expressions = at.child("matchLabelExpressions");
        let mut keys = BTreeSet::new();
        for (j, r) in items(&t["matchLabelExpressions"]).iter().enumerate() {
            let at = expressions.index(j);
            let values = items(&r["values"]);
            if values.is_empty() {
                e.required(&at.child("values"), "");
            }
            for (k, v) in values.iter().enumerate() {
                if values[..k].contains(v) {
                    let list = at.child("values");
                    e.duplicate(&list.index(k), v);
                }
            }
            let key = text(&r["key"]);
            e.invalid_each(&at.child("key"), key, is_qualified_name(key));
            if !keys.insert(key) {
                e.duplicate(&at.child("key"), key);
            }
        }
        // Upstream compares a term with those before it, and with an empty one.
        let (terms, own) = (items(list), topology(t));
        if own.is_empty() || terms[..i].iter().any(|before| topology(before) == own) {
            e.duplicate(&expressions, "");
        }
    }
}

/// Returns the values that a term allows, by key; the last requirement of a key is used.
fn topology(term: &Value) -> BTreeMap<&str, BTreeSet<&str>> {
    let requirements = items(&term["matchLabelExpressions"]).iter();
    requirements.map(|r| (text(&r["key"]), items(&r["values"]).iter().map(text).collect())).collect()
}
