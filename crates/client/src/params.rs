//! What requests and answers of the API's verbs carry besides objects: selectors, positions, patch formats, preconditions.
use kelson_meta::url::append_query;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// A decoded list.
#[derive(Clone, Debug, Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
pub struct List<T> {
    /// Position and continuation.
    #[serde(default)]
    pub metadata: ListMeta,
    /// Objects in the order of the server: by namespace and name.
    #[serde(default = "Vec::new", deserialize_with = "null_is_empty")]
    pub items: Vec<T>,
}

fn null_is_empty<'de, D: serde::Deserializer<'de>, T: DeserializeOwned>(d: D) -> Result<Vec<T>, D::Error> {
    Ok(Option::<Vec<T>>::deserialize(d)?.unwrap_or_default())
}

/// Metadata of a list (`metav1.ListMeta`).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListMeta {
    /// The revision the list is of.
    pub resource_version: String,
    /// Token for the next part; empty at the end.
    #[serde(rename = "continue")]
    pub continue_token: String,
    /// The number of items after this part, if known.
    pub remaining_item_count: Option<i64>,
}

/// The selection of objects to list or watch.
#[derive(Clone, Debug, Default)]
pub struct ListParams {
    /// Label selector, query form.
    pub labels: String,
    /// Field selector, query form.
    pub fields: String,
    /// The maximum number of items per part; 0 means no limit.
    pub limit: u32,
    /// The continue token of the previous part; empty for the first.
    pub continue_token: String,
    /// Revision to start at; empty: the newest.
    pub resource_version: String,
}

impl ListParams {
    /// Only objects with these labels.
    pub fn with_labels(mut self, selector: impl Into<String>) -> Self {
        self.labels = selector.into();
        self
    }
    /// Only objects with these fields.
    pub fn with_fields(mut self, selector: impl Into<String>) -> Self {
        self.fields = selector.into();
        self
    }
    pub(crate) fn query(&self) -> String {
        let mut q = Query::default();
        q.add("labelSelector", &self.labels).add("fieldSelector", &self.fields).add("continue", &self.continue_token);
        q.add("resourceVersion", &self.resource_version);
        if self.limit > 0 {
            q.add("limit", &self.limit.to_string());
        }
        q.0
    }
}

/// A query string under construction; empty values are left out.
#[derive(Default)]
pub(crate) struct Query(pub(crate) String);

impl Query {
    pub(crate) fn add(&mut self, key: &str, value: &str) -> &mut Self {
        if !value.is_empty() {
            append_query(&mut self.0, [(key, value)]);
        }
        self
    }
}

/// The patch formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    /// RFC 6902: a list of operations on paths.
    Json,
    /// RFC 7386: members replace members, null removes, lists are replaced whole.
    Merge,
    /// Kubernetes' own, by merge keys.
    Strategic,
    /// Server-side apply: all that this manager wants to own.
    Apply,
}

impl PatchKind {
    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json-patch+json",
            Self::Merge => "application/merge-patch+json",
            Self::Strategic => "application/strategic-merge-patch+json",
            Self::Apply => "application/apply-patch+yaml",
        }
    }
}

/// Query options of writes.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// Field manager; required for apply.
    pub field_manager: String,
    /// Take over conflicting fields (apply only).
    pub force: bool,
}

impl WriteOptions {
    /// Writes as this manager.
    pub fn manager(name: impl Into<String>) -> Self {
        Self { field_manager: name.into(), force: false }
    }
    pub(crate) fn query(&self) -> String {
        let mut q = Query::default();
        q.add("fieldManager", &self.field_manager);
        if self.force {
            q.add("force", "true");
        }
        q.0
    }
}

/// The way in which dependents are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum PropagationPolicy {
    /// Dependents stay and lose their reference to the owner.
    Orphan,
    /// They go later.
    Background,
    /// They go first.
    Foreground,
}

/// `metav1.DeleteOptions`, the part clients use.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeleteOptions {
    /// Seconds; 0 is at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_period_seconds: Option<i64>,
    /// The way in which dependents are deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub propagation_policy: Option<PropagationPolicy>,
    /// Only when these still hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preconditions: Option<Preconditions>,
}

/// Conditions for a delete.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Preconditions {
    /// Only the object with this UID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Only the object as it is at this version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
}

impl DeleteOptions {
    /// Only this very object.
    pub fn with_uid(mut self, uid: impl Into<String>) -> Self {
        self.preconditions.get_or_insert_default().uid = Some(uid.into());
        self
    }
    /// Sets the grace period in seconds.
    pub fn with_grace(mut self, seconds: i64) -> Self {
        self.grace_period_seconds = Some(seconds);
        self
    }
    /// Sets the propagation policy.
    pub fn with_propagation(mut self, policy: PropagationPolicy) -> Self {
        self.propagation_policy = Some(policy);
        self
    }
}
