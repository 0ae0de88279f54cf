//! What the API server asks of a kind: one trait, one record of facts. Kinds implement the hooks; the provided methods
//! say how hooks and metadata rules come together. No sockets, clock or async: time and user are handed in.
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

/// Who makes a request, as far as kinds care (certificate requests record it).
#[derive(Clone, Copy, Debug)]
pub struct User<'a> {
    /// As authenticated, or impersonated.
    pub name: &'a str,
    /// Stable identifier; may be empty.
    pub uid: &'a str,
    /// All groups, `system:authenticated` among them.
    pub groups: &'a [String],
    /// Anything else the authenticator knows.
    pub extra: &'a BTreeMap<String, Vec<String>>,
}

/// What a write happens in.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The server's wall clock.
    pub now: Timestamp,
    /// The requester; `None` inside the server.
    pub user: Option<User<'a>>,
}

impl Context<'_> {
    /// A context without a user.
    pub fn at(now: Timestamp) -> Self {
        Self { now, user: None }
    }
}

/// Everything kind-specific the request path needs. Except for [`Strategy::default`] all methods take and give the
/// storage version's form. Upstream: `pkg/registry/*/*/strategy.go`, `pkg/apis/*/validation`, `pkg/printers`.
pub trait Strategy: Send + Sync {
    /// The facts of the kind by which the path of a request goes.
    fn options(&self) -> &Options;

    /// Whether expressions of the kind's author judge each write of an object.
    fn has_rules(&self) -> bool {
        false
    }

    /// Fills in what the user left out, in the form of served version `version`; idempotent. Built-in kinds implement
    /// this: it cannot fail, because the decoder has checked every type before.
    fn set_defaults(&self, version: &str, obj: &mut Value) {
        let _ = (version, obj);
    }
    /// Defaults as the request path asks for them, after decoding every write and after mutating admission.
    ///
    /// # Errors
    /// What the client is answered; only kinds made at run time refuse.
    fn default(&self, version: &str, obj: &mut Value) -> Result<(), Status> {
        self.set_defaults(version, obj);
        Ok(())
    }
    /// `status` of a new object. An empty object unless fields are never absent in the published type.
    fn initial_status(&self) -> Value {
        Value::Object(Map::new())
    }

