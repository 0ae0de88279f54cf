//! The attributes of a request that authorizers decide on. The API server computes them from the path, never from the
//! HTTP verb alone.
use kelson_meta::{FieldSelector, LabelSelector};

use crate::UserInfo;

/// The attributes that an authorizer decides on. They are borrowed from the request, so creating them allocates
/// nothing.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    /// The user after impersonation.
    pub user: &'a UserInfo,
    /// The API verb (`get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, `proxy` …), or
    /// the lower-case HTTP method for non-resource paths.
    pub verb: &'a str,
    /// The namespace; empty for cluster-scoped objects and lists over all namespaces.
    pub namespace: &'a str,
    /// The API group; empty for the legacy group.
    pub group: &'a str,
    /// The version of the group, `*` for all; empty for non-resource paths.
    pub version: &'a str,
    /// The plural name of the resource; empty for non-resource paths.
    pub resource: &'a str,
    /// The subresource, e.g. `status`; empty for none.
    pub subresource: &'a str,
    /// The object's name; empty for collections.
    pub name: &'a str,
    /// The path of a non-resource request (`/healthz`), which rules on `nonResourceURLs` match.
    pub path: &'a str,
    /// Whether the path is that of a resource (otherwise only `verb` and `path` count).
    pub is_resource: bool,
    /// The field selector of a list, watch or deletecollection.
    pub field_selector: Option<&'a FieldSelector>,
    /// The label selector of a list, watch or deletecollection.
    pub label_selector: Option<&'a LabelSelector>,
}

impl<'a> Attributes<'a> {
    /// Creates the attributes of a resource request without subresource, version or selectors; set the others by struct
    /// update.
    pub fn resource(
        user: &'a UserInfo,
        verb: &'a str,
        group: &'a str,
        resource: &'a str,
        namespace: &'a str,
        name: &'a str,
    ) -> Self {
        Self {
            user,
            verb,
            namespace,
            group,
            version: "*",
            resource,
            subresource: "",
            name,
            path: "",
            is_resource: true,
            field_selector: None,
            label_selector: None,
        }
    }
    /// Creates the attributes of a request for a non-resource path.
    pub fn path(user: &'a UserInfo, verb: &'a str, path: &'a str) -> Self {
        Self { is_resource: false, path, version: "", ..Self::resource(user, verb, "", "", "", "") }
    }
    /// Returns the same attributes with a subresource.
    pub fn with_subresource(self, subresource: &'a str) -> Self {
        Self { subresource, ..self }
    }
    /// Reports whether the verb is read-only.
    pub fn is_read_only(&self) -> bool {
        matches!(self.verb, "get" | "list" | "watch")
    }
}
