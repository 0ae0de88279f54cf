//! The common parts of both kinds of policies and of their bindings, decoded.
use kelson_cel::admission::Extent;
use kelson_meta::tree::path::{at, text};
use kelson_meta::{Gvk, LabelSelector, LabelSelectorSpec};
use serde_json::Value;

use crate::dynamic::expressions::Variables;
use crate::dynamic::{Conditions, Criteria};

/// The common fields of validating and mutating policies.
pub struct Policy {
    /// The name, which is part of rejection messages.
    pub name: String,
    /// The requests it matches.
    pub criteria: Criteria,
    /// The kind of its parameters.
    pub param_kind: Option<Gvk>,
    /// Whether requests pass when it cannot be evaluated (`failurePolicy: Ignore`).
    pub ignores_failures: bool,
    /// The match conditions.
    pub conditions: Conditions,
    /// Its named expressions.
    pub variables: Variables,
    /// The variables that its expressions may use.
    pub extent: Extent,
}

impl Policy {
    /// Decodes a stored object.
    pub fn parse(tree: &Value) -> Self {
        let spec = at(tree, &["spec"]);
        let kind = at(spec, &["paramKind"]);
        let param_kind = kind.is_object().then(|| {
            let (group, version) = split(text(kind, &["apiVersion"]));
            Gvk::new(group, version, text(kind, &["kind"]))
        });
        let extent = Extent { params: param_kind.is_some(), authorizer: true, mutations: false };
        Self {
            name: text(tree, &["metadata", "name"]).to_owned(),
            criteria: Criteria::parse(at(spec, &["matchConstraints"])),
            ignores_failures: text(spec, &["failurePolicy"]) == "Ignore",
            conditions: Conditions::parse(spec, extent.params),
            variables: Variables::new(extent, spec),
            param_kind,
            extent,
        }
    }
}

/// Splits an `apiVersion` into group and version.
fn split(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

/// A binding of a policy.
pub struct Binding {
    /// The name, which is part of rejection messages.
    pub name: String,
    /// The name of the policy.
    pub policy: String,
    /// Narrows the requests that the policy matches; `None` does not.
    pub criteria: Option<Criteria>,
    /// The parameters to use.
    pub params: Option<ParamRef>,
    /// The actions for failed validations: `Deny`, `Warn`, `Audit`.
    pub actions: Vec<String>,
}

/// Selects the parameter objects (`paramRef`).
pub struct ParamRef {
    /// The name of one object; empty when a selector is used.
    pub name: String,
    /// The namespace; empty means that of the request.
    pub namespace: String,
    /// Selects several objects.
    pub selector: Option<Result<LabelSelector, String>>,
    /// Whether it is an error when no object is found (`parameterNotFoundAction: Deny`).
    pub required: bool,
}

impl Binding {
    /// Decodes a stored object.
    pub fn parse(tree: &Value) -> Self {
        let spec = at(tree, &["spec"]);
        let (resources, reference) = (at(spec, &["matchResources"]), at(spec, &["paramRef"]));
        let selector = at(reference, &["selector"]);
        let selector = selector.is_object().then(|| {
            let spec: LabelSelectorSpec = serde_json::from_value(selector.clone()).map_err(|e| e.to_string())?;
            spec.selector().map_err(|e| e.to_string())
        });
        let params = reference.is_object().then(|| ParamRef {
            name: text(reference, &["name"]).to_owned(),
            namespace: text(reference, &["namespace"]).to_owned(),
            selector,
            required: text(reference, &["parameterNotFoundAction"]) == "Deny",
        });
        let actions = kelson_meta::tree::path::list(spec, &["validationActions"]);
        Self {
            name: text(tree, &["metadata", "name"]).to_owned(),
            policy: text(spec, &["policyName"]).to_owned(),
            criteria: resources.is_object().then(|| Criteria::of_binding(resources)),
            params,
            actions: actions.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        }
    }
}
