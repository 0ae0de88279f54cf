//! Validates flow schemas and priority levels (upstream `pkg/apis/flowcontrol/validation`).
use kelson_meta::{is_dns1123_label, is_dns1123_subdomain};
use serde_json::{Value, json};

use crate::path::{Errors, Path};
use crate::rules::unique;
use crate::tree::{empty, entries, flag, holds, int, int0, items, present, same, text};

const PRECEDENCE_MAX: i64 = 10_000;
const QUEUES_MAX: i64 = 10_000_000;
/// The maximum number of bits of a flow's hash for choosing queues.
const HASH_BITS_MAX: i64 = 60;
const VERBS: [&str; 9] = ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

/// Validates a flow schema.
pub fn flow_schema(obj: &Value, _old: Option<&Value>, e: &mut Errors) {
    let (root, spec) = (Path::new("spec"), &obj["spec"]);
    let (p, precedence) = (root.child("matchingPrecedence"), int0(&spec["matchingPrecedence"]));
    if precedence <= 0 {
        e.invalid(&p, precedence, "must be a positive value");
    }
    if precedence > PRECEDENCE_MAX {
        e.invalid(&p, precedence, format!("must not be greater than {PRECEDENCE_MAX}"));
    }
    if precedence == 1 && text(&obj["metadata"]["name"]) != "exempt" {
        e.invalid(&p, precedence, "only the schema named 'exempt' may have matchingPrecedence 1");
    }
    let method = &spec["distinguisherMethod"];
    if present(method) && !matches!(text(&method["type"]), "ByNamespace" | "ByUser") {
        let p = root.child("distinguisherMethod");
        e.not_supported(&p.child("type"), &method["type"], &["ByNamespace", "ByUser"]);
    }
    let level = text(&spec["priorityLevelConfiguration"]["name"]);
    let p = root.child("priorityLevelConfiguration");
    match level {
        "" => e.required(&p.child("name"), "must reference a priority level"),
        name => e.invalid_each(&p.child("name"), name, is_dns1123_subdomain(name)),
    }
    let list = root.child("rules");
    for (i, rule) in items(&spec["rules"]).iter().enumerate() {
        rules(rule, &list.index(i), e);
    }
    conditions(&obj["status"], e);
}

/// Validates a priority level.
pub fn priority_level(obj: &Value, _old: Option<&Value>, e: &mut Errors) {
    let (root, spec) = (Path::new("spec"), &obj["spec"]);
    let kind = text(&spec["type"]);
    if (text(&obj["metadata"]["name"]) == "exempt") != (kind == "Exempt") {
        e.invalid(&root.child("type"), kind, "must be 'Exempt' if and only if `name` is 'exempt'");
    }
    match kind {
        "Exempt" => {
            if present(&spec["limited"]) {
                e.forbidden(&root.child("limited"), "must be nil if the type is not Limited");
            }
            shares(&spec["exempt"], &root.child("exempt"), e);
        }
        "Limited" => {
            if present(&spec["exempt"]) {
                e.forbidden(&root.child("exempt"), "must be nil if the type is Limited");
            }
            let (p, limited) = (root.child("limited"), &spec["limited"]);
            if !present(limited) {
                e.required(&p, "must not be empty when type is Limited");
            } else {
                shares(limited, &p, e);
                response(&limited["limitResponse"], &p.child("limitResponse"), e);
                if let Some(n) = int(&limited["borrowingLimitPercent"]).filter(|n| *n < 0) {
                    let why = "if specified, must be a non-negative integer";
                    e.invalid(&p.child("borrowingLimitPercent"), n, why);
                }
            }
        }
        other => e.not_supported(&root.child("type"), other, &["Exempt", "Limited"]),
    }
    if !is_as_fixed(text(&obj["metadata"]["name"]), spec) {
        e.invalid(&root, spec, "spec must equal the fixed value, but for 'spec.exempt'");
    }
    conditions(&obj["status"], e);
}

