//! MutatingAdmissionPolicy: policies change objects in the order of their names and of their bindings' names, each
//! seeing the changes of those before (upstream `plugin/policy/mutating`).
use std::time::Instant;

use async_trait::async_trait;
use futures::future::BoxFuture;
use kelson_meta::tree::path::text;
use kelson_meta::{Reason, Status, StatusCause};
use serde_json::Value;

use super::in_force::{Bound, Decoded, InForce};
use super::mutation::{Change, MutatingPolicy, Mutation, of_kind, patched};
use super::policy::{Binding, Policy};
use super::{namespace_of, params};
use crate::dynamic::expressions::{self, Asking, Inputs};
use crate::dynamic::manifests::Accepted;
use crate::dynamic::{Match, VersionedObjects, protect};
use crate::metrics::Pass;
use crate::{AsyncPlugin, Attributes, Dependencies, Notes, Operation, Plugin};

impl Decoded for MutatingPolicy {
    const CONFIGURATION: &'static str = "MutatingAdmissionPolicyConfiguration";
    const ACCEPTED: [Accepted; 2] = [
        ("MutatingAdmissionPolicy", "mutatingadmissionpolicies"),
        ("MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings"),
    ];
    fn parse(tree: &Value) -> Self {
        Self::parse(tree)
    }
    fn base(&self) -> &Policy {
        &self.base
    }
}

/// The plugin; see the module.
pub struct MutatingPolicies {
    d: Dependencies,
    in_force: InForce<MutatingPolicy>,
}

/// A policy that could not be applied.
struct Problem {
    message: String,
    /// The reason of the rejection, if this is the first problem.
    reason: Option<Reason>,
}

/// A policy with one binding and one set of parameters.
struct Invocation<'p> {
    policy: &'p MutatingPolicy,
    binding: &'p Binding,
    params: Option<Value>,
    form: Match<'p>,
}

impl Invocation<'_> {
    /// Returns a unique name of the invocation.
    fn id(&self) -> String {
        let params = self.params.as_ref();
        let of = |field| params.map_or("", |p| text(p, &["metadata", field]));
        format!("{}/{}/{}/{}", self.policy.base.name, self.binding.name, of("namespace"), of("name"))
    }
}

fn problem(policy: &MutatingPolicy, binding: Option<&Binding>, why: &str, reason: Option<Reason>) -> Option<Problem> {
    if policy.base.ignores_failures {
        return None;
    }
    let name = &policy.base.name;
    let message = match binding {
        Some(binding) => format!("policy '{name}' with binding '{}' denied request: {why}", binding.name),
        None => format!("policy {name:?} denied request: {why}"),
    };
    Some(Problem { message, reason })
}

impl MutatingPolicies {
    /// Creates the plugin with the stored policies and bindings, and those in the files that its configuration names.
    ///
    /// # Errors
    /// The configuration or a file is invalid.
    pub fn new(d: &Dependencies, configuration: &Value) -> Result<Self, String> {
        Ok(Self { d: d.clone(), in_force: InForce::new(d, configuration)? })
    }