    /// On create: clears what users may not set, starts `generation`. Names, uid and timestamps are the caller's.
    fn prepare_create(&self, cx: &Context<'_>, obj: &mut Value) {
        let _ = cx;
        base_create(self, obj);
    }
    /// Faults of the object apart from its metadata, on create and update alike.
    fn check(&self, obj: &Value, e: &mut Errors) {
        let _ = (obj, e);
    }
    /// Faults of a new object apart from metadata.
    fn check_create(&self, obj: &Value, e: &mut Errors) {
        self.check(obj, e);
    }
    /// Faults of an update apart from metadata; `new` has been prepared.
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        let _ = old;
        self.check(new, e);
    }
    /// All faults of a new object.
    fn validate_create(&self, obj: &Value) -> FieldErrors {
        let mut e = Errors::new();
        metadata::check(self.options(), &obj["metadata"], &mut e);
        self.check_create(obj, &mut e);
        e.finish()
    }

    /// All faults of a new object. Where the kind's own rules find none, the metadata that every object has is judged, which
    /// kinds with lenient rules of their own leave out (upstream `rest.BeforeCreate`).
    fn judge_create(&self, obj: &Value) -> FieldErrors {
        let found = self.validate_create(obj);
        if !found.is_empty() {
            return found;
        }
        let mut e = Errors::new();
        metadata::check_any(self.options(), &obj["metadata"], &mut e);
        e.finish()
    }

    /// On update of the main resource: keeps status, bumps generation when the rest changed.
    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        let _ = cx;
        base_update(self.options(), new, old);
    }
    /// All faults of an update.
    fn validate_update(&self, new: &Value, old: &Value) -> FieldErrors {
        let mut e = Errors::new();
        metadata::check_update(self.options(), "", new, old, &mut e);
        self.check_update(new, old, &mut e);
        e.finish()
    }

    /// Same for a subresource that is a view of the object; the base treats every one as `status`.
    fn prepare_subresource_update(&self, cx: &Context<'_>, subresource: &str, new: &mut Value, old: &Value) {
        let _ = cx;
        base_subresource_update(self.options(), subresource, new, old);
    }
    /// Faults of a subresource update apart from metadata.
    fn check_subresource_update(&self, subresource: &str, new: &Value, old: &Value, e: &mut Errors) {
        let _ = (subresource, new, old, e);
    }
    /// Faults of a subresource update that depend on when it is made; looked for where nothing else is wrong.
    fn check_subresource_time(&self, cx: &Context<'_>, subresource: &str, new: &Value, old: &Value, e: &mut Errors) {
        let _ = (cx, subresource, new, old, e);
    }
    /// The same as a list.
    fn judge_subresource_time(&self, cx: &Context<'_>, subresource: &str, new: &Value, old: &Value) -> FieldErrors {
        let mut e = Errors::new();
        self.check_subresource_time(cx, subresource, new, old, &mut e);
        e.finish()
    }
    /// All faults of a subresource update.
    fn validate_subresource_update(&self, subresource: &str, new: &Value, old: &Value) -> FieldErrors {
        let mut e = Errors::new();
        metadata::check_update(self.options(), subresource, new, old, &mut e);
        self.check_subresource_update(subresource, new, old, &mut e);
        e.finish()
    }

    /// All faults of an update of the object, or of a subresource unless its name is empty. `warn` takes what the same look at
    /// the object finds and lets pass, such as rules that fail for parts which did not change; a refused update has it as well.
    fn judge_update(&self, subresource: &str, new: &Value, old: &Value, warn: &mut dyn FnMut(String)) -> FieldErrors {
        let _ = warn;
        if subresource.is_empty() {
            self.validate_update(new, old)
        } else {
            self.validate_subresource_update(subresource, new, old)
        }
    }

    /// After names are final and validation has passed: what follows from the name.
    fn canonicalize(&self, obj: &mut Value) {
        let _ = obj;
    }

    /// Texts for `Warning: 299 - "..."`.
    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let _ = (new, old);
        Vec::new()
    }

    /// The value of one of [`Options::fields`] as selector text; the base reads it by its dotted path.
    fn field_value(&self, obj: &Value, field: &str) -> String {
        field_text(obj, field)
    }
    /// Paths that a write by `subresource` (empty for the object itself) cannot set, so that no field manager comes to own
    /// them (upstream `GetResetFields`).
    fn reset_fields(&self, subresource: &str) -> Vec<Texts> {
        match subresource {
            "" if self.options().has_status() => vec![texts!["status"]],
            "status" if self.options().status_stands_alone => vec![texts!["spec"], texts!["metadata"]],
            "status" => vec![texts!["spec"]],
            _ => Vec::new(),
        }
    }

    /// Conditions of the object's table row (`Completed` of finished pods and jobs).
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

/// The value at a dotted path as selector text.
pub(crate) fn field_text(obj: &Value, path: &str) -> String {
    match path.split('.').fold(obj, |v, k| &v[k]) {
        Value::String(s) => s.clone(),
        Value::Null | Value::Array(_) | Value::Object(_) => String::new(),
        other => other.to_string(),
    }
}

/// The base of `prepare_create`.
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

/// The base of `prepare_update`.
pub(crate) fn base_update(o: &Options, new: &mut Value, old: &Value) {
    if o.has_status() {
        restore(new, old, "status");
    }
    bump_generation(o, new, old);
}

/// Keeps the old generation, one higher when the kind counts and anything besides metadata and status changed.
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

/// The base of a subresource's update, where every one is taken for `status`.
pub(crate) fn base_subresource_update(o: &Options, subresource: &str, new: &mut Value, old: &Value) {
    base_status_update(new, old);
    if subresource == "status" && o.status_stands_alone {
        keep_metadata(o, new, old);
    }
}

/// What a write of the status alone leaves of the metadata that clients write (upstream `ResetObjectMetaForStatus`).
fn keep_metadata(o: &Options, new: &mut Value, old: &Value) {
    if let Some(meta) = new.get_mut("metadata") {
        if o.group == "flowcontrol.apiserver.k8s.io" {
            // These keep all of it.
            restore(meta, &old["metadata"], "deletionGracePeriodSeconds");
        }
        for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
            restore(meta, &old["metadata"], field);
        }
        if o.group != "apiregistration.k8s.io" {
            // Of these it is judged.
            restore(meta, &old["metadata"], "deletionTimestamp");
        }
    }
}

/// The base of a status update: everything but status and metadata comes from the old object.
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