/// Reports whether a mandatory priority level has its mandatory spec.
fn is_as_fixed(name: &str, spec: &Value) -> bool {
    let fixed = match name {
        "exempt" => json!({"type": "Exempt"}),
        "catch-all" => json!({"type": "Limited", "limited": {"nominalConcurrencyShares": 5, "lendablePercent": 0,
            "limitResponse": {"type": "Reject"}}}),
        _ => return true,
    };
    let changes = |field: &str| name == "exempt" && field == "exempt";
    entries(spec)
        .chain(entries(&fixed))
        .all(|(field, _)| changes(field) || same(&spec[field.as_str()], &fixed[field.as_str()]))
}

fn shares(of: &Value, p: &Path<'_>, e: &mut Errors) {
    if let Some(n) = int(&of["nominalConcurrencyShares"]).filter(|n| *n < 0) {
        e.invalid(&p.child("nominalConcurrencyShares"), n, "must be a non-negative integer");
    }
    if let Some(n) = int(&of["lendablePercent"]).filter(|n| !(0..=100).contains(n)) {
        e.invalid(&p.child("lendablePercent"), n, "must be between 0 and 100, inclusive");
    }
}

fn response(of: &Value, p: &Path<'_>, e: &mut Errors) {
    let queuing = &of["queuing"];
    match text(&of["type"]) {
        "Reject" if present(queuing) => {
            e.forbidden(&p.child("queuing"), "must be nil if limited.limitResponse.type is not Limited");
        }
        "Queue" if !present(queuing) => {
            e.required(&p.child("queuing"), "must not be empty if limited.limitResponse.type is Limited");
        }
        "Queue" => queues(queuing, &p.child("queuing"), e),
        "Reject" => {}
        other => e.not_supported(&p.child("type"), other, &["Queue", "Reject"]),
    }
}

fn queues(of: &Value, p: &Path<'_>, e: &mut Errors) {
    let [length, queues, hand] = ["queueLengthLimit", "queues", "handSize"].map(|field| int0(&of[field]));
    if length <= 0 {
        e.invalid(&p.child("queueLengthLimit"), length, "must be positive");
    }
    if queues <= 0 {
        e.invalid(&p.child("queues"), queues, "must be positive");
    } else if queues > QUEUES_MAX {
        e.invalid(&p.child("queues"), queues, format!("must not be greater than {QUEUES_MAX}"));
    }
    let p = p.child("handSize");
    if hand <= 0 {
        e.invalid(&p, hand, "must be positive");
    } else if hand > queues {
        e.invalid(&p, hand, format!("should not be greater than queues ({queues})"));
    } else if ((queues as f64).log2() * hand as f64).ceil() > HASH_BITS_MAX as f64 {
        let why = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {HASH_BITS_MAX}"
        );
        e.invalid(&p, hand, why);
    }
}

fn rules(of: &Value, p: &Path<'_>, e: &mut Errors) {
    if empty(&of["subjects"]) {
        e.required(&p.child("subjects"), "subjects must contain at least one value");
    }
    let list = p.child("subjects");
    for (i, one) in items(&of["subjects"]).iter().enumerate() {
        subject(one, &list.index(i), e);
    }
    let (resources, paths) = (items(&of["resourceRules"]), items(&of["nonResourceRules"]));
    if resources.is_empty() && paths.is_empty() {
        e.required(p, "at least one of resourceRules and nonResourceRules has to be non-empty");
    }
    let list = p.child("resourceRules");
    for (i, rule) in resources.iter().enumerate() {
        resource_rule(rule, &list.index(i), e);
    }
    let list = p.child("nonResourceRules");
    for (i, rule) in paths.iter().enumerate() {
        let p = list.index(i);
        verbs(&rule["verbs"], &p.child("verbs"), e);
        let field = p.child("nonResourceURLs");
        let why = "nonResourceURLs must contain at least one value";
        if !alone(&rule["nonResourceURLs"], &field, why, "non-resource URLs", e) {
            for (k, url) in items(&rule["nonResourceURLs"]).iter().enumerate() {
                if let Some(why) = bad_url(text(url)) {
                    e.invalid(&field.index(k), text(url), why);
                }
            }
        }
    }
}

