//! What the API server asks of a kind: one trait, one record of facts. Kinds implement the hooks; the provided methods
//! say how hooks and metadata rules come together. No sockets, clock or async: time and user are handed in.
use std::collections::BTreeMap;

use jiff::Timestamp;
use kelson_meta::{FieldErrors, Gvk};
use serde_json::{Map, Value};

use crate::metadata::{self, NameRule};
use crate::path::Errors;
use crate::tree::{restore, same, set};

/// Who makes a request, as far as kinds care (certificate requests record it).
#[derive(Clone, Copy, Debug)]
pub struct User<'a> {
    /// User name.
    pub name: &'a str,
    /// Stable identifier; may be empty.
    pub uid: &'a str,
    /// Groups.
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

/// A column of the server-side table (`meta.k8s.io/v1 Table`).
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Header.
    pub name: &'static str,
    /// OpenAPI type: `string`, `integer`, `boolean`.
    pub kind: &'static str,
    /// OpenAPI format; `name` marks the identifying column.
    pub format: &'static str,
    /// What it tells.
    pub description: &'static str,
    /// 0 is shown always, 1 with `-o wide`.
    pub priority: i32,
}

impl Column {
    /// A text column.
    pub const fn text(name: &'static str, description: &'static str) -> Self {
        Self { name, kind: "string", format: "", description, priority: 0 }
    }
    /// A number column.
    pub const fn integer(name: &'static str, description: &'static str) -> Self {
        Self { name, kind: "integer", format: "", description, priority: 0 }
    }
    /// A true/false column.
    pub const fn boolean(name: &'static str, description: &'static str) -> Self {
        Self { name, kind: "boolean", format: "", description, priority: 0 }
    }
    /// The same column, shown with `-o wide` only.
    pub const fn wide(mut self) -> Self {
        self.priority = 1;
        self
    }
}

/// How the kind takes deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// At once (finalizers apart).
    Immediate,
    /// Pods: `spec.terminationGracePeriodSeconds` unless the request says otherwise; 0 when unscheduled or finished.
    Graceful,
    /// Namespaces: marked, phase `Terminating`, gone once `spec.finalizers` is empty.
    Namespace,
}

/// Where `scale` finds its fields.
#[derive(Clone, Copy, Debug)]
pub struct ScalePaths {
    /// Desired count, e.g. `spec.replicas`.
    pub spec_replicas: &'static [&'static str],
    /// Observed count, e.g. `status.replicas`.
    pub status_replicas: &'static [&'static str],
    /// A label selector object, or a plain label map (replication controllers).
    pub selector: &'static [&'static str],
}

/// The usual scale mapping.
pub const SCALE: ScalePaths = ScalePaths {
    spec_replicas: &["spec", "replicas"],
    status_replicas: &["status", "replicas"],
    selector: &["spec", "selector"],
};

/// Facts about a resource.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// API group; empty for the legacy one.
    pub group: &'static str,
    /// Plural name in paths.
    pub resource: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// Served versions, preferred first.
    pub versions: &'static [&'static str],
    /// Group and version of the stored form.
    pub storage: (&'static str, &'static str),
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// kubectl short names.
    pub short_names: &'static [&'static str],
    /// kubectl categories.
    pub categories: &'static [&'static str],
    /// Subresources this crate knows as views of the object (`status`, `scale`, `approval` ...), by name.
    pub subresources: &'static [&'static str],
    /// Whether the kind counts spec changes in `metadata.generation`.
    pub generation: bool,
    /// The rule for `metadata.name`.
    pub name: NameRule,
    /// Whether PUT may create.
    pub allow_create_on_update: bool,
    /// Whether PUT without a resourceVersion overwrites.
    pub allow_unconditional_update: bool,
    /// Deletion behaviour.
    pub deletion: Deletion,
    /// Scale subresource, where there is one.
    pub scale: Option<ScalePaths>,
    /// Table columns.
    pub columns: &'static [Column],
    /// Selectable fields besides `metadata.name` and `metadata.namespace`.
    pub fields: &'static [&'static str],
    /// Whether it is stored at all (reviews and bindings are only created).
    pub stored: bool,
}

