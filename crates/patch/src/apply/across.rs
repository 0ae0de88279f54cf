//! Field management for objects whose entries name fields in other versions than that of the write. Each manager's
//! fields are compared, kept and removed in the version of its entry. Upstream: structured-merge-diff `merge`, with the
//! converter of apimachinery `util/managedfields/internal/versionconverter`.
use super::{
    compare::Comparison,
    conflict::{AcrossError, ApplyError, ConvertError},
    fields::FieldSet,
    managed::{Managed, Owned},
    manager::FieldManager,
    walk,
};
use serde_json::Value;
use std::{collections::BTreeMap, future::Future, pin::Pin, sync::Arc};

/// The conversion of an object to another version, in progress.
pub type Converting<'a> = Pin<Box<dyn Future<Output = Result<Value, ConvertError>> + Send + 'a>>;

/// Converts one object between the versions of its kind.
pub trait Versions: Send + Sync {
    /// The manager of the same (sub)resource in another version. `None` if that version is no longer served.
    fn manager(&self, api_version: &str) -> Option<Arc<FieldManager>>;
    /// Converts the object from the version that it names to another one.
    fn convert<'a>(&'a self, object: Value, to: &'a str) -> Converting<'a>;
}

/// The other versions that entries name.
fn foreign<'a>(managed: impl IntoIterator<Item = &'a str>, own: &str) -> Vec<String> {
    let mut versions: Vec<String> = managed.into_iter().filter(|v| *v != own).map(str::to_owned).collect();
    versions.sort_unstable();
    versions.dedup();
    versions
}

fn named_in(object: Option<&Value>) -> impl Iterator<Item = &str> {
    let entries = object.and_then(|o| o["metadata"]["managedFields"].as_array());
    entries.into_iter().flatten().filter_map(|entry| entry["apiVersion"].as_str())
}

fn without_entries(object: &Value) -> Value {
    let mut object = object.clone();
    Managed::clear(&mut object);
    object
}

impl FieldManager {
    /// Works like [`FieldManager::update`], for objects whose entries may name other versions.
    ///
    /// # Errors
    /// The object cannot be converted to one of these; `new` is unchanged then.
    pub async fn update_across(
        &self,
        live: Option<&Value>,
        new: &mut Value,
        manager: &str,
        now: &str,
        versions: &dyn Versions,
    ) -> Result<(), AcrossError> {
        let mut others = BTreeMap::new();
        for version in foreign(named_in(live).chain(named_in(Some(new))), self.api_version()) {
            let changed = match live {
                Some(live) => in_version(live, new, &version, versions).await?,
                // A create cannot change entries of other versions that its client sends, as long as these versions are
                // served.
                None => versions.manager(&version).map(|_| Comparison::default()),
            };
            others.insert(version, changed);
        }
        self.update_with(live, new, manager, now, others);
        Ok(())
    }

    /// Works like [`FieldManager::apply`], for objects whose entries may name other versions.
    ///
    /// # Errors
    /// Those of [`FieldManager::apply`]. Fails also if the object cannot be converted to one of these versions.
    pub async fn apply_across(
        &self,
        live: Option<&Value>,
        config: &Value,
        manager: &str,
        force: bool,
        now: &str,
        versions: &dyn Versions,
    ) -> Result<Value, ApplyError> {
        if foreign(named_in(live), self.api_version()).is_empty() {
            return self.apply(live, config, manager, force, now);
        }
        let kept = self.try_across(live, config, manager, force, now, versions).await;
        let kept = match self.moves_from_client_side(kept, live, manager)? {
            Some(object) => object,
            None => self.try_across(live, config, manager, true, now, versions).await?,
        };
        Ok(self.renew_last_applied(kept, config, manager))
    }

