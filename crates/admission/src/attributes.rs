//! The request as an admission plugin sees it, and the warnings and annotations that plugins return for the client and
//! the audit log.
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Duration;

use kelson_auth::UserInfo;
use kelson_meta::{GroupResource, Gvk, Gvr, Status};
use serde_json::Value;
use tokio::time::Instant;

use crate::explain::Changed;
use crate::old_object::OldObject;

/// The operation under admission. Reads are not subject to admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Operation {
    /// An object is created.
    Create = 1,
    /// An object is updated, also by a patch.
    Update = 2,
    /// An object or a collection is deleted.
    Delete = 4,
    /// A connection to a subresource (exec, attach, port-forward, proxy).
    Connect = 8,
}

impl Operation {
    /// Returns the wire form (`AdmissionReview.request.operation`).
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// A set of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operations(u8);

impl Operations {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// The set of `CREATE` alone.
    pub const CREATE: Self = Self(1);
    /// The set of `UPDATE` alone.
    pub const UPDATE: Self = Self(2);
    /// The set of `DELETE` alone.
    pub const DELETE: Self = Self(4);
    /// The set of `CONNECT` alone.
    pub const CONNECT: Self = Self(8);
    /// Create and update: the set that most plugins handle.
    pub const WRITE: Self = Self(3);
    /// The set of all four operations.
    pub const ALL: Self = Self(15);
    /// The set of one operation.
    pub const fn of(op: Operation) -> Self {
        Self(op as u8)
    }
    /// The union of both sets.
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// Reports whether `op` is in the set.
    pub const fn contains(self, op: Operation) -> bool {
        self.0 & op as u8 != 0
    }
}

/// A request under admission. The object is moved in and, possibly changed, moved out again.
#[derive(Debug)]
pub struct Attributes<'a> {
    /// The operation on the object.
    pub operation: Operation,
    /// The kind of `object` (for a subresource, the subresource's kind, e.g. `Binding`).
    pub kind: &'a Gvk,
    /// The resource of the request's path.
    pub resource: &'a Gvr,
    /// The subresource; empty for none.
    pub subresource: &'a str,
    /// The namespace; empty for cluster-scoped objects. For a request to a Namespace object it is that object's name,
    /// as upstream.
    pub namespace: &'a str,
    /// The object's name; empty on create when `generateName` is not resolved yet.
    pub name: &'a str,
    /// The new object (create, update), or the options of a connection; `None` on delete.
    pub object: Option<Value>,
    /// `metadata.managedFields` of the new object as JSON, if they are not in the object: few plugins read them, and
    /// they can be half of an object. They are moved like the object.
    pub managed_fields: Option<String>,
    /// The stored object (update, delete).
    pub old_object: Option<OldObject<'a>>,
    /// The user who makes the request, after impersonation.
    pub user: &'a UserInfo,
    /// Nothing will be stored: plugins must have no side effects.
    pub dry_run: bool,
    /// Whether the changes of each plugin must be recorded, which takes a copy of the object.
    pub explained: bool,
    /// The options of the operation.
    pub options: OperationOptions<'a>,
    /// The state of reinvocation between the mutating rounds.
    pub rounds: Rounds,
    /// The deadline of the request, if it has one.
    pub deadline: Option<Instant>,
}

/// The mutating rounds of one request. When a webhook or a policy has changed the object, the chain runs a second
/// round, so that plugins before it see the change (upstream `ReinvocationContext`).
#[derive(Debug, Default)]
pub struct Rounds {
    /// Whether a second round is required.
    pub again: bool,
    /// Whether this is the second round.
    pub second: bool,
    /// The webhooks to reinvoke.
    pub webhooks: Reinvocation,
    /// The mutating policies to reinvoke.
    pub policies: Reinvocation,
}

/// The webhooks or policies to call again in the second round: those with `reinvocationPolicy: IfNeeded` that ran
/// before a change.
#[derive(Debug, Default)]
pub struct Reinvocation {
    /// Those that ran and must run again after a later change.
    ran: BTreeSet<String>,
    /// Those that are called in the second round.
    due: BTreeSet<String>,
    /// The object after the last of them ran; only stored if some may be reinvoked.
    left: Option<Value>,
}

impl Reinvocation {
    /// Records that one with `reinvocationPolicy: IfNeeded` ran.
    pub fn ran(&mut self, id: &str) {
        self.ran.insert(id.to_owned());
    }
    /// Records that the object was changed: all that ran before run again.
    pub fn changed(&mut self) {
        self.due.append(&mut self.ran);
    }
    /// Reports whether this one runs in the second round.
    pub fn is_due(&self, id: &str) -> bool {
        self.due.contains(id)
    }
    /// Begins the second round. A change by another plugin since the first round counts as well.
    pub fn begin_second(&mut self, object: Option<&Value>) {
        if !self.ran.is_empty() && self.left.as_ref() != object {
            self.changed();
        }
    }
    /// Ends a round.
    pub fn end(&mut self, object: Option<&Value>) {
        self.left = if self.ran.is_empty() { None } else { object.cloned() };
    }
}

/// The options of an operation as an object (`CreateOptions`, `UpdateOptions`, `DeleteOptions`), built only when a
/// plugin sends them somewhere, as webhooks do.
#[derive(Clone, Copy, Default)]
pub struct OperationOptions<'a>(Option<&'a (dyn Fn() -> Value + Send + Sync)>);

