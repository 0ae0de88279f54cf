//! `admissionregistration.k8s.io`: webhook configurations, admission policies and their bindings.
use jiff::Timestamp;
use serde_json::{Value, json};

use super::kind::{Generic, plain};
use super::{admission_policies, admission_webhooks};
use crate::column::{AGE, Column, NAME};
use crate::options::Options;
use crate::table::{UNSET, age, name, selector};
use crate::tree::{at_mut, default_to, ensure, items, items_mut, object_mut, present, text};
const GROUP: &str = "admissionregistration.k8s.io";

/// Returns webhook configurations, policies and bindings.
pub fn kinds() -> Vec<Generic> {
    vec![
        plain(Options {
            generation: true,
            allow_unconditional_update: false,
            ..Options::of(GROUP, "mutatingadmissionpolicies")
        })
        .default(policy_defaults)
        .checked(admission_policies::policy)
        .table(MUTATIONS, policy_row),
        plain(Options {
            generation: true,
            allow_unconditional_update: false,
            ..Options::of(GROUP, "mutatingadmissionpolicybindings")
        })
        .default(binding_defaults)
        .checked(admission_policies::binding)
        .table(POLICY_BINDINGS, policy_binding_row),
        plain(Options {
            generation: true,
            allow_unconditional_update: false,
            ..Options::of(GROUP, "mutatingwebhookconfigurations")
        })
        .default(webhook_defaults)
        .checked(admission_webhooks::webhooks)
        .table(WEBHOOKS, webhook_row),
        plain(Options {
            generation: true,
            allow_unconditional_update: false,
            ..Options::of(GROUP, "validatingadmissionpolicies")
        })
        .default(policy_defaults)
        .checked(admission_policies::policy)
        .checked_status(admission_policies::policy_status)
        .table(VALIDATIONS, policy_row),
        plain(Options {
            generation: true,
            allow_unconditional_update: false,
            ..Options::of(GROUP, "validatingadmissionpolicybindings")
        })
        .default(binding_defaults)
        .checked(admission_policies::binding)
        .table(POLICY_BINDINGS, policy_binding_row),
        plain(Options {
            generation: true,
            allow_unconditional_update: false,
            ..Options::of(GROUP, "validatingwebhookconfigurations")
        })
        .default(webhook_defaults)
        .checked(admission_webhooks::webhooks)
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
    Column::integer("Mutations", "Mutations of the policy."),
    Column::text("ParamKind", "Kind of the parameters."),
    AGE,
];

const POLICY_BINDINGS: &[Column] = &[
    NAME,
    Column::text("PolicyName", "Policy that is bound."),
    Column::text("ParamRef", "Parameters it is bound to."),
    AGE,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::Strategy as _;

    /// Returns the errors of an object, except those of its metadata.
    fn faults(plural: &str, mut object: Value) -> Vec<String> {
        let kind = kinds().into_iter().find(|k| k.options().resource == plural).expect("a kind");
        object["metadata"] = json!({"name": "a"});
        kind.set_defaults("v1", &mut object);
        kind.validate_create(&object).0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn webhooks() {
        let good = || {
            json!({"name": "a.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "clientConfig": {"url": "https://h/p"},
                "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]})
        };
        let of = |change: &dyn Fn(&mut Value)| {
            let mut hook = good();
            change(&mut hook);
            faults("validatingwebhookconfigurations", json!({"webhooks": [hook]}))
        };
        assert_eq!(of(&|_| {}), Vec::<String>::new());
        for (change, want) in [
            (
                (|h| h["name"] = json!("short")) as fn(&mut Value),
                "webhooks[0].name: Invalid value: \"short\": should be a domain with at least three segments separated by dots",
            ),
            (
                |h| h["sideEffects"] = json!("Some"),
                "webhooks[0].sideEffects: Unsupported value: \"Some\": supported values: \"None\", \"NoneOnDryRun\"",
            ),
            (
                |h| h["timeoutSeconds"] = json!(31),
                "webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds",
            ),
            (
                |h| h["clientConfig"] = json!({}),
                "webhooks[0].clientConfig: Required value: exactly one of url or service is required",
            ),
            (
                |h| h["clientConfig"]["url"] = json!("http://h"),
                "webhooks[0].clientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]",
            ),
            (
                |h| h["admissionReviewVersions"] = json!(["v2"]),
                "webhooks[0].admissionReviewVersions: Invalid value: [\"v2\"]: must include at least one of v1, v1beta1",
            ),
            (
                |h| h["rules"][0]["resources"] = json!(["*/*", "pods"]),
                "webhooks[0].rules[0].resources: Invalid value: [\"*/*\",\"pods\"]: if '*/*' is present, must not specify other resources",
            ),
            (
                |h| h["rules"][0]["operations"] = json!(["READ"]),
                "webhooks[0].rules[0].operations[0]: Unsupported value: \"READ\": supported values: \"*\", \"CONNECT\", \"CREATE\", \"DELETE\", \"UPDATE\"",
            ),
            (
                |h| h["matchConditions"] = json!([{"name": "c", "expression": "1"}]),
                "webhooks[0].matchConditions[0].expression: Invalid value: \"1\": must evaluate to bool but got int",
            ),
        ] {
            assert_eq!(of(&change), [want]);
        }
        let twice = faults("validatingwebhookconfigurations", json!({"webhooks": [good(), good()]}));
        assert_eq!(twice, ["webhooks[1].name: Duplicate value: \"a.example.com\""]);
    }

    #[test]
    fn policies() {
        let constraints = json!({"resourceRules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]});
        let validating = |spec: Value| {
            let mut spec = spec;
            spec["matchConstraints"] = constraints.clone();
            faults("validatingadmissionpolicies", json!({"kind": "ValidatingAdmissionPolicy", "spec": spec}))
        };
        let good = json!({"variables": [{"name": "n", "expression": "object.metadata.name"}],
            "validations": [{"expression": "variables.n != ''", "messageExpression": "'bad ' + variables.n"}]});
        assert_eq!(validating(good), Vec::<String>::new());
        let none = "validations or auditAnnotations must contain at least one item";
        let empty = validating(json!({}));
        assert_eq!(
            empty,
            [
                format!("spec.validations: Required value: {none}"),
                format!("spec.auditAnnotations: Required value: {none}")
            ]
        );
        let unknown = validating(json!({"validations": [{"expression": "params.x == 1"}]}));
        assert!(
            unknown[0].contains("compilation failed: ERROR: <input>:1:1: undeclared reference to 'params'"),
            "{unknown:?}"
        );
        let binding = |spec: Value| {
            faults(
                "validatingadmissionpolicybindings",
                json!({"kind": "ValidatingAdmissionPolicyBinding", "spec": spec}),
            )
        };
        assert_eq!(binding(json!({"policyName": "p", "validationActions": ["Deny"]})), Vec::<String>::new());
        assert_eq!(
            binding(json!({"policyName": "p"})),
            ["spec.validationActions: Required value: at least one validation action is required"]
        );
        assert_eq!(
            binding(
                json!({"policyName": "p", "validationActions": ["Deny"], "paramRef": {"parameterNotFoundAction": "Deny"}})
            ),
            ["spec.paramRef: Required value: one of name or selector must be specified"]
        );
    }
}