    async fn try_across(
        &self,
        live: Option<&Value>,
        config: &Value,
        manager: &str,
        force: bool,
        now: &str,
        versions: &dyn Versions,
    ) -> Result<Value, ApplyError> {
        let mut pending = self.begin(live, config, manager, now)?;
        let merged = std::mem::take(&mut pending.merged);
        let object = match &pending.last {
            Some(last) if pending.released => {
                let pruned = self.prune_across(merged, &pending.managed, last, versions).await;
                pruned.map_err(ApplyError::Prune)?
            }
            _ => merged,
        };
        let mut others = BTreeMap::new();
        let named = pending.managed.0.values().map(|owned| owned.api_version.as_str());
        for version in foreign(named, self.api_version()) {
            let changed = in_version(pending.base, &object, &version, versions).await?;
            others.insert(version, changed);
        }
        self.finish(pending, object, others, force, now)
    }

    /// Removes the fields that this manager applied before and does not apply now, unless another manager owns them
    /// too. The fields that it applied are compared in the version of that apply, and those of other managers in their
    /// versions.
    async fn prune_across(
        &self,
        merged: Value,
        managed: &Managed,
        last: &Owned,
        versions: &dyn Versions,
    ) -> Result<Value, ConvertError> {
        let mut owned: BTreeMap<&str, FieldSet> = BTreeMap::new();
        for entry in managed.0.values() {
            owned.entry(&entry.api_version).or_default().extend(&entry.fields.set());
        }
        let at = last.api_version.as_str();
        let Some(shape) = self.shape_in(at, versions) else { return Ok(merged) };
        let last = walk::with_named_fields(&last.fields.set(), &shape);
        let mut whole = show(merged, at, versions).await?;
        let mut pruned = without(&shape, &whole, &last);
        // The version of the removal comes first, since a conversion may need the fields that others own in it.
        let first = owned.remove(at).map(|set| (at, set));
        for (version, set) in first.into_iter().chain(owned) {
            let Some(shape) = self.shape_in(version, versions) else { continue };
            whole = show(whole, version, versions).await?;
            pruned = show(pruned, version, versions).await?;
            let named = |set: &FieldSet| walk::with_named_fields(set, &shape);
            let all = named(&walk::field_set(&shape, &whole));
            let kept = named(&walk::field_set(&shape, &pruned)).union(&named(&set));
            pruned = without(&shape, &whole, &all.difference(&kept));
        }
        // Fields that this manager did not apply stay, even below a field that it did apply.
        whole = show(whole, at, versions).await?;
        pruned = show(pruned, at, versions).await?;
        let all = walk::with_named_fields(&walk::field_set(&shape, &whole), &shape);
        let kept = walk::with_named_fields(&walk::field_set(&shape, &pruned), &shape);
        walk::remove_fields(&shape, &mut whole, &all.difference(&kept).intersection(&last));
        show(whole, self.api_version(), versions).await
    }

    fn shape_in(&self, version: &str, versions: &dyn Versions) -> Option<kelson_schema::Shape> {
        if version == self.api_version() {
            return Some(self.shape().clone());
        }
        Some(versions.manager(version)?.shape().clone())
    }
}

/// Returns a copy without these fields.
fn without(shape: &kelson_schema::Shape, value: &Value, fields: &FieldSet) -> Value {
    let mut value = value.clone();
    walk::remove_fields(shape, &mut value, fields);
    value
}

async fn show(object: Value, version: &str, versions: &dyn Versions) -> Result<Value, ConvertError> {
    if object["apiVersion"] == version {
        return Ok(object);
    }
    versions.convert(object, version).await
}

/// Compares two states of an object in another version; returns `None` when that version is no longer served.
async fn in_version(
    live: &Value,
    new: &Value,
    version: &str,
    versions: &dyn Versions,
) -> Result<Option<Comparison>, AcrossError> {
    let Some(manager) = versions.manager(version) else { return Ok(None) };
    let live = show(without_entries(live), version, versions).await.map_err(AcrossError::Old)?;
    let new = show(without_entries(new), version, versions).await.map_err(AcrossError::New)?;
    Ok(Some(manager.compared(&live, &new)))
}
