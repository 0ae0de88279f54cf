//! ValidatingAdmissionPolicy and MutatingAdmissionPolicy: rules that administrators write as expressions, evaluated in this
//! process (upstream `plugin/policy`, KEP-3488, KEP-3962).
//!
//! [`policy`] is what both kinds are made of, `in_force` holds those that are stored or in files, [`params`] finds the
//! parameters of a binding, `decision` evaluates one validating policy, `mutation` one change; `validating` and `mutating` are
//! the plugins.
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

/// The namespace that expressions see as `namespaceObject`; none for what is in no namespace, and for namespaces themselves.
fn namespace_of(a: &Attributes<'_>, d: &Dependencies) -> Result<Option<Arc<Value>>, Status> {
    if a.namespace.is_empty() || a.is("", "namespaces") {
        return Ok(None);
    }
    let found = d.objects.tree("", "namespaces", "", a.namespace);
    found.map(Some).ok_or_else(|| Status::not_found(&GroupResource::new("", "namespaces"), a.namespace))
}
