//! What a request wants to do, as authorizers see it. Built by the API server from the path, never from the HTTP verb alone.
use kelson_meta::{FieldSelector, LabelSelector};

use crate::UserInfo;

/// The facts an authorizer decides on. Borrowed from the request: building one allocates nothing.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    /// The user after impersonation.
    pub user: &'a UserInfo,
    /// API verb (`get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, `proxy` …), or the
    /// lower-case HTTP method for non-resource paths.
    pub verb: &'a str,
    /// Namespace; empty for cluster-scoped objects and all-namespace lists.
    pub namespace: &'a str,
    /// API group; empty for the legacy one.
    pub group: &'a str,
    /// Version of the group, `*` for all; empty for paths that are no resource.
    pub version: &'a str,
    /// Plural name of the resource; empty for paths that are no resource.
    pub resource: &'a str,
    /// Subresource, e.g. `status`; empty for none.
    pub subresource: &'a str,
    /// Object name; empty for collections.
    pub name: &'a str,
    /// Path of a request that asks for no resource (`/healthz`); rules on `nonResourceURLs` look at it.
    pub path: &'a str,
    /// Whether the path names a resource (else only `verb` and `path` count).
    pub is_resource: bool,
    /// Field selector of a list, watch or deletecollection.
    pub field_selector: Option<&'a FieldSelector>,
    /// Label selector of a list, watch or deletecollection.
    pub label_selector: Option<&'a LabelSelector>,
}

impl<'a> Attributes<'a> {
    /// A resource request without subresource, version or selectors; fill the rest by struct update.
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
    /// A request for a path that is no resource.
    pub fn path(user: &'a UserInfo, verb: &'a str, path: &'a str) -> Self {
        Self { is_resource: false, path, version: "", ..Self::resource(user, verb, "", "", "", "") }
    }
    /// Same, with a subresource.
    pub fn with_subresource(self, subresource: &'a str) -> Self {
        Self { subresource, ..self }
    }
    /// Whether the verb changes nothing.
    pub fn is_read_only(&self) -> bool {
        matches!(self.verb, "get" | "list" | "watch")
    }
}
