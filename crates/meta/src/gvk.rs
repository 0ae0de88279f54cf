//! Names of API types: group, version, kind and resource. The schema defines which of them exist.
use std::fmt;

/// A group and a version, such as `apps/v1`. The legacy group is the empty string.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersion {
    /// The API group; empty for the legacy `v1`.
    pub group: String,
    /// The version, such as `v1beta1`.
    pub version: String,
}

impl GroupVersion {
    /// Creates the value from group and version.
    pub fn new(group: impl Into<String>, version: impl Into<String>) -> Self {
        Self { group: group.into(), version: version.into() }
    }

    /// Parses an `apiVersion`: `v1` or `group/version`. Returns `None` for more than one slash.
    pub fn parse(api_version: &str) -> Option<Self> {
        match api_version.split_once('/') {
            None => Some(Self::new("", api_version)),
            Some((g, v)) if !v.contains('/') => Some(Self::new(g, v)),
            Some(_) => None,
        }
    }
}

impl fmt::Display for GroupVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() { f.write_str(&self.version) } else { write!(f, "{}/{}", self.group, self.version) }
    }
}

/// Group, version and kind, as in the `apiVersion` and `kind` of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvk {
    /// The API group; empty for the legacy group.
    pub group: String,
    /// The version without the group, such as `v1beta1`.
    pub version: String,
    /// The kind, such as `Deployment`.
    pub kind: String,
}

impl Gvk {
    /// Creates the value from group, version and kind.
    pub fn new(group: impl Into<String>, version: impl Into<String>, kind: impl Into<String>) -> Self {
        Self { group: group.into(), version: version.into(), kind: kind.into() }
    }
    /// Returns the value for `apiVersion`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
    /// Returns the group and the kind without the version.
    pub fn group_kind(&self) -> GroupKind {
        GroupKind { group: self.group.clone(), kind: self.kind.clone() }
    }
}

impl fmt::Display for Gvk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, Kind={}", self.api_version(), self.kind)
    }
}

/// A group and a kind, independent of the version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKind {
    /// The API group; empty for the core group.
    pub group: String,
    /// The kind, such as `Deployment`.
    pub kind: String,
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() { f.write_str(&self.kind) } else { write!(f, "{}.{}", self.kind, self.group) }
    }
}

/// Group, version and resource (plural), as in the path of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvr {
    /// The API group; empty for the core group.
    pub group: String,
    /// The version without the group, such as `v1beta1`.
    pub version: String,
    /// The plural name of the resource, such as `deployments`.
    pub resource: String,
}

impl Gvr {
    /// Creates the value from group, version and resource.
    pub fn new(group: impl Into<String>, version: impl Into<String>, resource: impl Into<String>) -> Self {
        Self { group: group.into(), version: version.into(), resource: resource.into() }
    }
    /// Returns the group and the resource without the version.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource { group: self.group.clone(), resource: self.resource.clone() }
    }
}

/// A group and a resource, as RBAC, error messages and the store use them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupResource {
    /// The API group; empty for the core group.
    pub group: String,
    /// The plural name of the resource.
    pub resource: String,
}

impl GroupResource {
    /// Creates the value from group and resource.
    pub fn new(group: impl Into<String>, resource: impl Into<String>) -> Self {
        Self { group: group.into(), resource: resource.into() }
    }
}

impl fmt::Display for GroupResource {
    /// Formats the name as API error messages do: `deployments.apps`, `pods`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() { f.write_str(&self.resource) } else { write!(f, "{}.{}", self.resource, self.group) }
    }
}
