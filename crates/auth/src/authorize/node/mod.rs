//! The Node authorizer: a kubelet may access its own Node, Lease and CSINode, and the objects that its pods refer to.
//! The NodeRestriction admission plugin further limits what it may write.
mod graph;
mod views;

pub use graph::{NodeGraph, NodeResource};

use std::sync::Arc;

use super::policy::default_rules;
use super::rbac::PolicyRule;
use super::{Authorizer, Decision};
use crate::user::node_name;
use crate::{Attributes, UserInfo};
use views::Kind;

const LEASE_NAMESPACE: &str = "kube-node-lease";

/// Decides for users `system:node:*` in the group `system:nodes`; no opinion on other users.
pub struct NodeAuthorizer {
    graph: Arc<NodeGraph>,
    /// The rules that apply to all nodes.
    rules: Vec<PolicyRule>,
}

fn no(reason: impl Into<String>) -> Decision {
    Decision::NoOpinion(reason.into())
}

fn yes() -> Decision {
    Decision::Allow(String::new())
}

impl NodeAuthorizer {
    /// Creates the authorizer with `graph`, which the caller keeps up to date.
    pub fn new(graph: Arc<NodeGraph>) -> Self {
        Self { graph, rules: default_rules("system:node") }
    }

    /// Returns the graph of accessible objects, for the caller to update.
    pub fn graph(&self) -> &Arc<NodeGraph> {
        &self.graph
    }

    fn related(&self, node: &str, kind: Kind, a: &Attributes<'_>) -> Decision {
        if a.name.is_empty() {
            return no("No Object name found");
        }
        if self.graph.reaches(node, kind, a.namespace, a.name) {
            yes()
        } else {
            no(format!("no relationship found between node '{node}' and this object"))
        }
    }

    fn get_only(&self, node: &str, kind: Kind, a: &Attributes<'_>) -> Decision {
        if a.verb != "get" {
            return no("can only get individual resources of this type");
        }
        if !a.subresource.is_empty() {
            return no("cannot get subresource");
        }
        self.related(node, kind, a)
    }

    fn read_namespaced(&self, node: &str, kind: Kind, a: &Attributes<'_>) -> Decision {
        if !matches!(a.verb, "get" | "list" | "watch") {
            return no("can only read resources of this type");
        }
        if !a.subresource.is_empty() {
            return no("cannot read subresource");
        }
        if a.namespace.is_empty() {
            return no("can only read namespaced object of this type");
        }
        self.related(node, kind, a)
    }

    fn claim(&self, node: &str, a: &Attributes<'_>) -> Decision {
        if a.subresource != "status" {
            return self.get_only(node, Kind::Claim, a);
        }
        if !matches!(a.verb, "update" | "patch") {
            return no("can only get/update/patch this type");
        }
        self.related(node, Kind::Claim, a)
    }

    fn service_account(&self, node: &str, a: &Attributes<'_>) -> Decision {
        if a.verb == "get" && a.subresource.is_empty() {
            return self.read_namespaced(node, Kind::ServiceAccount, a);
        }
        if a.verb != "create" || a.name.is_empty() {
            return no("can only create tokens for individual service accounts");
        }
        if a.subresource != "token" {
            return no("can only create token subresource of serviceaccount");
        }
        self.related(node, Kind::ServiceAccount, a)
    }

    fn resource_slice(&self, node: &str, a: &Attributes<'_>) -> Decision {
        if !a.subresource.is_empty() {
            return no("cannot authorize ResourceSlice subresources");
        }
        match a.verb {
            // NodeRestriction checks the new object's node name.
            "create" => yes(),
            "get" | "update" | "patch" | "delete" => self.related(node, Kind::ResourceSlice, a),
            "watch" | "list" | "deletecollection" if selects(a, "spec.nodeName", node) => yes(),
            "watch" | "list" | "deletecollection" => {
                no("can only list/watch/deletecollection resourceslices with nodeName field selector")
            }
            _ => no(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, \
                 delete, deletecollection",
            ),
        }
    }

    fn certificate_request(&self, node: &str, a: &Attributes<'_>) -> Decision {
        if !a.subresource.is_empty() {
            return no("nodes may not access the status subresource of PodCertificateRequests");
        }
        match a.verb {
            "create" => yes(),
            "get" => self.related(node, Kind::PodCertificateRequest, a),
            "list" | "watch" if selects(a, "spec.nodeName", node) => yes(),
            "list" | "watch" => no("can only list/watch podcertificaterequests with nodeName field selector"),
            verb => no(format!("nodes may not {verb} podcertificaterequests")),
        }
    }

