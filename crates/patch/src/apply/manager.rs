//! Field management of one write. It records on every create, update and patch which manager set which field, and
//! performs server-side apply. The order of steps is that of apimachinery `util/managedfields`.
use super::{
    added,
    changes::Changes,
    compare::{self, Comparison},
    conflict::{ApplyError, Conflict, in_words},
    fields::FieldSet,
    fit,
    managed::{Managed, ManagerId, Operation, Owned},
    merge::{self, MergeError},
    owned::OwnedFields,
    walk,
};
use kelson_codec::{Budget, Exceeded, Limits};
use kelson_schema::Shape;
use serde_json::{Map, Value};
use std::{
    collections::{BTreeMap, HashSet},
    sync::LazyLock,
};

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The size limit of all annotations of an object together, in bytes.
const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;

/// Manages the fields of objects of one kind in one version, written through one (sub)resource (KEP-555).
/// [`FieldManager::update`] records the manager of a create, update or patch, and [`FieldManager::apply`] merges an
/// applied configuration and reports conflicts with other managers. The `_across` methods do the same for objects whose
/// entries name other versions. A manager has no state besides its schema and may be shared.
#[derive(Debug, Clone)]
pub struct FieldManager {
    shape: Shape,
    api_version: String,
    kind: String,
    subresource: String,
    ignored: FieldSet,
    empty: Value,
}

impl FieldManager {
    /// Creates a manager for a built-in kind. `subresource` is empty for the main resource; `ignored` are the fields
    /// that this resource does not write (`status` on the main resource).
    pub fn builtin(group: &str, version: &str, kind: &str, subresource: &str, ignored: FieldSet) -> Self {
        let shape = Shape::of_kind(group, version, kind);
        let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        Self::new(shape, &api_version, kind, subresource, ignored)
    }

    /// Creates a manager for any kind; use [`Shape::Dynamic`] or [`Shape::Untyped`] for custom resources.
    pub fn new(shape: Shape, api_version: &str, kind: &str, subresource: &str, ignored: FieldSet) -> Self {
        let empty = shape.struct_type().map_or_else(|| Value::Object(Map::new()), kelson_codec::zero_object);
        Self {
            shape,
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            subresource: subresource.to_owned(),
            ignored,
            empty,
        }
    }

    /// Tracks a create (`live` is `None`), update or patch: writes `managedFields` of `new`. `now` is RFC 3339 in
    /// seconds. Entries in other versions are treated as if they named fields of this version; see
    /// [`FieldManager::update_across`].
    pub fn update(&self, live: Option<&Value>, new: &mut Value, manager: &str, now: &str) {
        self.update_with(live, new, manager, now, BTreeMap::new());
    }

    /// Works like [`FieldManager::update`]. `others` are the changes of the write in other versions.
    pub(super) fn update_with(
        &self,
        live: Option<&Value>,
        new: &mut Value,
        manager: &str,
        now: &str,
        others: BTreeMap<String, Option<Comparison>>,
    ) {
        let mut managed = self.live_or_new(live, new);
        // Objects from before field management stay without entries until they are applied.
        if managed.0.is_empty() && live.is_some_and(|l| l["metadata"]["uid"].as_str().is_some_and(|u| !u.is_empty())) {
            return;
        }
        match live {
            None if managed.0.is_empty() => self.create(new, &mut managed, manager, now),
            _ => {
                let own = self.compared(live.unwrap_or(&self.empty), new);
                self.track(Changes { own, others }, &mut managed, manager, Some(now));
            }
        }
        managed.write(new);
    }

    /// Updates the entries for a create, when no field has an owner yet.
    fn create(&self, new: &Value, managed: &mut Managed, manager: &str, now: &str) {
        let nodes = self.set_by_create(new);
        if !nodes.is_empty() {
            let fields = OwnedFields::from(added::to_map(nodes));
            let id = ManagerId::new(manager, Operation::Update, &self.api_version, &self.subresource);
            let owned = Owned { fields, api_version: self.api_version.clone(), time: Some(now.to_owned()) };
            managed.0.insert(id, owned);
        }
    }

