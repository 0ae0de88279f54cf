//! The interface of a kind to the API server: one trait, and one record of options. Kinds implement the hooks; the
//! provided methods combine hooks and metadata rules. There are no sockets, no clock and no async: time and user are
//! arguments.
use std::collections::BTreeMap;

use jiff::Timestamp;
use kelson_meta::{FieldErrors, Status};
use serde_json::{Map, Value};

use crate::metadata;
use crate::options::{Options, texts};
use crate::parts::{Parts, UNMANAGED};
use crate::path::Errors;
use crate::text::Texts;
use crate::tree::{restore, same, set};

/// The requester, as far as kinds need it (certificate requests record it).
#[derive(Clone, Copy, Debug)]
pub struct User<'a> {
    /// The user name, after impersonation.
    pub name: &'a str,
    /// The UID; may be empty.
    pub uid: &'a str,
    /// All groups, including `system:authenticated`.
    pub groups: &'a [String],
    /// Further values of the authenticator.
    pub extra: &'a BTreeMap<String, Vec<String>>,
}

/// The context of a write.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The server's wall clock.
    pub now: Timestamp,
    /// The requester; `None` inside the server.
    pub user: Option<User<'a>>,
}

impl Context<'_> {
    /// Creates a context without a user.
    pub fn at(now: Timestamp) -> Self {
        Self { now, user: None }
    }
}

/// Everything kind-specific that the request path needs.
///
/// A strategy fills in defaults, prepares objects on create and update (clears fields that clients may not set, counts
/// the generation), validates them, and formats table rows. Except for [`Strategy::default`] all methods use the stored
/// version. Implementations must be pure: the same object, user and time give the same result. Upstream:
/// `pkg/registry/*/*/strategy.go`, `pkg/apis/*/validation`, `pkg/printers`.
pub trait Strategy: Send + Sync {
    /// Returns the options of the kind, which the request path reads.
    fn options(&self) -> &Options;

    /// Reports whether the kind has validation rules of its author (CEL) that run on each write.
    fn has_rules(&self) -> bool {
        false
    }

    /// Sets the defaults of the served version `version`; idempotent. Built-in kinds implement this: it cannot fail,
    /// because the decoder has checked every type before.
    fn set_defaults(&self, version: &str, obj: &mut Value) {
        let _ = (version, obj);
    }
    /// Sets defaults after decoding every write and after mutating admission.
    ///
    /// # Errors
    /// The status for the client; only kinds created at run time fail.
    fn default(&self, version: &str, obj: &mut Value) -> Result<(), Status> {
        self.set_defaults(version, obj);
        Ok(())
    }
    /// Returns the `status` of a new object: an empty object, unless the published type always has some fields.
    fn initial_status(&self) -> Value {
        Value::Object(Map::new())
    }

    /// Prepares a create: clears fields that users may not set, and starts `generation`. The caller sets names, UID and
    /// timestamps.
    fn prepare_create(&self, cx: &Context<'_>, obj: &mut Value) {
        let _ = cx;
        base_create(self, obj);
    }
    /// Validates the object apart from its metadata, on create and update.
    fn check(&self, obj: &Value, e: &mut Errors) {
        let _ = (obj, e);
    }
    /// Validates a new object apart from its metadata.
    fn check_create(&self, obj: &Value, e: &mut Errors) {
        self.check(obj, e);
    }
    /// Validates an update apart from its metadata; `new` has been prepared.
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        let _ = old;
        self.check(new, e);
    }
    /// Returns all errors of a new object.
    fn validate_create(&self, obj: &Value) -> FieldErrors {
        let mut e = Errors::new();
        metadata::check(self.options(), &obj["metadata"], &mut e);
        self.check_create(obj, &mut e);
        e.finish()
    }

    /// Returns all errors of a new object. If the kind's own rules find none, the metadata is validated as for every
    /// object, for kinds with lenient rules (upstream `rest.BeforeCreate`).
    fn judge_create(&self, obj: &Value) -> FieldErrors {
        let found = self.validate_create(obj);
        if !found.is_empty() {
            return found;
        }
        let mut e = Errors::new();
        metadata::check_any(self.options(), &obj["metadata"], &mut e);
        e.finish()
    }

    /// Prepares an update of the main resource: keeps status, increases the generation when the rest changed.
    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        let _ = cx;
        base_update(self.options(), new, old);
    }
    /// Returns all errors of an update.
    fn validate_update(&self, new: &Value, old: &Value) -> FieldErrors {
        let mut e = Errors::new();
        metadata::check_update(self.options(), "", new, old, &mut e);
        self.check_update(new, old, &mut e);
        e.finish()
    }

    /// Prepares an update of a subresource that is a view of the object; by default as that of `status`.
    fn prepare_subresource_update(&self, cx: &Context<'_>, subresource: &str, new: &mut Value, old: &Value) {
        let _ = cx;
        base_subresource_update(self.options(), subresource, new, old);
    }
    /// Validates a subresource update apart from its metadata.
    fn check_subresource_update(&self, subresource: &str, new: &Value, old: &Value, e: &mut Errors) {
        let _ = (subresource, new, old, e);
    }
    /// Validates rules of a subresource update that depend on the current time; called when there are no other errors.
    fn check_subresource_time(&self, cx: &Context<'_>, subresource: &str, new: &Value, old: &Value, e: &mut Errors) {
        let _ = (cx, subresource, new, old, e);
    }
    /// Returns the errors of [`Strategy::check_subresource_time`] as a list.
    fn judge_subresource_time(&self, cx: &Context<'_>, subresource: &str, new: &Value, old: &Value) -> FieldErrors {
        let mut e = Errors::new();
        self.check_subresource_time(cx, subresource, new, old, &mut e);
        e.finish()
    }
    /// Returns all errors of a subresource update.
    fn validate_subresource_update(&self, subresource: &str, new: &Value, old: &Value) -> FieldErrors {
        let mut e = Errors::new();
        metadata::check_update(self.options(), subresource, new, old, &mut e);
        self.check_subresource_update(subresource, new, old, &mut e);
        e.finish()
    }

    /// Returns all errors of an update of the object, or of a subresource unless its name is empty. `warn` receives
    /// problems that the validation finds and permits, such as failed rules for unchanged parts, also for a rejected
    /// update.
    fn judge_update(&self, subresource: &str, new: &Value, old: &Value, warn: &mut dyn FnMut(String)) -> FieldErrors {
        let _ = warn;
        if subresource.is_empty() {
            self.validate_update(new, old)
        } else {
            self.validate_subresource_update(subresource, new, old)
        }
    }

    /// Sets fields that follow from the name, after names are final and validation has passed.
    fn canonicalize(&self, obj: &mut Value) {
        let _ = obj;
    }

    /// Returns the messages for `Warning: 299 - "..."`.
    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let _ = (new, old);
        Vec::new()
    }

    /// Returns the value of one of [`Options::fields`] as a selector string; by default read by its dotted path.
    fn field_value(&self, obj: &Value, field: &str) -> String {
        field_text(obj, field)
    }
    /// Returns paths that a write to `subresource` (empty for the object itself) cannot set, so that no field manager
    /// owns them (upstream `GetResetFields`).
    fn reset_fields(&self, subresource: &str) -> Vec<Texts> {
        match subresource {
            "" if self.options().has_status() => vec![texts!["status"]],
            "status" if self.options().status_is_independent => vec![texts!["spec"], texts!["metadata"]],
            "status" => vec![texts!["spec"]],
            _ => Vec::new(),
        }
    }

    /// Returns conditions of the object's table row (`Completed` for finished pods and jobs).
    fn row_conditions(&self, obj: &Value) -> Vec<Value> {
        let _ = obj;
        Vec::new()
    }
    /// The parts of an object that its row shows.
    fn row_parts(&self) -> Parts {
        UNMANAGED
    }
    /// One object's cells, as many as there are columns.
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let _ = now;
        vec![crate::table::name(obj), crate::table::created(obj)]
    }
}

