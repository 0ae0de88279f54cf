//! `admissionregistration.k8s.io`: webhook configurations, admission policies and their bindings.
use jiff::Timestamp;
use serde_json::{Value, json};

use super::kind::{Generic, plain};
use crate::column::{AGE, Column, NAME};
use crate::options::Options;
use crate::table::{UNSET, age, name, selector};
use crate::tree::{at_mut, default_to, ensure, items, items_mut, object_mut, present, text};
const GROUP: &str = "admissionregistration.k8s.io";

/// Its kinds.
pub fn kinds() -> Vec<Generic> {
    vec![
        plain(Options {
            generation: true,
            allow_unconditional_update: false,
            ..Options::of(GROUP, "mutatingadmissionpolicies")
        })
        .default(policy_defaults)
        .table(MUTATIONS, policy_row),
        plain(Options {
            generation: true,
            allow_unconditional_update: false,
            ..Options::of(GROUP, "mutatingadmissionpolicybindings")
        })
        .default(binding_defaults)
        .table(POLICY_BINDINGS, policy_binding_row),
        plain(Options {
            generation: true,
            allow_unconditional_update: false,
            ..Options::of(GROUP, "mutatingwebhookconfigurations")
        })
        .default(webhook_defaults)
        .table(WEBHOOKS, webhook_row),
        plain(Options {
            generation: true,
            allow_unconditional_update: false,
            ..Options::of(GROUP, "validatingadmissionpolicies")
        })
        .default(policy_defaults)
        .table(VALIDATIONS, policy_row),
        plain(Options {
            generation: true,
            allow_unconditional_update: false,
            ..Options::of(GROUP, "validatingadmissionpolicybindings")
        })
        .default(binding_defaults)
        .table(POLICY_BINDINGS, policy_binding_row),
        plain(Options {
            generation: true,
            allow_unconditional_update: false,
            ..Options::of(GROUP, "validatingwebhookconfigurations")
        })
        .default(webhook_defaults)
        .table(WEBHOOKS, webhook_row),
    ]
}

fn webhook_defaults(obj: &mut Value) {
    let mutating = text(&obj["kind"]) == "MutatingWebhookConfiguration";
    for w in items_mut(obj, "webhooks") {
        default_to(w, "failurePolicy", "Fail");
        default_to(w, "timeoutSeconds", 10);
        match_defaults(w);
        if mutating {
            default_to(w, "reinvocationPolicy", "Never");
        }
        rules_defaults(w, "rules");
        if let Some(s) = at_mut(w, &["clientConfig", "service"]) {
            default_to(s, "port", 443);
        }
    }
}

fn match_defaults(m: &mut Value) {
    default_to(m, "matchPolicy", "Equivalent");
    default_to(m, "namespaceSelector", json!({}));
    default_to(m, "objectSelector", json!({}));
}

fn rules_defaults(m: &mut Value, list: &str) {
    for r in items_mut(m, list) {
        default_to(r, "scope", "*");
    }
}

fn policy_defaults(obj: &mut Value) {
    let Some(spec) = ensure(obj, "spec") else { return };
    default_to(spec, "failurePolicy", "Fail");
    if let Some(m) = object_mut(spec, "matchConstraints") {
        match_defaults(m);
        for list in ["resourceRules", "excludeResourceRules"] {
            rules_defaults(m, list);
        }
    }
}

fn binding_defaults(obj: &mut Value) {
    let Some(m) = at_mut(obj, &["spec", "matchResources"]).filter(|m| m.is_object()) else { return };
    match_defaults(m);
    for list in ["resourceRules", "excludeResourceRules"] {
        rules_defaults(m, list);
    }
}

fn webhook_row(obj: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(obj), json!(items(&obj["webhooks"]).len()), age(obj, now)]
}

fn policy_row(obj: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, kind) = (&obj["spec"], &obj["spec"]["paramKind"]);
    let count = items(&spec["validations"]).len().max(items(&spec["mutations"]).len());
    let kind =
        if present(kind) { format!("{}/{}", text(&kind["apiVersion"]), text(&kind["kind"])) } else { UNSET.to_owned() };
    vec![name(obj), json!(count), json!(kind), age(obj, now)]
}

fn policy_binding_row(obj: &Value, now: Timestamp) -> Vec<Value> {
    let p = &obj["spec"]["paramRef"];
    let shown = match (text(&p["namespace"]), text(&p["name"])) {
        (_, "") if present(&p["selector"]) => selector(&p["selector"]),
        (_, "") => UNSET.to_owned(),
        ("", n) => format!("*/{n}"),
        (ns, n) => format!("{ns}/{n}"),
    };
    vec![name(obj), json!(text(&obj["spec"]["policyName"])), json!(shown), age(obj, now)]
}

const WEBHOOKS: &[Column] = &[NAME, Column::integer("Webhooks", "Webhooks that are called."), AGE];

const VALIDATIONS: &[Column] = &[
    NAME,
    Column::integer("Validations", "Expressions that must hold."),
    Column::text("ParamKind", "Kind of the parameters."),
    AGE,
];

const MUTATIONS: &[Column] = &[
    NAME,
    Column::integer("Mutations", "Changes that are made."),
    Column::text("ParamKind", "Kind of the parameters."),
    AGE,
];

const POLICY_BINDINGS: &[Column] = &[
    NAME,
    Column::text("PolicyName", "Policy that is bound."),
    Column::text("ParamRef", "Parameters it is bound to."),
    AGE,
];
