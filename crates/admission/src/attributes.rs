//! What an admission plugin sees of a request, and what it may leave behind for the client and the audit log.
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Duration;

use kelson_auth::UserInfo;
use kelson_meta::{GroupResource, Gvk, Gvr, Status};
use serde_json::Value;
use tokio::time::Instant;

use crate::explain::Changed;

/// The operation admitted. Reads are never admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Operation {
    /// A new object.
    Create = 1,
    /// A change, also by patch.
    Update = 2,
    /// An object is deleted, or all of a collection.
    Delete = 4,
    /// A connection to a subresource (exec, attach, port-forward, proxy).
    Connect = 8,
}

impl Operation {
    /// The wire form (`AdmissionReview.request.operation`).
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
    /// No operation at all.
    pub const NONE: Self = Self(0);
    /// Making new objects.
    pub const CREATE: Self = Self(1);
    /// The set of `UPDATE` alone.
    pub const UPDATE: Self = Self(2);
    /// The set of `DELETE` alone.
    pub const DELETE: Self = Self(4);
    /// The set of `CONNECT` alone.
    pub const CONNECT: Self = Self(8);
    /// Create and update: what most plugins handle.
    pub const WRITE: Self = Self(3);
    /// All four there are.
    pub const ALL: Self = Self(15);
    /// One operation alone.
    pub const fn of(op: Operation) -> Self {
        Self(op as u8)
    }
    /// This set and another together.
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// Whether `op` is in the set.
    pub const fn contains(self, op: Operation) -> bool {
        self.0 & op as u8 != 0
    }
}

/// A request under admission. The object moves in and, perhaps changed, out again.
#[derive(Debug)]
pub struct Attributes<'a> {
    /// What is done with the object.
    pub operation: Operation,
    /// Kind of `object` (for a subresource, the subresource's kind, e.g. `Binding`).
    pub kind: &'a Gvk,
    /// Resource of the path.
    pub resource: &'a Gvr,
    /// Subresource; empty for none.
    pub subresource: &'a str,
    /// Namespace; empty for cluster-scoped objects. A Namespace's own requests carry its name here, as upstream's do.
    pub namespace: &'a str,
    /// Object name; empty on create with `generateName` still to be resolved.
    pub name: &'a str,
    /// The new object (create, update), or the connect options; `None` on delete.
    pub object: Option<Value>,
    /// `metadata.managedFields` of the new object, as JSON, where they are not in it: nearly nobody looks at them, and they are half of
    /// many an object. They move as the object does.
    pub managed_fields: Option<String>,
    /// The stored object (update, delete).
    pub old_object: Option<&'a Value>,
    /// Who asks, after impersonation.
    pub user: &'a UserInfo,
    /// Nothing will be stored: plugins must have no side effects.
    pub dry_run: bool,
    /// Somebody wants to know which plugin changed what: finding that out takes a copy of the object.
    pub explained: bool,
    /// The operation's options.
    pub options: OperationOptions<'a>,
    /// What the mutating rounds of this request remember of each other.
    pub rounds: Rounds,
    /// When the request's time is over, where it has an end.
    pub deadline: Option<Instant>,
}

/// The mutating rounds of one request. When a webhook or a policy has changed the object, the chain goes round once more, so
/// that the plugins before it see the change (upstream `ReinvocationContext`).
#[derive(Debug, Default)]
pub struct Rounds {
    /// A second round is wanted.
    pub again: bool,
    /// This is the second round.
    pub second: bool,
    /// What webhooks want of the second round.
    pub webhooks: Reinvocation,
    /// What mutating policies want of it.
    pub policies: Reinvocation,
}

/// Which webhooks or policies are called again in the second round: those that asked for it and ran before a change.
#[derive(Debug, Default)]
pub struct Reinvocation {
    /// Ran, and want to run again after a later change.
    ran: BTreeSet<String>,
    /// Are called in the second round.
    due: BTreeSet<String>,
    /// The object as the last of them left it; kept only where somebody may run again.
    left: Option<Value>,
}

impl Reinvocation {
    /// One that wants to run again after later changes has run.
    pub fn ran(&mut self, id: &str) {
        self.ran.insert(id.to_owned());
    }
    /// The object was changed: all that ran before run again.
    pub fn changed(&mut self) {
        self.due.append(&mut self.ran);
    }
    /// Whether this one runs in the second round.
    pub fn is_due(&self, id: &str) -> bool {
        self.due.contains(id)
    }
    /// Begins the second round: what other plugins changed since the first is a change too.
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

/// The options of an operation as an object (`CreateOptions`, `UpdateOptions`, `DeleteOptions`), made only when a plugin
/// shows them to somebody, as webhooks do.
#[derive(Clone, Copy, Default)]
pub struct OperationOptions<'a>(Option<&'a (dyn Fn() -> Value + Send + Sync)>);