/// Validates a subject: each kind has one field, and no other.
fn subject(of: &Value, p: &Path<'_>, e: &mut Errors) {
    const KINDS: [(&str, &str); 3] = [("Group", "group"), ("ServiceAccount", "serviceAccount"), ("User", "user")];
    let kind = text(&of["kind"]);
    let Some((_, own)) = KINDS.iter().find(|(k, _)| *k == kind) else {
        return e.not_supported(&p.child("kind"), kind, &KINDS.map(|(k, _)| k));
    };
    let (field, value) = (p.child(own), &of[*own]);
    if !present(value) {
        e.required(&field, &format!("{own} is required when subject kind is '{kind}'"));
    } else {
        let name = text(&value["name"]);
        if name.is_empty() {
            e.required(&field.child("name"), "");
        } else if kind == "ServiceAccount" && name != "*" {
            e.invalid_each(&field.child("name"), name, is_dns1123_subdomain(name));
        }
        if kind == "ServiceAccount" {
            match text(&value["namespace"]) {
                "" => e.required(&field.child("namespace"), "must specify namespace for service account"),
                namespace => e.invalid_each(&field.child("namespace"), namespace, is_dns1123_label(namespace)),
            }
        }
    }
    for (other, field) in KINDS.iter().filter(|(k, _)| *k != kind) {
        if present(&of[*field]) {
            e.forbidden(&p.child(field), format!("{field} is forbidden when subject kind is not '{other}'"));
        }
    }
}

fn resource_rule(of: &Value, p: &Path<'_>, e: &mut Errors) {
    verbs(&of["verbs"], &p.child("verbs"), e);
    let why = "resource rules must supply at least one api group";
    alone(&of["apiGroups"], &p.child("apiGroups"), why, "api groups", e);
    let why = "resource rules must supply at least one resource";
    alone(&of["resources"], &p.child("resources"), why, "resources", e);
    let field = p.child("namespaces");
    let namespaces = &of["namespaces"];
    if empty(namespaces) {
        if !flag(&of["clusterScope"]) {
            e.required(&field, "resource rules that are not cluster scoped must supply at least one namespace");
        }
    } else if !alone(namespaces, &field, "", "namespaces", e) {
        for (i, namespace) in items(namespaces).iter().enumerate() {
            let intro = |why: String| format!("each member of this list must be '*' or a DNS-1123 label; {why}");
            let rule = is_dns1123_label(text(namespace)).map_err(|all| all.into_iter().map(intro).collect());
            e.invalid_each(&field.index(i), text(namespace), rule);
        }
    }
}

fn verbs(of: &Value, p: &Path<'_>, e: &mut Errors) {
    let known = |verb: &Value| VERBS.contains(&text(verb));
    if !alone(of, p, "verbs must contain at least one value", "verbs", e) && !items(of).iter().all(known) {
        e.not_supported(p, of, &VERBS);
    }
}

/// Checks that a star is the only item of its list. Returns whether the items need no further validation.
fn alone(list: &Value, p: &Path<'_>, missing: &str, others: &str, e: &mut Errors) -> bool {
    if empty(list) {
        e.required(p, missing);
        return true;
    }
    let star = holds(list, "*");
    if star && items(list).len() > 1 {
        e.invalid(p, list, format!("if '*' is present, must not specify other {others}"));
    }
    star
}

fn bad_url(url: &str) -> Option<&'static str> {
    Some(match url {
        "" => "must not be empty",
        "/" => return None,
        url if !url.starts_with('/') => "must start with slash",
        url if url.contains(' ') => "must not contain white-space",
        url if url.contains("//") => "must not contain double slash",
        url if url.matches('*').count() > 1 || url.contains('*') && !url.ends_with("/*") => {
            "wildcard can only do suffix matching"
        }
        _ => return None,
    })
}