    /// Returns the fields that a create sets, without those of the server.
    fn set_by_create<'a>(&self, new: &'a Value) -> Vec<added::Node<'a>> {
        let mut nodes = added::added_to(&self.shape, &self.empty, new);
        added::remove_trees(&mut nodes, &self.ignored);
        added::remove_members(&mut nodes, server_fields());
        nodes
    }

    /// Returns `managedFields` of a new object without entries, as JSON with the fields in the order of their type's
    /// declaration. Returns `None` if no field is set. [`FieldManager::update`] would write the same value, but as a
    /// tree.
    pub fn of_create(&self, new: &Value, manager: &str, now: &str) -> Option<String> {
        let nodes = self.set_by_create(new);
        if nodes.is_empty() {
            return None;
        }
        let id = ManagerId::new(manager, Operation::Update, &self.api_version, &self.subresource);
        added::entries(&nodes, &id, now)
    }

    /// Returns the entries that this write updates, and removes the entries of `new` from it.
    fn live_or_new(&self, live: Option<&Value>, new: &mut Value) -> Managed {
        let reset = Managed::is_reset(new);
        let given = Managed::take(new);
        let of_live = || live.and_then(|l| Managed::read(l).ok()).unwrap_or_default();
        if !self.subresource.is_empty() {
            return of_live();
        }
        if reset {
            return Managed::default();
        }
        match given {
            Some(Value::Array(entries)) => {
                Managed::of_entries(entries).ok().filter(|managed| !managed.0.is_empty()).unwrap_or_else(of_live)
            }
            _ => of_live(),
        }
    }

    /// Returns the group and version, such as `apps/v1`.
    pub(super) fn api_version(&self) -> &str {
        &self.api_version
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Compares two objects in the fields that this (sub)resource writes.
    pub(super) fn compared(&self, live: &Value, new: &Value) -> Comparison {
        compare::compare(&self.shape, live, new).without(&self.ignored)
    }

    /// Updates the entries for a write that is not an apply.
    fn track(&self, changes: Changes, managed: &mut Managed, manager: &str, now: Option<&str>) {
        let mut set = changes.take(managed, None);
        set.subtract(server_fields());
        if !set.is_empty() {
            let id = ManagerId::new(manager, Operation::Update, &self.api_version, &self.subresource);
            let owned = managed.0.entry(id).or_default();
            owned.fields.absorb(set);
            owned.api_version.clone_from(&self.api_version);
            owned.time = now.map(str::to_owned);
        }
        managed.cap();
    }

    /// Applies a configuration. `live` is `None` if the object does not exist yet. Returns the merged object with its
    /// `managedFields`. The result equals `live` if nothing changes.
    pub fn apply(
        &self,
        live: Option<&Value>,
        config: &Value,
        manager: &str,
        force: bool,
        now: &str,
    ) -> Result<Value, ApplyError> {
        let kept = self.try_apply(live, config, manager, force, now);
        let kept = match self.moves_from_client_side(kept, live, manager)? {
            Some(object) => object,
            None => self.try_apply(live, config, manager, true, now)?,
        };
        Ok(self.renew_last_applied(kept, config, manager))
    }

    /// Returns the result of an apply: the object, an error, or `None` if the apply must be repeated with force. That
    /// is the case when kubectl migrates from client-side apply: the fields in its annotation are not conflicts.
    pub(super) fn moves_from_client_side(
        &self,
        kept: Result<Value, ApplyError>,
        live: Option<&Value>,
        manager: &str,
    ) -> Result<Option<Value>, ApplyError> {
        let (Err(ApplyError::Conflicts(conflicts)), "kubectl", Some(live)) = (&kept, manager, live) else {
            return kept.map(Some);
        };
        let Some(applied) = self.last_applied(live) else { return kept.map(Some) };
        let own: HashSet<String> = applied.paths().into_iter().collect();
        let foreign: Vec<Conflict> = conflicts.iter().filter(|c| !own.contains(&c.field)).cloned().collect();
        if foreign.is_empty() { Ok(None) } else { Err(ApplyError::Conflicts(foreign)) }
    }

    /// Returns the fields that a client-side `kubectl apply` set and that have not changed since. Returns `None` if the
    /// annotation is missing, or if its object has another kind or version.
    fn last_applied(&self, live: &Value) -> Option<FieldSet> {
        let text = live["metadata"]["annotations"][LAST_APPLIED].as_str().filter(|t| !t.is_empty())?;
        let applied: Value = serde_json::from_str(text).ok()?;
        let same_type = applied["apiVersion"] == self.api_version.as_str() && applied["kind"] == self.kind.as_str();
        if !same_type || fit::check(&self.shape, &applied).is_err() {
            return None;
        }
        let mut unchanged = walk::field_set(&self.shape, &applied);
        let since = compare::compare(&self.shape, &applied, live);
        for changed in [&since.modified, &since.added, &since.removed] {
            unchanged.subtract(changed);
        }
        Some(unchanged)
    }

    /// Updates kubectl's annotation to the applied configuration. The annotation is removed if the annotations would be
    /// too large.
    pub(super) fn renew_last_applied(&self, mut object: Value, config: &Value, manager: &str) -> Value {
        let has = object["metadata"]["annotations"][LAST_APPLIED].as_str().is_some_and(|t| !t.is_empty());
        if manager == "kubectl" && has {
            let mut applied = config.clone();
            if let Some(annotations) = applied["metadata"].get_mut("annotations").and_then(Value::as_object_mut) {
                annotations.remove(LAST_APPLIED);
            }
            let annotations = &mut object["metadata"]["annotations"];
            annotations[LAST_APPLIED] = Value::from(format!("{applied}\n"));
            if let Some(annotations) = annotations.as_object_mut()
                && annotations.iter().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum::<usize>()
                    > ANNOTATIONS_BYTES_MAX
            {
                annotations.remove(LAST_APPLIED);
            }
        }
        object
    }

    fn check_config(&self, config: &Value) -> Result<(), ApplyError> {
        let (version, kind) = (config["apiVersion"].as_str().unwrap_or(""), config["kind"].as_str().unwrap_or(""));
        if version != self.api_version || kind != self.kind {
            return Err(ApplyError::OtherType { version: version.to_owned(), kind: kind.to_owned() });
        }
        if config["metadata"].get("managedFields").is_some_and(Value::is_array) {
            return Err(ApplyError::NamesOwners);
        }
        Ok(())
    }

    fn try_apply(
        &self,
        live: Option<&Value>,
        config: &Value,
        manager: &str,
        force: bool,
        now: &str,
    ) -> Result<Value, ApplyError> {
        let mut pending = self.begin(live, config, manager, now)?;
        let mut object = std::mem::take(&mut pending.merged);
        if let Some(last) = pending.last.take().filter(|_| pending.released) {
            self.prune(&mut object, &pending.managed, &last.fields.set());
        }
        self.finish(pending, object, BTreeMap::new(), force, now)
    }

    /// Merges the configuration and makes the entry of its manager.
    pub(super) fn begin<'a>(
        &'a self,
        live: Option<&'a Value>,
        config: &Value,
        manager: &str,
        now: &str,
    ) -> Result<Pending<'a>, ApplyError> {
        self.check_config(config)?;
        let mut managed = match live {
            Some(live) => Managed::read(live)?,
            None => Managed::default(),
        };
        let base = live.unwrap_or(&self.empty);
        let limits = limits_of_merge(base, config).map_err(too_large)?;
        if managed.0.is_empty() && live.is_some() {
            let all = Changes::of(self.compared(&self.empty, base));
            self.track(all, &mut managed, "before-first-apply", Some(now));
        }
        let located = |e: MergeError| {
            let misfits = match e {
                MergeError::TooLarge(exceeded) => return too_large(exceeded),
                MergeError::Unfit(misfits) => misfits,
            };
            let name = config["metadata"]["name"].as_str().unwrap_or("");
            let namespace = config["metadata"]["namespace"].as_str().unwrap_or("");
            let (group, version) = self.api_version.split_once('/').unwrap_or(("", &self.api_version));
            let gv = if group.is_empty() { format!("/{version}") } else { format!("{group}/{version}") };
            let kind = format!("{gv}, Kind={}", self.kind);
            ApplyError::Unfit { object: format!("{namespace}/{name}"), kind, misfits }
        };
        fit::check(&self.shape, config).map_err(|why| located(why.into()))?;
        let merged = merge::merge_bare(&self.shape, base, config, &mut Budget::new(limits)).map_err(located)?;
        let id = ManagerId::new(manager, Operation::Apply, &self.api_version, &self.subresource);
        let mut set = walk::field_set(&self.shape, config);
        set.subtract_trees(&self.ignored);
        let last = managed.0.remove(&id);
        let time = last.as_ref().and_then(|l| l.time.clone());
        let moved = |last: &Owned| last.api_version != self.api_version;
        let released = last.as_ref().is_some_and(|last| moved(last) || !last.fields.set().is_within(&set));
        managed.0.insert(id.clone(), Owned { fields: set.into(), api_version: self.api_version.clone(), time });
        Ok(Pending { managed, base, id, last, released, merged })
    }

    /// Checks for conflicts and writes the entries.
    pub(super) fn finish(
        &self,
        pending: Pending<'_>,
        mut object: Value,
        others: BTreeMap<String, Option<Comparison>>,
        force: bool,
        now: &str,
    ) -> Result<Value, ApplyError> {
        let Pending { mut managed, base, id, last, .. } = pending;
        drop(last);
        let mut own = self.compared(base, &object);
        // The previous object still has its entries.
        own.removed.subtract_trees(&FieldSet::of(&[&["metadata", "managedFields"]]));
        let changes = Changes { own, others };
        if !force {
            let conflicts: Vec<Conflict> = changes.conflicts(&managed, &id).into_iter().flat_map(in_words).collect();
            if !conflicts.is_empty() {
                return Err(ApplyError::Conflicts(conflicts));
            }
        }
        changes.take(&mut managed, Some(&id));
        let differs = !Managed::is_all_that_differs(base, &object);
        if let Some(owned) = managed.0.get_mut(&id) {
            owned.fields.subtract(server_fields());
            if differs {
                owned.time = Some(now.to_owned());
            }
        }
        managed.0.retain(|_, owned| !owned.fields.is_empty());
        managed.write(&mut object);
        Ok(object)
    }

    /// Removes the fields that this manager applied before and does not apply now, unless another manager owns them
    /// too. The caller skips this if the manager still applies all of its previous fields in the same version.
    fn prune(&self, merged: &mut Value, managed: &Managed, last: &FieldSet) {
        let named = |set: &FieldSet| walk::with_named_fields(set, &self.shape);
        let last = named(last);
        let all = named(&walk::field_set(&self.shape, merged));
        let mut gone = all.clone();
        gone.subtract(&named(&walk::fields_without(&self.shape, merged, &last)));
        managed.0.values().for_each(|manager| gone.subtract(&named(&manager.fields.set())));
        // Fields that this manager did not apply stay, even below a field that it did apply.
        let kept = named(&walk::fields_without(&self.shape, merged, &gone));
        walk::remove_fields(&self.shape, merged, &all.difference(&kept).intersection(&last));
    }
}