/// Returns the value at a dotted path as a selector string.
pub(crate) fn field_text(obj: &Value, path: &str) -> String {
    match path.split('.').fold(obj, |v, k| &v[k]) {
        Value::String(s) => s.clone(),
        Value::Null | Value::Array(_) | Value::Object(_) => String::new(),
        other => other.to_string(),
    }
}

/// The default of `prepare_create`.
pub(crate) fn base_create<S: Strategy + ?Sized>(s: &S, obj: &mut Value) {
    let o = s.options();
    if o.has_status() {
        set(obj, "status", s.initial_status());
    }
    if o.generation
        && let Some(meta) = obj.get_mut("metadata")
    {
        set(meta, "generation", 1);
    }
}

/// The default of `prepare_update`.
pub(crate) fn base_update(o: &Options, new: &mut Value, old: &Value) {
    if o.has_status() {
        restore(new, old, "status");
    }
    bump_generation(o, new, old);
}

/// Keeps the old generation, increased by one if the kind counts it and anything besides metadata and status changed.
pub(crate) fn bump_generation(o: &Options, new: &mut Value, old: &Value) {
    let changed = o.generation && spec_changed(new, old);
    let generation = old["metadata"]["generation"].as_i64();
    let Some(meta) = new.get_mut("metadata") else { return };
    match generation {
        Some(g) => set(meta, "generation", g + i64::from(changed)),
        None if changed => set(meta, "generation", 1),
        None => crate::tree::remove(meta, "generation"),
    }
}

fn spec_changed(new: &Value, old: &Value) -> bool {
    let (Some(n), Some(o)) = (new.as_object(), old.as_object()) else { return false };
    let counts = |k: &str| !matches!(k, "metadata" | "status" | "apiVersion" | "kind");
    n.keys().chain(o.keys()).filter(|k| counts(k)).any(|k| !same(&new[k.as_str()], &old[k.as_str()]))
}

/// The default for a subresource update, which treats every subresource as `status`.
pub(crate) fn base_subresource_update(o: &Options, subresource: &str, new: &mut Value, old: &Value) {
    base_status_update(new, old);
    if subresource == "status" && o.status_is_independent {
        keep_metadata(o, new, old);
    }
}

/// Restores the metadata that a status write may not change (upstream `ResetObjectMetaForStatus`).
fn keep_metadata(o: &Options, new: &mut Value, old: &Value) {
    if let Some(meta) = new.get_mut("metadata") {
        if o.group == "flowcontrol.apiserver.k8s.io" {
            // These kinds keep all of it.
            restore(meta, &old["metadata"], "deletionGracePeriodSeconds");
        }
        for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
            restore(meta, &old["metadata"], field);
        }
        if o.group != "apiregistration.k8s.io" {
            // These kinds validate it.
            restore(meta, &old["metadata"], "deletionTimestamp");
        }
    }
}

/// The default of a status update: everything but status and metadata comes from the old object.
pub(crate) fn base_status_update(new: &mut Value, old: &Value) {
    let keys: Vec<String> = match (new.as_object(), old.as_object()) {
        (Some(n), Some(o)) => n.keys().chain(o.keys()).cloned().collect(),
        _ => return,
    };
    for k in keys {
        if !matches!(k.as_str(), "metadata" | "status" | "apiVersion" | "kind") {
            restore(new, old, &k);
        }
    }
    if let Some(meta) = new.get_mut("metadata") {
        restore(meta, &old["metadata"], "generation");
    }
}
