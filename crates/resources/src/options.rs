//! Properties of a kind that the request path reads, as plain owned data: a built-in kind borrows constant strings, a
//! kind created at run time (a custom resource) owns its strings. Properties in the published discovery of a built-in
//! kind are read from the schema's table.
use std::borrow::Cow;

use kelson_meta::Gvk;
use kelson_schema::resource::{self, Resource};

use crate::column::{Column, NAME_CREATED};
use crate::names::NameRule;
use crate::rejudged::{self, Rejudged};
use crate::text::{Text, Texts};

/// A constant list of strings: `texts!["spec", "replicas"]`.
macro_rules! texts {
    ($($text:expr),* $(,)?) => {
        ::std::borrow::Cow::Borrowed(const { &[$(::std::borrow::Cow::Borrowed($text)),*] })
    };
}
/// A constant list of columns: `columns![NAME, AGE]`.
macro_rules! columns {
    ($($column:expr),* $(,)?) => { ::std::borrow::Cow::Borrowed(const { &[$($column),*] }) };
}
pub(crate) use {columns, texts};

/// The way in which objects of the kind are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// Immediately, unless finalizers exist.
    Immediate,
    /// Pods: after `spec.terminationGracePeriodSeconds` unless the request sets another period; 0 for unscheduled or
    /// finished pods.
    Graceful,
    /// Namespaces: marked, in the phase `Terminating`, removed once `spec.finalizers` is empty.
    Namespace,
    /// Definitions of kinds: marked, with a finalizer and the condition `Terminating`, until all objects of the kind
    /// are deleted.
    CustomResources,
}

/// The part of the server that processes a write before it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observer {
    /// None: the write is stored and watched.
    None,
    /// The part that serves custom resources, which also completes a definition's status before it is stored.
    CustomResources,
    /// The part that knows the group versions of aggregated API servers.
    Aggregation,
}

/// The durability of an acknowledged write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Fully: the disk has confirmed the write before the client gets the answer.
    Synced,
    /// The last moments before a power failure may be lost: for records that are renewed continuously.
    Relaxed,
}

/// The allocations of the API server when an object of the kind is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Nothing is allocated.
    None,
    /// Cluster IPs and node ports (Services).
    ServiceAddresses,
}

/// The destination of connections to an object of the kind (`proxy`, `exec`, `log` and others).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connects {
    /// None: there are no connections.
    Nowhere,
    /// A container or a port of the pod, mostly through the pod's kubelet.
    Pod,
    /// A pod of the service.
    Service,
    /// The kubelet of the node.
    Node,
}

/// The fields of the `scale` subresource, each as a path of keys from the object's root.
#[derive(Clone, Debug)]
pub struct ScalePaths {
    /// The desired count, such as `spec.replicas`.
    pub spec_replicas: Texts,
    /// The current count, such as `status.replicas`.
    pub status_replicas: Texts,
    /// A label selector object, a plain label map (replication controllers), or a selector string (custom resources).
    /// Empty when the kind has none, which hides it from autoscalers.
    pub selector: Texts,
}

impl ScalePaths {
    /// Returns the paths of all built-in workloads.
    pub fn usual() -> Self {
        Self {
            spec_replicas: texts!["spec", "replicas"],
            status_replicas: texts!["status", "replicas"],
            selector: texts!["spec", "selector"],
        }
    }
}