/// An apply with a completed merge.
pub(super) struct Pending<'a> {
    pub managed: Managed,
    /// The previous object, without its entries.
    pub base: &'a Value,
    id: ManagerId,
    /// The fields of the manager's previous apply.
    pub last: Option<Owned>,
    /// Whether this apply lacks some of the fields of the previous apply.
    pub released: bool,
    pub merged: Value,
}

/// The bytes that the sets of fields take for each value of the object and of the configuration: the previous owners,
/// the applied fields, the changes and the written entry.
const FIELD_BYTES: usize = 128;

/// Returns the limits of the merged tree, less what its two sources use.
fn limits_of_merge(base: &Value, config: &Value) -> Result<Limits, Exceeded> {
    let mut all = Budget::new(Limits::APPLY);
    all.tree(base)?;
    all.tree(config)?;
    all.bytes(all.spent().elements.saturating_mul(FIELD_BYTES))?;
    let left = Limits::APPLY.bytes.saturating_sub(all.spent().bytes);
    Ok(Limits { bytes: left.min(Limits::DOCUMENT.bytes), ..Limits::DOCUMENT })
}

/// Returns the error for a merged tree that exceeds the limits.
fn too_large(exceeded: Exceeded) -> ApplyError {
    match exceeded {
        Exceeded::Bytes(most) if most != Limits::DOCUMENT.bytes => ApplyError::TooLargeTogether(Limits::APPLY.bytes),
        other => ApplyError::TooLarge(other),
    }
}

/// Returns the fields that no manager owns.
fn server_fields() -> &'static FieldSet {
    static FIELDS: LazyLock<FieldSet> = LazyLock::new(|| {
        FieldSet::of(&[
            &["apiVersion"],
            &["kind"],
            &["metadata"],
            &["metadata", "name"],
            &["metadata", "namespace"],
            &["metadata", "creationTimestamp"],
            &["metadata", "selfLink"],
            &["metadata", "uid"],
            &["metadata", "clusterName"],
            &["metadata", "generation"],
            &["metadata", "managedFields"],
            &["metadata", "resourceVersion"],
        ])
    });
    &FIELDS
}
