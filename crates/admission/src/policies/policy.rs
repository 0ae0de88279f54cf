//! What policies of both kinds and their bindings have in common, decoded.
use kelson_cel::admission::Extent;
use kelson_meta::tree::path::{at, text};
use kelson_meta::{Gvk, LabelSelector, LabelSelectorSpec};
use serde_json::Value;

use crate::dynamic::expressions::Variables;
use crate::dynamic::{Conditions, Criteria};

/// What validating and mutating policies share.
pub struct Policy {
    /// Its name, which clients read in refusals.
    pub name: String,
    /// Which requests it is for.
    pub criteria: Criteria,
    /// Kind of its parameters.
    pub param_kind: Option<Gvk>,
    /// A policy that cannot be evaluated lets requests pass (`failurePolicy: Ignore`).
    pub ignores_failures: bool,
    /// Which requests its bindings are evaluated for.
    pub conditions: Conditions,
    /// Its named expressions.
    pub variables: Variables,
    /// What its expressions may name.
    pub extent: Extent,
}

impl Policy {
    /// From a stored object.
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

/// Group and version of an `apiVersion`.
fn split(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

/// What brings a policy into force.
pub struct Binding {
    /// Its name, which clients read in refusals.
    pub name: String,
    /// The policy it is for.
    pub policy: String,
    /// Narrows the requests that the policy is for; `None`: it does not.
    pub criteria: Option<Criteria>,
    /// Which parameters are used.
    pub params: Option<ParamRef>,
    /// What becomes of failed validations: `Deny`, `Warn`, `Audit`.
    pub actions: Vec<String>,
}

/// Which objects are the parameters (`paramRef`).
pub struct ParamRef {
    /// Of one object; empty where a selector chooses.
    pub name: String,
    /// Empty: the request's.
    pub namespace: String,
    /// Of many objects.
    pub selector: Option<Result<LabelSelector, String>>,
    /// No parameters at all are a failure (`parameterNotFoundAction: Deny`).
    pub required: bool,
}

impl Binding {
    /// From a stored object.
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