/// The properties of a kind that differ from those of most kinds: its names and scope, the stored version,
/// subresources, the rules for names and deletion, allocations and durability. A file of a kind states them as `Options
/// { .., ..Options::of(group, plural) }`. The API server reads them wherever the kinds differ.
#[derive(Clone, Debug)]
pub struct Options {
    /// The API group; empty for the legacy group.
    pub group: Text,
    /// The plural name in paths.
    pub resource: Text,
    /// Whether objects are namespaced.
    pub namespaced: bool,
    /// The stored version. Its group may differ from the path's (events).
    pub storage: Gvk,
    /// Writable subresources that are views of the object: `status`, `approval`, `resize`.
    pub subresources: Texts,
    /// Whether `metadata.generation` counts changes of the spec.
    pub generation: bool,
    /// The rule for `metadata.name`.
    pub name: NameRule,
    /// Whether PUT may create an object.
    pub allow_create_on_update: bool,
    /// Whether a new object without a name gets one (upstream `limitrangeStrategy.PrepareForCreate`).
    pub names_itself: bool,
    /// Whether PUT without a resourceVersion overwrites.
    pub allow_unconditional_update: bool,
    /// The way in which objects are deleted.
    pub deletion: Deletion,
    /// Whether a completed delete returns the object instead of a `Status`.
    pub delete_returns_object: bool,
    /// The fields of `scale`, for kinds that have it.
    pub scale: Option<ScalePaths>,
    /// The table columns; [`crate::Strategy::row`] returns as many cells.
    pub columns: Cow<'static, [Column]>,
    /// Selectable fields besides `metadata.name` and `metadata.namespace`.
    pub fields: Texts,
    /// Whether it is stored (reviews and bindings are only created).
    pub stored: bool,
    /// The durability of writes at a power failure.
    pub durability: Durability,
    /// Whether objects are deleted automatically after the server's `--event-ttl`.
    pub expires: bool,
    /// Whether objects contain expressions or patterns that a write compiles, so that its size does not show its cost.
    pub expressions: bool,
    /// The allocations of a write.
    pub allocation: Allocation,
    /// The destination of connecting subresources.
    pub connects: Connects,
    /// Whether objects grant permissions, which a writer must have as well (RBAC escalation check).
    pub grants_permissions: bool,
    /// The part of the server that processes a write before it is answered.
    pub observer: Observer,
    /// Whether a delete without a propagation policy orphans dependents.
    pub orphans_dependents: bool,
    /// The additional validations of a changed object's metadata by the kind's rules.
    pub rejudged: Rejudged,
    /// The additional validations when one of its views is written.
    pub rejudged_in_views: Rejudged,
    /// Whether a write of the status keeps metadata unchanged.
    pub status_is_independent: bool,
}

impl Options {
    /// Creates the options of a built-in resource from the schema's table: scope, stored version (the preferred one),
    /// views. Everything else is as for most kinds. A resource that is not in the table gets an empty kind, which no
    /// path serves.
    pub fn of(group: &'static str, plural: &'static str) -> Self {
        let published = resource::preferred(group, plural);
        let (version, kind) = published.map_or(("", ""), |r| (r.version, r.kind));
        let stored_form = Gvk::new(group, version, kind);
        let namespaced = published.is_some_and(|r| r.namespaced);
        let subresources = published.map(views).unwrap_or_default().into();
        Self {
            subresources,
            expressions: holds_expressions(group, plural),
            rejudged: Rejudged::of(group, plural),
            rejudged_in_views: Rejudged::of_views(group, plural),
            status_is_independent: rejudged::status_is_independent(group, plural),
            ..Self::of_kind(group, plural, stored_form, namespaced)
        }
    }

    /// Creates the options of any resource, as for most kinds: no subresources, no generation, deleted immediately.
    pub fn of_kind(group: impl Into<Text>, plural: impl Into<Text>, storage: Gvk, namespaced: bool) -> Self {
        Self {
            group: group.into(),
            resource: plural.into(),
            namespaced,
            storage,
            subresources: Cow::Borrowed(&[]),
            generation: false,
            name: NameRule::Subdomain,
            allow_create_on_update: false,
            names_itself: false,
            allow_unconditional_update: true,
            deletion: Deletion::Immediate,
            delete_returns_object: false,
            scale: None,
            columns: NAME_CREATED.into(),
            fields: Cow::Borrowed(&[]),
            stored: true,
            durability: Durability::Synced,
            expires: false,
            expressions: false,
            allocation: Allocation::None,
            connects: Connects::Nowhere,
            grants_permissions: false,
            observer: Observer::None,
            orphans_dependents: false,
            rejudged: Rejudged::CUSTOM,
            rejudged_in_views: Rejudged::CUSTOM,
            status_is_independent: false,
        }
    }

    /// Reports whether its objects are namespaces: a request for one belongs to that namespace.
    pub fn is_namespace(&self) -> bool {
        self.deletion == Deletion::Namespace
    }

    /// Reports whether there is a `status` subresource.
    pub fn has_status(&self) -> bool {
        self.subresources.iter().any(|s| s == "status")
    }
    /// Returns the kind, which is the same in all versions.
    pub fn kind(&self) -> &str {
        &self.storage.kind
    }
}

/// Returns the kinds whose fields are CEL expressions or regular expressions.
fn holds_expressions(group: &str, plural: &str) -> bool {
    match group {
        "admissionregistration.k8s.io" => true,
        "apiextensions.k8s.io" => plural == "customresourcedefinitions",
        "resource.k8s.io" => matches!(plural, "deviceclasses" | "resourceclaims" | "resourceclaimtemplates"),
        _ => false,
    }
}

/// Returns the writable subresources that are views of the object.
fn views(r: &'static Resource) -> Vec<Text> {
    let view = |s: &&resource::Subresource| s.kind == r.kind && s.verbs.contains(&"update");
    r.subresources.iter().filter(view).map(|s| Cow::Borrowed(s.name)).collect()
}