impl<'a> OperationOptions<'a> {
    /// Made by `make` when asked for.
    pub fn new(make: &'a (dyn Fn() -> Value + Send + Sync)) -> Self {
        Self(Some(make))
    }
    /// The object; `None` where the operation has no options, as connecting has none.
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
    /// How long one who is asked about the request may take: `limit`, or what is left of the request's own time.
    pub fn time_left(&self, limit: Duration) -> Duration {
        self.deadline.map_or(limit, |end| limit.min(end.saturating_duration_since(Instant::now())))
    }
    /// Whether the request is for `resource` of `group` itself or its subresources.
    pub fn is(&self, group: &str, resource: &str) -> bool {
        self.resource.resource == resource && self.resource.group == group
    }
    /// Whether the request is for `resource` of `group`, and for no subresource.
    pub fn is_main(&self, group: &str, resource: &str) -> bool {
        self.subresource.is_empty() && self.is(group, resource)
    }
    /// 403 in the form of upstream's `admission.NewForbidden`: name from the object where the path has none.
    pub fn forbidden(&self, why: &str) -> Status {
        let gr = GroupResource::new(&self.resource.group, &self.resource.resource);
        Status::forbidden(&gr, &self.display_name(), why)
    }
    /// 404 in the form of upstream's `admission.NewNotFound`.
    pub fn not_found(&self) -> Status {
        let gr = GroupResource::new(&self.resource.group, &self.resource.resource);
        Status::not_found(&gr, &self.display_name())
    }
    /// The object's name: the path's, or on create the object's own.
    pub fn object_name(&self) -> &str {
        if self.name.is_empty() {
            self.object.as_ref().map_or("", |o| kelson_meta::tree::path::text(o, &["metadata", "name"]))
        } else {
            self.name
        }
    }
    /// The new object with all that belongs to it.
    pub fn whole_object(&self) -> Option<Cow<'_, Value>> {
        let object = self.object.as_ref()?;
        let Some(managed_fields) = &self.managed_fields else { return Some(Cow::Borrowed(object)) };
        let mut whole = object.clone();
        put_into(&mut whole, managed_fields);
        Some(Cow::Owned(whole))
    }
    /// Puts into the new object what stands beside it.
    pub fn make_whole(&mut self) {
        if let (Some(managed_fields), Some(object)) = (self.managed_fields.take(), &mut self.object) {
            put_into(object, &managed_fields);
        }
    }
    /// The new object; JSON null where there is none. What may stand beside it is left out.
    pub fn new_object(&self) -> &Value {
        self.object.as_ref().unwrap_or(&Value::Null)
    }
    /// The stored object; JSON null where there is none.
    pub fn stored(&self) -> &Value {
        self.old_object.unwrap_or(&Value::Null)
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

/// What plugins leave behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Go to the client as `Warning: 299` headers.
    pub warnings: Vec<String>,
    /// Go to the audit event; keys are `plugin/key`.
    pub audit_annotations: Vec<(String, String)>,
    /// Go to audit events that hold the request's object, because these show parts of it.
    pub request_annotations: Vec<(String, String)>,
    /// What plugins changed, in order; filled in where it was asked for ([`Attributes::explained`]).
    pub changes: Vec<Changed>,
    /// Webhooks and policies that changed the object in the running plugin's turn.
    pub actors: Vec<String>,
    /// The plugin that refused, for the audit log.
    pub refused_by: Option<&'static str>,
}

impl Notes {
    /// Adds a warning once.
    pub fn warn(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.warnings.contains(&text) {
            self.warnings.push(text);
        }
    }
    /// Adds what another pass left behind.
    pub fn absorb(&mut self, later: Self) {
        later.warnings.into_iter().for_each(|w| self.warn(w));
        self.audit_annotations.extend(later.audit_annotations);
        self.request_annotations.extend(later.request_annotations);
        self.changes.extend(later.changes);
        self.actors.extend(later.actors);
        self.refused_by = self.refused_by.or(later.refused_by);
    }
    /// What changed the object and what refused it, a sentence each.
    pub fn explanations(&self) -> impl Iterator<Item = String> + '_ {
        let refused = self.refused_by.map(|plugin| format!("{plugin} denied the request"));
        self.changes.iter().map(ToString::to_string).chain(refused)
    }
    /// Adds an audit annotation.
    pub fn annotate(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.audit_annotations.push((key.into(), value.into()));
    }
}
