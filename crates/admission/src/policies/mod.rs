//! ValidatingAdmissionPolicy and MutatingAdmissionPolicy: CEL rules of administrators, evaluated in this process
//! (upstream `plugin/policy`, KEP-3488, KEP-3962).
//!
//! [`policy`] has the parts of both kinds, `in_force` those that are stored or in files, [`params`] finds the
//! parameters of a binding, `decision` evaluates one validating policy, `mutation` one change; `validating` and
//! `mutating` are the plugins.
mod decision;
mod in_force;
mod mutating;
mod mutation;
mod params;
mod policy;
mod validating;

pub use mutating::MutatingPolicies;
pub use validating::ValidatingPolicies;

use std::sync::Arc;

use kelson_meta::{GroupResource, Status};
use serde_json::Value;

use crate::{Attributes, Dependencies};

/// Returns the namespace for the CEL variable `namespaceObject`; none for cluster-scoped objects and for namespaces
/// themselves.
fn namespace_of(a: &Attributes<'_>, d: &Dependencies) -> Result<Option<Arc<Value>>, Status> {
    if a.namespace.is_empty() || a.is("", "namespaces") {
        return Ok(None);
    }
    let found = d.objects.tree("", "namespaces", "", a.namespace);
    found.map(Some).ok_or_else(|| Status::not_found(&GroupResource::new("", "namespaces"), a.namespace))
}
