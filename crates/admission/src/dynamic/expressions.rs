//! CEL expressions of webhooks and policies: compiled once per change, evaluated on a request's objects without copying
//! them (upstream `plugin/cel`).
use std::time::Duration;

use kelson_auth::authorize::Decision as Answer;
use kelson_auth::{Authorizer, UserInfo};
use kelson_cel::admission::{Extent, compile, env};
use kelson_cel::{
    AccessRequest, Activation, Budget, Decision, NamedPrograms, Program, Type, Value as CelValue, Values,
};
use kelson_meta::tree::path::{list, text};
use kelson_meta::{FieldSelector, LabelSelector};
use serde_json::{Value, json};

use super::{Match, VersionedObjects};
use crate::{Attributes, Dependencies};

/// The time limit of an evaluation, in addition to the cost budget, which counts steps and not seconds.
const TIME_MAX: Duration = Duration::from_secs(5);
/// The message when the expressions of a policy exceed their total budget.
pub const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// An expression: its source and its compiled form.
#[derive(Debug)]
pub struct Expression {
    /// The source of the expression.
    pub source: String,
    program: Result<Program, String>,
}

/// Why an expression has no value.
#[derive(Debug, PartialEq, Eq)]
pub enum Fault {
    /// This expression failed.
    Expression(String),
    /// The budget is exhausted, and nothing more may be evaluated.
    OutOfBudget,
}

impl Expression {
    /// Compiles an expression of admission.
    pub fn new(extent: Extent, source: &str, wanted: &[Type]) -> Self {
        Self { source: source.to_owned(), program: compile(env(extent), source, wanted) }
    }
    /// Returns the compile error, if there is one.
    pub fn fault(&self) -> Option<&str> {
        self.program.as_ref().err().map(String::as_str)
    }
    /// Evaluates the expression for a request.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn eval<'a>(&'a self, activation: &Activation<'a>, budget: &mut Budget) -> Result<CelValue<'a>, Fault> {
        let program = self.program.as_ref().map_err(|why| Fault::Expression(format!("compilation error: {why}")))?;
        let value = program.eval(activation, budget);
        if budget.is_exhausted() {
            return Err(Fault::OutOfBudget);
        }
        value.map_err(|e| Fault::Expression(format!("expression '{}' resulted in error: {e}", self.source)))
    }
}

/// The variables of one policy, each of which may use those before it, and the environment with them.
#[derive(Debug)]
pub struct Variables {
    programs: Vec<(String, Program)>,
    types: Vec<(String, Type)>,
    fault: Option<String>,
}

impl Variables {
    /// Compiles `variables` of a policy's `spec`.
    pub fn new(extent: Extent, spec: &Value) -> Self {
        let mut made = Self { programs: Vec::new(), types: Vec::new(), fault: None };
        for variable in list(spec, &["variables"]) {
            let (name, source) = (text(variable, &["name"]), text(variable, &["expression"]));
            match made.env(extent).compile(source) {
                Ok(program) => {
                    made.types.push((name.to_owned(), program.output_type().clone()));
                    made.programs.push((name.to_owned(), program));
                }
                Err(e) => {
                    let why = format!("composited variable {name:?} fails to compile: compilation failed: {e}");
                    made.fault = made.fault.or(Some(why));
                }
            }
        }
        made
    }
    fn env(&self, extent: Extent) -> kelson_cel::Env {
        let fields = self.types.iter().map(|(name, ty)| (name.as_str(), ty.clone()));
        env(extent).extend().named_expressions(fields).build()
    }
    /// Compiles an expression that may use the variables.
    pub fn expression(&self, extent: Extent, source: &str, wanted: &[Type]) -> Expression {
        let program = match &self.fault {
            Some(fault) => Err(fault.clone()),
            None => compile(&self.env(extent), source, wanted),
        };
        Expression { source: source.to_owned(), program }
    }
    /// Returns the compiled variables for [`Inputs::activation`].
    pub fn programs(&self) -> &NamedPrograms {
        &self.programs
    }
}

/// Calls the authorizer for the request's user.
pub struct Asking<'a> {
    user: &'a UserInfo,
    authorizer: &'a dyn Authorizer,
}

impl std::fmt::Debug for Asking<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asking").field("user", &self.user.name).finish_non_exhaustive()
    }
}