fn conditions(status: &Value, e: &mut Errors) {
    let root = Path::new("status");
    let list = root.child("conditions");
    unique(&status["conditions"], "type", &list, e);
    for (i, condition) in items(&status["conditions"]).iter().enumerate() {
        if text(&condition["type"]).is_empty() {
            e.required(&list.index(i).child("type"), "");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn faults(check: fn(&Value, Option<&Value>, &mut Errors), object: &Value) -> String {
        let mut e = Errors::new();
        check(object, None, &mut e);
        e.finish().0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn schemas() {
        let rule = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "namespaces": ["*"]});
        let with = |change: fn(&mut Value)| {
            let mut object = json!({"metadata": {"name": "x"}, "spec": {"matchingPrecedence": 10,
                "priorityLevelConfiguration": {"name": "y"},
                "rules": [{"subjects": [{"kind": "User", "user": {"name": "u"}}], "resourceRules": [rule]}]}});
            change(&mut object["spec"]);
            object
        };
        let cases: [(fn(&mut Value), &str); 10] = [
            (|_| {}, ""),
            (
                |s| s["matchingPrecedence"] = json!(0),
                "spec.matchingPrecedence: Invalid value: 0: must be a positive value",
            ),
            (
                |s| s["matchingPrecedence"] = json!(1),
                "spec.matchingPrecedence: Invalid value: 1: only the schema named 'exempt' may have matchingPrecedence 1",
            ),
            (
                |s| s["matchingPrecedence"] = json!(10_001),
                "spec.matchingPrecedence: Invalid value: 10001: must not be greater than 10000",
            ),
            (
                |s| s["priorityLevelConfiguration"] = json!({}),
                "spec.priorityLevelConfiguration.name: Required value: must reference a priority level",
            ),
            (
                |s| s["rules"][0]["subjects"] = json!([]),
                "spec.rules[0].subjects: Required value: subjects must contain at least one value",
            ),
            (
                |s| s["rules"][0]["subjects"][0]["kind"] = json!("Group"),
                "spec.rules[0].subjects[0].group: Required value: group is required when subject kind is 'Group'\n\
                 spec.rules[0].subjects[0].user: Forbidden: user is forbidden when subject kind is not 'User'",
            ),
            (
                |s| s["rules"][0]["resourceRules"][0]["namespaces"] = json!([]),
                "spec.rules[0].resourceRules[0].namespaces: Required value: resource rules that are not cluster scoped \
                 must supply at least one namespace",
            ),
            (
                |s| s["rules"][0]["resourceRules"][0]["resources"] = json!(["*", "pods"]),
                "spec.rules[0].resourceRules[0].resources: Invalid value: [\"*\",\"pods\"]: if '*' is present, must not \
                 specify other resources",
            ),
            (
                |s| {
                    s["rules"][0]["nonResourceRules"] = json!([{"verbs": ["*"], "nonResourceURLs": ["/a*"]}]);
                },
                "spec.rules[0].nonResourceRules[0].nonResourceURLs[0]: Invalid value: \"/a*\": wildcard can only do suffix \
                 matching",
            ),
        ];
        for (change, expected) in cases {
            assert_eq!(faults(flow_schema, &with(change)), expected);
        }
    }

    #[test]
    fn levels() {
        let queuing = json!({"queues": 8, "handSize": 2, "queueLengthLimit": 5});
        let level = |spec: Value| json!({"metadata": {"name": "x"}, "spec": spec});
        let queue = |queuing: Value| {
            level(json!({"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": queuing}}}))
        };
        let wide = json!({"queues": 1024, "handSize": 7, "queueLengthLimit": 5});
        for (object, expected) in [
            (queue(queuing.clone()), ""),
            (
                queue(json!({"queues": 1, "handSize": 2, "queueLengthLimit": 0})),
                "spec.limited.limitResponse.queuing.queueLengthLimit: Invalid value: 0: must be positive\n\
                 spec.limited.limitResponse.queuing.handSize: Invalid value: 2: should not be greater than queues (1)",
            ),
            (
                queue(wide),
                "spec.limited.limitResponse.queuing.handSize: Invalid value: 7: required entropy bits of deckSize 1024 \
                 and handSize 7 should not be greater than 60",
            ),
            (
                level(json!({"type": "Limited", "limited": {"limitResponse": {"type": "Reject", "queuing": queuing}}})),
                "spec.limited.limitResponse.queuing: Forbidden: must be nil if limited.limitResponse.type is not Limited",
            ),
            (
                level(json!({"type": "Exempt"})),
                "spec.type: Invalid value: \"Exempt\": must be 'Exempt' if and only if `name` is 'exempt'",
            ),
            (level(json!({"type": "Limited"})), "spec.limited: Required value: must not be empty when type is Limited"),
        ] {
            assert_eq!(faults(priority_level, &object), expected);
        }
    }
}