    /// Returns the invocations of one policy.
    async fn invocations<'p>(
        &self,
        Bound { policy, bindings }: &'p Bound<MutatingPolicy>,
        a: &Attributes<'p>,
        problems: &mut Vec<Problem>,
    ) -> Vec<Invocation<'p>> {
        let (objects, versions) = (self.d.objects.as_ref(), self.d.versions.as_ref());
        let mut found = Vec::new();
        let form = match policy.base.criteria.matches(a, objects, versions) {
            Ok(Some(form)) => form,
            Ok(None) => return found,
            Err(status) => {
                let why = format!("failed to configure policy: {}", status.message);
                problems.extend(problem(policy, None, &why, None));
                return found;
            }
        };
        for binding in bindings {
            let fits = match &binding.criteria {
                None => Ok(true),
                Some(criteria) => criteria.matches(a, objects, versions).map(|m| m.is_some()).map_err(|s| s.message),
            };
            let params = match fits {
                Ok(false) => continue,
                Ok(true) => params::collect(&policy.base, binding, a, &self.d).await,
                Err(why) => Err(why),
            };
            match params {
                Ok(params) => found.extend(params.into_iter().map(|params| Invocation {
                    policy,
                    binding,
                    params,
                    form: form.clone(),
                })),
                Err(why) => {
                    let why = format!("failed to configure binding: {why}");
                    problems.extend(problem(policy, Some(binding), &why, None));
                }
            }
        }
        found
    }

    /// Applies one policy.
    async fn invoke(
        &self,
        invocation: &Invocation<'_>,
        a: &mut Attributes<'_>,
        notes: &mut Notes,
        problems: &mut Vec<Problem>,
    ) -> Result<(), Status> {
        let (policy, binding) = (invocation.policy, invocation.binding);
        match self.conditions(invocation, a).await? {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(why) => {
                problems.extend(problem(policy, Some(binding), &why, Some(Reason::Invalid)));
                return Ok(());
            }
        }
        let id = invocation.id();
        if a.rounds.second && !a.rounds.policies.is_due(&id) {
            return Ok(());
        }
        let mut changed = false;
        for mutation in &policy.mutations {
            if a.object.is_none() {
                break;
            }
            let begun = Instant::now();
            let outcome = self.mutate(invocation, mutation, a, notes).await;
            let counted = |error| self.d.metrics.mutation(&policy.base.name, &binding.name, error, begun.elapsed());
            match outcome {
                Ok(object) => {
                    counted("no_error");
                    changed |= a.object.as_ref() != Some(&object);
                    a.object = Some(object);
                }
                Err(why) => {
                    counted("invalid_error");
                    problems.extend(problem(policy, Some(binding), &why, Some(Reason::Invalid)));
                }
            }
        }
        if changed {
            a.rounds.policies.changed();
            a.rounds.again = true;
            notes.actors.push(format!("policy {:?}", policy.base.name));
        }
        if policy.reinvoked {
            a.rounds.policies.ran(&id);
        }
        Ok(())
    }

    async fn conditions(
        &self,
        invocation: &Invocation<'_>,
        a: &Attributes<'_>,
    ) -> Result<Result<bool, String>, Status> {
        let base = &invocation.policy.base;
        if base.conditions.is_empty() {
            return Ok(Ok(true));
        }
        let shown = VersionedObjects::of(a, self.d.versions.as_ref(), &invocation.form).await?;
        let namespace = namespace_of(a, &self.d)?;
        let (held, seen) = self.with_inputs(invocation, a, &shown, namespace.as_deref(), |inputs| {
            base.conditions.hold(inputs, invocation.params.as_ref())
        });
        self.d.metrics.conditions(&base.name, "policy", Pass::Admit, a.operation, seen);
        Ok(match held {
            Err(_) if base.ignores_failures => Ok(false),
            held => held,
        })
    }

    fn with_inputs<T>(
        &self,
        invocation: &Invocation<'_>,
        a: &Attributes<'_>,
        shown: &VersionedObjects<'_>,
        namespace: Option<&Value>,
        see: impl FnOnce(&Inputs<'_>) -> T,
    ) -> T {
        let (request, asking) = (expressions::request(a, &invocation.form), Asking::of(a, &self.d));
        see(&Inputs::new(a, shown, &request, namespace, &asking))
    }

    /// Applies one mutation to the object, in the form that admission sees.
    async fn mutate(
        &self,
        invocation: &Invocation<'_>,
        mutation: &Mutation,
        a: &Attributes<'_>,
        notes: &mut Notes,
    ) -> Result<Value, String> {
        let (versions, form) = (self.d.versions.as_ref(), &invocation.form);
        let shown = VersionedObjects::of(a, versions, form).await.map_err(|s| s.message)?;
        let namespace = namespace_of(a, &self.d).map_err(|s| s.message)?;
        let (base, params) = (&invocation.policy.base, invocation.params.as_ref());
        let change = self
            .with_inputs(invocation, a, &shown, namespace.as_deref(), |inputs| mutation.change(base, inputs, params))?;
        let object = shown.object.as_deref().unwrap_or(&Value::Null);
        let mut new = match change {
            Change::Patch(operations) => patched(object, &operations)?,
            Change::Merge(fields) => versions
                .merge(&form.resource, &form.kind, object, &of_kind(fields, object))
                .map_err(|why| format!("error applying patch: {why}"))?,
        };
        protect(a.operation, object, &mut new, notes);
        versions.take(a.resource, &form.resource, &form.kind, new).await.map_err(|s| s.message)
    }
}

fn refusal(a: &Attributes<'_>, problems: Vec<Problem>) -> Result<(), Status> {
    let Some(first) = problems.first() else { return Ok(()) };
    let mut status = a.forbidden("");
    status.message.clone_from(&first.message);
    status.reason = first.reason.unwrap_or(status.reason);
    let causes = problems.into_iter().map(|p| StatusCause { message: p.message, ..StatusCause::default() });
    status.details.get_or_insert_default().causes.extend(causes);
    Err(status)
}

impl Plugin for MutatingPolicies {
    fn name(&self) -> &'static str {
        "MutatingAdmissionPolicy"
    }
    fn handles(&self, op: Operation) -> bool {
        op != Operation::Delete
    }
    fn reload(&self) -> Option<BoxFuture<'_, ()>> {
        self.in_force.reload()
    }
    fn as_async(&self, a: &Attributes<'_>) -> Option<&dyn AsyncPlugin> {
        self.in_force.may_concern(a).then_some(self as &dyn AsyncPlugin)
    }
}

#[async_trait]
impl AsyncPlugin for MutatingPolicies {
    async fn admit(&self, a: &mut Attributes<'_>, notes: &mut Notes) -> Result<(), Status> {
        if a.rounds.second {
            a.rounds.policies.begin_second(a.object.as_ref());
        }
        let ready = self.in_force.ready(a);
        let (mut problems, mut invocations) = (Vec::new(), Vec::new());
        for bound in ready.of(a) {
            invocations.extend(self.invocations(bound, a, &mut problems).await);
        }
        for invocation in &invocations {
            self.invoke(invocation, a, notes, &mut problems).await?;
        }
        a.rounds.policies.end(a.object.as_ref());
        refusal(a, problems)
    }
}