impl<'a> OperationOptions<'a> {
    /// Creates options that `make` builds when they are read.
    pub fn new(make: &'a (dyn Fn() -> Value + Send + Sync)) -> Self {
        Self(Some(make))
    }
    /// Returns the object; `None` for an operation without options, such as a connection.
    pub fn object(&self) -> Option<Value> {
        self.0.map(|make| make())
    }
}

impl std::fmt::Debug for OperationOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OperationOptions").field(&self.object()).finish()
    }
}

impl Attributes<'_> {
    /// Returns the timeout for a call about this request: `limit`, or what is left until the request's deadline.
    pub fn time_left(&self, limit: Duration) -> Duration {
        self.deadline.map_or(limit, |end| limit.min(end.saturating_duration_since(Instant::now())))
    }
    /// Reports whether the request is for `resource` of `group` or one of its subresources.
    pub fn is(&self, group: &str, resource: &str) -> bool {
        self.resource.resource == resource && self.resource.group == group
    }
    /// Reports whether the request is for `resource` of `group`, and not for a subresource.
    pub fn is_main(&self, group: &str, resource: &str) -> bool {
        self.subresource.is_empty() && self.is(group, resource)
    }
    /// Returns a 403 as upstream's `admission.NewForbidden` does: with the object's own name if the path has none.
    pub fn forbidden(&self, why: &str) -> Status {
        let gr = GroupResource::new(&self.resource.group, &self.resource.resource);
        Status::forbidden(&gr, &self.display_name(), why)
    }
    /// Returns a 404 as upstream's `admission.NewNotFound` does.
    pub fn not_found(&self) -> Status {
        let gr = GroupResource::new(&self.resource.group, &self.resource.resource);
        Status::not_found(&gr, &self.display_name())
    }
    /// Returns the object's name: the one of the path, or on create the object's own.
    pub fn object_name(&self) -> &str {
        if self.name.is_empty() {
            self.object.as_ref().map_or("", |o| kelson_meta::tree::path::text(o, &["metadata", "name"]))
        } else {
            self.name
        }
    }
    /// Returns the new object, including its managed fields.
    pub fn whole_object(&self) -> Option<Cow<'_, Value>> {
        let object = self.object.as_ref()?;
        let Some(managed_fields) = &self.managed_fields else { return Some(Cow::Borrowed(object)) };
        let mut whole = object.clone();
        put_into(&mut whole, managed_fields);
        Some(Cow::Owned(whole))
    }
    /// Puts the managed fields into the new object.
    pub fn make_whole(&mut self) {
        if let (Some(managed_fields), Some(object)) = (self.managed_fields.take(), &mut self.object) {
            put_into(object, &managed_fields);
        }
    }
    /// Returns the new object; JSON null when there is none. Its managed fields may be missing.
    pub fn new_object(&self) -> &Value {
        self.object.as_ref().unwrap_or(&Value::Null)
    }
    /// Returns the stored object; JSON null when there is none.
    pub fn stored(&self) -> &Value {
        self.old_object.map_or(&Value::Null, OldObject::get)
    }
    fn display_name(&self) -> String {
        if !self.name.is_empty() {
            return self.name.to_owned();
        }
        let meta = self.object.as_ref().and_then(|o| o.get("metadata"));
        let field = |k: &str| meta.and_then(|m| m.get(k)).and_then(Value::as_str).filter(|s| !s.is_empty());
        match (field("name"), field("generateName")) {
            (Some(name), _) => name.to_owned(),
            (None, Some(base)) => base.to_owned(),
            _ => "Unknown".to_owned(),
        }
    }
}

fn put_into(object: &mut Value, managed_fields: &str) {
    let entries = serde_json::from_str(managed_fields);
    if let (Some(metadata), Ok(entries)) = (object.get_mut("metadata").and_then(Value::as_object_mut), entries) {
        metadata.insert("managedFields".to_owned(), entries);
    }
}

/// The output of plugins besides the object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Sent to the client as `Warning: 299` headers.
    pub warnings: Vec<String>,
    /// Written to the audit event; keys are `plugin/key`.
    pub audit_annotations: Vec<(String, String)>,
    /// Written to audit events that contain the request's object, because these show parts of it.
    pub request_annotations: Vec<(String, String)>,
    /// The changes by plugins, in order; recorded only with [`Attributes::explained`].
    pub changes: Vec<Changed>,
    /// Webhooks and policies that changed the object while the current plugin ran.
    pub actors: Vec<String>,
    /// The plugin that rejected the request, for the audit log.
    pub refused_by: Option<&'static str>,
}

impl Notes {
    /// Adds a warning, unless it is there already.
    pub fn warn(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.warnings.contains(&text) {
            self.warnings.push(text);
        }
    }
    /// Adds the output of another pass.
    pub fn absorb(&mut self, later: Self) {
        later.warnings.into_iter().for_each(|w| self.warn(w));
        self.audit_annotations.extend(later.audit_annotations);
        self.request_annotations.extend(later.request_annotations);
        self.changes.extend(later.changes);
        self.actors.extend(later.actors);
        self.refused_by = self.refused_by.or(later.refused_by);
    }
    /// Returns one sentence for each change of the object, and one for the rejection.
    pub fn explanations(&self) -> impl Iterator<Item = String> + '_ {
        let refused = self.refused_by.map(|plugin| format!("{plugin} denied the request"));
        self.changes.iter().map(ToString::to_string).chain(refused)
    }
    /// Adds an audit annotation.
    pub fn annotate(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.audit_annotations.push((key.into(), value.into()));
    }
}