impl Options {
    /// Base of a namespaced resource of the legacy group.
    pub const NAMESPACED: Self = Self {
        group: "",
        resource: "",
        kind: "",
        versions: &["v1"],
        storage: ("", "v1"),
        namespaced: true,
        short_names: &[],
        categories: &[],
        subresources: &[],
        generation: false,
        name: NameRule::Subdomain,
        allow_create_on_update: false,
        allow_unconditional_update: true,
        deletion: Deletion::Immediate,
        scale: None,
        columns: crate::table::NAME_CREATED,
        fields: &[],
        stored: true,
    };
    /// Base of a cluster-scoped resource of the legacy group.
    pub const CLUSTER: Self = Self { namespaced: false, ..Self::NAMESPACED };

    /// Base of a namespaced `v1` resource of `group`.
    pub const fn namespaced(group: &'static str, resource: &'static str, kind: &'static str) -> Self {
        Self { group, resource, kind, storage: (group, "v1"), ..Self::NAMESPACED }
    }
    /// Base of a cluster-scoped `v1` resource of `group`.
    pub const fn cluster(group: &'static str, resource: &'static str, kind: &'static str) -> Self {
        Self { group, resource, kind, storage: (group, "v1"), ..Self::CLUSTER }
    }

    /// Whether there is a `status` subresource.
    pub fn has_status(&self) -> bool {
        self.subresources.contains(&"status")
    }
    /// The stored form's name.
    pub fn storage_gvk(&self) -> Gvk {
        Gvk::new(self.storage.0, self.storage.1, self.kind)
    }
}

/// Everything kind-specific the request path needs. Except for [`Strategy::default`] all methods take and give the
/// storage version's form. Upstream: `pkg/registry/*/*/strategy.go`, `pkg/apis/*/validation`, `pkg/printers`.
pub trait Strategy: Send + Sync {
    /// Facts.
    fn options(&self) -> &Options;

    /// Defaults in the form of served version `version`; idempotent. Called after decoding every write, and after
    /// mutating admission.
    fn default(&self, version: &str, obj: &mut Value) {
        let _ = (version, obj);
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

    /// On update of the main resource: keeps status, bumps generation when the rest changed.
    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        let _ = cx;
        base_update(self.options(), new, old);
    }
    /// All faults of an update.
    fn validate_update(&self, new: &Value, old: &Value) -> FieldErrors {
        let mut e = Errors::new();
        metadata::check_update(self.options(), new, old, &mut e);
        self.check_update(new, old, &mut e);
        e.finish()
    }

    /// Same for a subresource that is a view of the object; the base treats every one as `status`.
    fn prepare_subresource_update(&self, cx: &Context<'_>, subresource: &str, new: &mut Value, old: &Value) {
        let _ = (cx, subresource);
        base_status_update(new, old);
    }
    /// Faults of a subresource update apart from metadata.
    fn check_subresource_update(&self, subresource: &str, new: &Value, old: &Value, e: &mut Errors) {
        let _ = (subresource, new, old, e);
    }
    /// All faults of a subresource update.
    fn validate_subresource_update(&self, subresource: &str, new: &Value, old: &Value) -> FieldErrors {
        let mut e = Errors::new();
        metadata::check_update(self.options(), new, old, &mut e);
        self.check_subresource_update(subresource, new, old, &mut e);
        e.finish()
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

    /// Values of [`Options::fields`]; the base reads them by their dotted paths.
    fn selectable_fields(&self, obj: &Value) -> Vec<(&'static str, String)> {
        self.options().fields.iter().map(|f| (*f, field_text(obj, f))).collect()
    }
    /// One selectable field, `metadata.name` and `metadata.namespace` included; `None` when it is not selectable.
    fn selectable_field(&self, obj: &Value, name: &str) -> Option<String> {
        match name {
            "metadata.name" | "metadata.namespace" => Some(field_text(obj, name)),
            _ if self.options().fields.contains(&name) => {
                self.selectable_fields(obj).into_iter().find(|(n, _)| *n == name).map(|(_, v)| v)
            }
            _ => None,
        }
    }

    /// Conditions of the object's table row (`Completed` of finished pods and jobs).
    fn row_conditions(&self, obj: &Value) -> Vec<Value> {
        let _ = obj;
        Vec::new()
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