    fn pod(&self, node: &str, a: &Attributes<'_>) -> Decision {
        match (a.subresource, a.verb) {
            ("", "get") => self.get_only(node, Kind::Pod, a),
            ("", "list" | "watch") if selects(a, "spec.nodeName", node) => yes(),
            ("", "list" | "watch") if !a.name.is_empty() => self.related(node, Kind::Pod, a),
            ("", "list" | "watch") => no("can only list/watch pods with spec.nodeName field selector"),
            // NodeRestriction limits these to the node's own pods and to mirror pods.
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => yes(),
            _ => no(""),
        }
    }
}

/// Reports whether a field selector requires that `field` is exactly `value`.
fn selects(a: &Attributes<'_>, field: &str, value: &str) -> bool {
    a.field_selector.is_some_and(|s| s.exact(field) == Some(value))
}

fn own_node(node: &str, a: &Attributes<'_>) -> Decision {
    match (a.subresource, a.verb) {
        // NodeRestriction limits writes to the node's own object.
        ("", "create" | "update" | "patch") | ("status", "update" | "patch") => yes(),
        ("", "get" | "list" | "watch") if a.name == node => yes(),
        ("", "get" | "list" | "watch") if a.name.is_empty() => {
            no(format!("node '{node}' cannot read all nodes, only its own Node object"))
        }
        ("", "get" | "list" | "watch") => {
            no(format!("node '{node}' cannot read '{}', only its own Node object", a.name))
        }
        _ => no(""),
    }
}

fn lease(node: &str, a: &Attributes<'_>) -> Decision {
    if !matches!(a.verb, "get" | "create" | "update" | "patch" | "delete") {
        return no("can only get, create, update, patch, or delete a node lease");
    }
    if a.namespace != LEASE_NAMESPACE {
        return no(format!("can only access leases in the {LEASE_NAMESPACE:?} system namespace"));
    }
    if a.verb != "create" && a.name != node {
        return no("can only access node lease with the same name as the requesting node");
    }
    yes()
}

fn csi_node(node: &str, a: &Attributes<'_>) -> Decision {
    if !matches!(a.verb, "get" | "create" | "update" | "patch" | "delete") {
        return no("can only get, create, update, patch, or delete a CSINode");
    }
    if !a.subresource.is_empty() {
        return no("cannot authorize CSINode subresources");
    }
    if a.verb != "create" && a.name != node {
        return no("can only access CSINode with the same name as the requesting node");
    }
    yes()
}

impl Authorizer for NodeAuthorizer {
    fn unlisted(&self, user: &UserInfo) -> Vec<&'static str> {
        node_name(user).map(|_| "node authorizer does not support user rule resolution").into_iter().collect()
    }

    fn authorize(&self, a: &Attributes<'_>) -> Decision {
        let Some(node) = node_name(a.user) else { return no("") };
        if node.is_empty() {
            return no(format!("unknown node for user {:?}", a.user.name));
        }
        if a.is_resource {
            match (a.group, a.resource) {
                ("", "secrets") => return self.read_namespaced(node, Kind::Secret, a),
                ("", "configmaps") => return self.read_namespaced(node, Kind::ConfigMap, a),
                ("", "persistentvolumeclaims") => return self.claim(node, a),
                ("", "persistentvolumes") => return self.get_only(node, Kind::Volume, a),
                ("resource.k8s.io", "resourceclaims") => return self.get_only(node, Kind::ResourceClaim, a),
                ("storage.k8s.io", "volumeattachments") => return self.get_only(node, Kind::VolumeAttachment, a),
                ("", "serviceaccounts") => return self.service_account(node, a),
                ("coordination.k8s.io", "leases") => return lease(node, a),
                ("storage.k8s.io", "csinodes") => return csi_node(node, a),
                ("resource.k8s.io", "resourceslices") => return self.resource_slice(node, a),
                ("", "nodes") => return own_node(node, a),
                ("", "pods") => return self.pod(node, a),
                ("certificates.k8s.io", "podcertificaterequests") => return self.certificate_request(node, a),
                _ => {}
            }
        }
        if self.rules.iter().any(|r| r.allows(a)) { yes() } else { no("") }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
