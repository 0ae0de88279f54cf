//! Converts the `managedFields` entries of an object to those of its `scale` subresource and back. A `Scale` has one
//! field that can be owned, the desired number of replicas. Upstream: apimachinery `util/managedfields/scalehandler`.
use super::{
    fields::{FieldSet, PathElement},
    managed::{EntriesError, Managed, ManagerId, Operation, Owned},
};
use serde_json::Value;
use std::collections::BTreeMap;

/// The API version of `Scale`.
pub const SCALE_VERSION: &str = "autoscaling/v1";

/// The path of the replica count in each version of a kind, or `None` for a version without `scale`. Entries of other
/// versions are dropped.
pub type ReplicaPaths = BTreeMap<String, Option<Vec<String>>>;

fn one(path: &[String]) -> FieldSet {
    let mut set = FieldSet::default();
    let path: Vec<PathElement> = path.iter().map(|key| PathElement::Field(key.clone())).collect();
    set.insert(&path);
    set
}

fn count_of_scale() -> FieldSet {
    FieldSet::of(&[&["spec", "replicas"]])
}

fn has(owned: &Owned, path: &FieldSet) -> bool {
    !owned.fields.set().intersection(path).is_empty()
}

fn keyed(id: &ManagerId, api_version: &str) -> ManagerId {
    ManagerId {
        api_version: if id.operation == Operation::Apply { String::new() } else { api_version.to_owned() },
        ..id.clone()
    }
}

/// Writes to a `Scale` the entries of the managers that own the replica count of its object.
///
/// # Errors
/// Fails if the entries of the object cannot be read.
pub fn to_scale(parent: &Value, paths: &ReplicaPaths, scale: &mut Value) -> Result<(), EntriesError> {
    let mut out = Managed::default();
    for (id, owned) in Managed::read(parent)?.0 {
        let Some(Some(path)) = paths.get(&owned.api_version) else { continue };
        if has(&owned, &one(path)) {
            let fields = count_of_scale().into();
            let owned = Owned { fields, api_version: SCALE_VERSION.to_owned(), time: owned.time };
            out.0.insert(keyed(&id, SCALE_VERSION), owned);
        }
    }
    out.write(scale);
    Ok(())
}

/// Writes the entries of an object after a write of its `Scale`. `version` is the version of the object's kind, and
/// `parent` is the object before the write.
///
/// # Errors
/// Fails if the entries cannot be read.
pub fn to_parent(
    parent: &Value,
    scale: &Value,
    paths: &ReplicaPaths,
    version: &str,
    object: &mut Value,
) -> Result<(), EntriesError> {
    let mut of_scale = Managed::read(scale)?.0;
    let mut out = Managed::default();
    for (id, mut owned) in Managed::read(parent)?.0 {
        let Some(path) = paths.get(&owned.api_version) else { continue };
        if let Some(path) = path.as_deref().map(one).filter(|path| has(&owned, path))
            && of_scale.remove(&keyed(&id, SCALE_VERSION)).is_none()
        {
            // Another manager has set the count.
            owned.fields.subtract(&path);
        }
        if !owned.fields.is_empty() {
            out.0.insert(id, owned);
        }
    }
    let Some(Some(path)) = paths.get(version) else {
        out.write(object);
        return Ok(());
    };
    for (id, owned) in of_scale.into_iter().filter(|(_, owned)| has(owned, &count_of_scale())) {
        let owned = Owned { fields: one(path).into(), api_version: version.to_owned(), time: owned.time };
        out.0.insert(keyed(&id, version), owned);
    }
    out.write(object);
    Ok(())
}