impl kelson_cel::Authorizer for Asking<'_> {
    fn check(&self, request: &AccessRequest) -> Decision {
        let account = request.service_account.as_ref();
        let account = account.map(|(namespace, name)| UserInfo::service_account(namespace, name, ""));
        let fields = request.field_selector.as_deref().and_then(|s| FieldSelector::parse(s).ok());
        let labels = request.label_selector.as_deref().and_then(|s| LabelSelector::parse(s).ok());
        let asked = kelson_auth::Attributes {
            user: account.as_ref().unwrap_or(self.user),
            verb: &request.verb,
            namespace: &request.namespace,
            group: &request.group,
            version: "*",
            resource: &request.resource,
            subresource: &request.subresource,
            name: &request.name,
            path: request.path.as_deref().unwrap_or(""),
            is_resource: request.path.is_none(),
            field_selector: fields.as_ref(),
            label_selector: labels.as_ref(),
        };
        let answer = self.authorizer.authorize(&asked);
        let (Answer::Allow(reason) | Answer::Deny(reason) | Answer::NoOpinion(reason)) = &answer;
        Decision { allowed: answer.is_allow(), reason: reason.clone(), error: None }
    }
}

/// The values of CEL variables for one request, shared by all expressions that are evaluated for it.
#[derive(Debug)]
pub struct Inputs<'a>(Values<'a>);

impl<'a> Asking<'a> {
    /// Creates the values for conditions without objects, for the user of a request.
    pub fn of(a: &'a Attributes<'_>, d: &'a Dependencies) -> Self {
        Self { user: a.user, authorizer: d.authorizer.as_ref() }
    }
}

impl<'a> Inputs<'a> {
    /// Creates the values for a request: `objects` are the new and the old object in the requested version, and
    /// `request` is what [`request`] returned for that version.
    pub fn new(
        a: &Attributes<'_>,
        objects: &'a VersionedObjects<'_>,
        request: &'a Value,
        namespace: Option<&'a Value>,
        asking: &'a Asking<'a>,
    ) -> Self {
        let json = |value: Option<&'a Value>| value.map_or(CelValue::Null, CelValue::json);
        let mut values = Values::default();
        values
            .bind("object", json(objects.object.as_deref()))
            .bind("oldObject", json(objects.old.as_deref()))
            .bind("request", CelValue::json(request))
            .bind("namespaceObject", json(namespace))
            .bind("authorizer", CelValue::authorizer(asking))
            .bind("authorizer.requestResource", CelValue::request_resource(asking, resource(a)));
        Self(values)
    }

    /// Adds parameters, null when there are none, and the variables of a policy.
    pub fn activation<'b>(&'b self, params: Option<&'b Value>, variables: &'b NamedPrograms) -> Activation<'b>
    where
        'a: 'b,
    {
        let mut activation = Activation::over(&self.0);
        activation.bind("params", params.map_or(CelValue::Null, CelValue::json));
        if !variables.is_empty() {
            activation.bind_programs(variables);
        }
        activation
    }
}

/// Creates a budget that also ends with the time limit.
pub fn budget(total: u64) -> Budget {
    Budget::new(total).within(TIME_MAX)
}

/// The value of `authorizer.requestResource`.
fn resource(a: &Attributes<'_>) -> AccessRequest {
    AccessRequest {
        group: a.resource.group.clone(),
        resource: a.resource.resource.clone(),
        subresource: a.subresource.to_owned(),
        namespace: a.namespace.to_owned(),
        name: a.name.to_owned(),
        ..AccessRequest::default()
    }
}

/// The value of `request` in the version of `form`.
pub fn request(a: &Attributes<'_>, form: &Match<'_>) -> Value {
    let kind = |g: &kelson_meta::Gvk| json!({"group": g.group, "version": g.version, "kind": g.kind});
    let resource = |g: &kelson_meta::Gvr| json!({"group": g.group, "version": g.version, "resource": g.resource});
    let mut request = json!({
        "kind": kind(&form.kind), "resource": resource(&form.resource),
        "requestKind": kind(a.kind), "requestResource": resource(a.resource),
        "operation": a.operation.as_str(), "userInfo": a.user, "dryRun": a.dry_run, "options": a.options.object(),
    });
    for (field, text) in [
        ("subResource", a.subresource),
        ("requestSubResource", a.subresource),
        ("name", a.name),
        ("namespace", a.namespace),
    ] {
        if !text.is_empty() {
            request[field] = text.into();
        }
    }
    request
}
