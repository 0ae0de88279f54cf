//! The facts of a kind that the request path asks for, as plain owned data: a built-in kind borrows compiled-in text, a
//! kind made at run time (a custom resource) owns its own. What the published discovery tells of a built-in kind is read
//! from the schema's table and never typed again.
use std::borrow::Cow;

use kelson_meta::Gvk;
use kelson_schema::resource::{self, Resource};

use crate::column::{Column, NAME_CREATED};
use crate::names::NameRule;
use crate::rejudged::{self, Rejudged};
use crate::text::{Text, Texts};

/// A compiled-in list of texts: `texts!["spec", "replicas"]`.
macro_rules! texts {
    ($($text:expr),* $(,)?) => {
        ::std::borrow::Cow::Borrowed(const { &[$(::std::borrow::Cow::Borrowed($text)),*] })
    };
}
/// A compiled-in list of columns: `columns![NAME, AGE]`.
macro_rules! columns {
    ($($column:expr),* $(,)?) => { ::std::borrow::Cow::Borrowed(const { &[$($column),*] }) };
}
pub(crate) use {columns, texts};

/// How the kind takes deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// At once, unless finalizers hold the object.
    Immediate,
    /// Pods: `spec.terminationGracePeriodSeconds` unless the request says otherwise; 0 when unscheduled or finished.
    Graceful,
    /// Namespaces: marked, phase `Terminating`, gone once `spec.finalizers` is empty.
    Namespace,
    /// Definitions of kinds: marked, with a finalizer and the condition `Terminating`, until all objects of the kind are gone.
    CustomResources,
}

/// Which part of the server takes a write over before its writer is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observer {
    /// Nobody: the write is stored, and watched by whom it concerns.
    None,
    /// The one that serves custom resources, which also completes a definition's status before it is stored.
    CustomResources,
    /// The one that knows which group versions other servers answer for.
    Aggregation,
}

/// What a write that was answered may lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Nothing: the disk has confirmed the write before the client hears of it.
    Synced,
    /// The last moments before a power cut: for records that are renewed or told again all the time.
    Relaxed,
}

/// What the API server hands out from the cluster's ranges when an object of the kind is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Nothing is handed out for objects of the kind.
    None,
    /// Cluster IPs and node ports (Services).
    ServiceAddresses,
}

/// Where a connection to an object of the kind leads (`proxy`, `exec`, `log` and their like).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connects {
    /// Nowhere: objects of the kind are only data.
    Nowhere,
    /// To a container or a port of the pod, most of it through the pod's kubelet.
    Pod,
    /// To a pod behind the service.
    Service,
    /// To the node's kubelet.
    Node,
}

/// Where the `scale` subresource finds its fields; each a path of keys from the object's root.
#[derive(Clone, Debug)]
pub struct ScalePaths {
    /// The count that is wanted, such as `spec.replicas`.
    pub spec_replicas: Texts,
    /// The count that is there, such as `status.replicas`.
    pub status_replicas: Texts,
    /// A label selector object, a plain label map (replication controllers), or selector text (custom resources). Empty
    /// when the kind has none, which hides it from autoscalers.
    pub selector: Texts,
}

impl ScalePaths {
    /// Those of all built-in workloads.
    pub fn usual() -> Self {
        Self {
            spec_replicas: texts!["spec", "replicas"],
            status_replicas: texts!["status", "replicas"],
            selector: texts!["spec", "selector"],
        }
    }
}

/// Facts about a kind of object.
#[derive(Clone, Debug)]
pub struct Options {
    /// API group; empty for the legacy one.
    pub group: Text,
    /// Plural name in paths.
    pub resource: Text,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// The form that is stored. Its group may be another one than the path's (events).
    pub storage: Gvk,
    /// Subresources that are views of the object and can be written: `status`, `approval`, `resize`.
    pub subresources: Texts,
    /// Whether the kind counts spec changes in `metadata.generation`.
    pub generation: bool,
    /// The rule for `metadata.name`.
    pub name: NameRule,
    /// Whether PUT may create.
    pub allow_create_on_update: bool,
    /// Whether PUT without a resourceVersion overwrites.
    pub allow_unconditional_update: bool,
    /// What deletion does.
    pub deletion: Deletion,
    /// Whether a delete that is done answers with the object instead of a `Status`.
    pub delete_returns_object: bool,
    /// Where `scale` finds its fields, for kinds that have it.
    pub scale: Option<ScalePaths>,
    /// Table columns; [`crate::Strategy::row`] gives as many cells.
    pub columns: Cow<'static, [Column]>,
    /// Selectable fields besides `metadata.name` and `metadata.namespace`.
    pub fields: Texts,
    /// Whether it is stored at all (reviews and bindings are only created).
    pub stored: bool,
    /// What a power cut may take.
    pub durability: Durability,
    /// Whether objects vanish by themselves after the server's `--event-ttl`.
    pub expires: bool,
    /// Whether objects hold expressions or patterns that a write compiles: what a write costs is not to be seen from its size.
    pub expressions: bool,
    /// What is handed out on a write.
    pub allocation: Allocation,
    /// What the subresources that connect reach.
    pub connects: Connects,
    /// Whether objects grant permissions, so that a writer needs to hold what they grant (RBAC escalation check).
    pub grants_permissions: bool,
    /// Who must know of a write before it is answered.
    pub observer: Observer,
    /// Whether a delete that says nothing of dependents leaves them.
    pub orphans_dependents: bool,
    /// How often the kind's rules look at the metadata of a changed object.
    pub rejudged: Rejudged,
    /// The same when one of its views is written.
    pub rejudged_in_views: Rejudged,
    /// Whether a write of the status keeps metadata as it was.
    pub status_stands_alone: bool,
}

impl Options {
    /// A built-in resource as the schema's table has it: scope, stored form (the preferred version's), views. All else is
    /// what most kinds do. A resource that the table lacks gets an empty kind, which no path serves.
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
            status_stands_alone: rejudged::status_stands_alone(group, plural),
            ..Self::of_kind(group, plural, stored_form, namespaced)
        }
    }

    /// Any resource, with what most kinds do: no subresources, no counting of generations, deleted at once.
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
            status_stands_alone: false,
        }
    }

    /// Whether its objects are namespaces: a request for one of them belongs to the namespace that it is.
    pub fn is_namespace(&self) -> bool {
        self.deletion == Deletion::Namespace
    }

    /// Whether there is a `status` subresource.
    pub fn has_status(&self) -> bool {
        self.subresources.iter().any(|s| s == "status")
    }
    /// The kind, the same in all its versions.
    pub fn kind(&self) -> &str {
        &self.storage.kind
    }
}

/// The kinds whose fields are CEL expressions or regular expressions.
fn holds_expressions(group: &str, plural: &str) -> bool {
    match group {
        "admissionregistration.k8s.io" => true,
        "apiextensions.k8s.io" => plural == "customresourcedefinitions",
        "resource.k8s.io" => matches!(plural, "deviceclasses" | "resourceclaims" | "resourceclaimtemplates"),
        _ => false,
    }
}

/// The subresources that take and give the object itself and can be written.
fn views(r: &'static Resource) -> Vec<Text> {
    let view = |s: &&resource::Subresource| s.kind == r.kind && s.verbs.contains(&"update");
    r.subresources.iter().filter(view).map(|s| Cow::Borrowed(s.name)).collect()
}
