//! NodeRestriction: a kubelet may only write its Node, the status of its pods, mirror pods bound to itself, its Lease
//! and CSINode, and tokens and certificates for itself and its pods (including the fix of CVE-2025-5187).
use std::collections::BTreeSet;
use std::sync::Arc;

use kelson_auth::{Attributes as Request, Authorizer, Objects, user::node_name};
use kelson_meta::gates::FeatureGates;
use kelson_meta::{GroupResource, Status};
use kelson_pki::{KUBE_APISERVER_CLIENT_KUBELET, KUBELET_SERVING};
use serde_json::Value;

use super::certificates::request_of;
use super::pod_certificates::{self, MIRROR};
use super::service_account::references_secret;
use crate::containers::containers;
use crate::{Attributes, Dependencies, Notes, Operation, Operations, Plugin};
use kelson_meta::tree::path::{at, list, strings, text};
use kelson_meta::tree::same;

const RESTRICTED: &str = "node-restriction.kubernetes.io";
/// Labels in the domains kubernetes.io and k8s.io that a kubelet may set.
const KUBELET_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
/// Label domains that a kubelet may set any label in.
const KUBELET_NAMESPACES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

type Checked = Result<(), Status>;

/// The plugin; see the module.
pub struct NodeRestriction {
    objects: Arc<dyn Objects>,
    authorizer: Arc<dyn Authorizer>,
    gates: Arc<FeatureGates>,
}

fn within(namespace: &str, parent: &str) -> bool {
    namespace == parent || namespace.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.'))
}

/// Returns those of the changed labels that a node may not change.
fn forbidden_labels<'a>(changed: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let own =
        |label: &str, ns: &str| KUBELET_LABELS.contains(&label) || KUBELET_NAMESPACES.iter().any(|n| within(ns, n));
    let mut out: Vec<&str> = changed
        .filter(|label| {
            let ns = label.split_once('/').map_or("", |(ns, _)| ns);
            let kubernetes = within(ns, "kubernetes.io") || within(ns, "k8s.io");
            within(ns, RESTRICTED) || (kubernetes && !own(label, ns))
        })
        .collect();
    out.sort_unstable();
    out
}

fn changed_labels<'a>(new: &'a Value, old: &'a Value) -> BTreeSet<&'a str> {
    let path = ["metadata", "labels"];
    let one_way = |a: &'a Value, b: &'a Value| {
        strings(a, &path).filter(move |(k, v)| at(b, &path).get(*k).and_then(Value::as_str) != Some(*v)).map(|(k, _)| k)
    };
    one_way(new, old).chain(one_way(old, new)).collect()
}

impl NodeRestriction {
    /// Creates the plugin, which reads pods and nodes through the dependencies.
    pub fn new(d: &Dependencies) -> Self {
        Self { objects: d.objects.clone(), authorizer: d.authorizer.clone(), gates: d.gates.clone() }
    }

    fn get(&self, resource: &str, namespace: &str, name: &str) -> Result<Value, Status> {
        // Pods and nodes change with every heartbeat, so shared decoded trees would not pay off.
        let found = self.objects.get("", resource, namespace, name).and_then(|b| kelson_meta::from_json(&b).ok());
        found.ok_or_else(|| Status::not_found(&GroupResource::new("", resource), name))
    }

    fn pod(&self, node: &str, a: &Attributes<'_>) -> Checked {
        match (a.subresource, a.operation) {
            ("", Operation::Create) => self.new_pod(node, a),
            ("", Operation::Delete) => {
                let pod = self.get("pods", a.namespace, a.name)?;
                if text(&pod, &["spec", "nodeName"]) == node {
                    return Ok(());
                }
                Err(a.forbidden(&format!("node {node:?} can only delete pods with spec.nodeName set to itself")))
            }
            ("", op) => Err(a.forbidden(&format!(
                "unexpected operation {:?}, node {node:?} can only create and delete mirror pods",
                op.as_str()
            ))),
            ("status", Operation::Update) => pod_status(node, a),
            ("eviction", Operation::Create) => {
                let pod = self.get("pods", a.namespace, a.object_name())?;
                if text(&pod, &["spec", "nodeName"]) == node {
                    return Ok(());
                }
                Err(a.forbidden(&format!("node {node} can only evict pods with spec.nodeName set to itself")))
            }
            ("status" | "eviction", op) => Err(a.forbidden(&format!("unexpected operation {:?}", op.as_str()))),
            (other, _) => Err(
                a.forbidden(&format!("unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"))
            ),
        }
    }

    fn new_pod(&self, node: &str, a: &Attributes<'_>) -> Checked {
        let pod = a.new_object();
        let refuse = |why: String| Err(a.forbidden(&why));
        if at(pod, &["metadata", "annotations", MIRROR]).is_null() {
            return refuse(format!(
                "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
            ));
        }
        if text(pod, &["spec", "nodeName"]) != node {
            return refuse(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
        }
        let owner = match list(pod, &["metadata", "ownerReferences"]) {
            [] => return refuse(format!("node {node:?} can only create pods with an owner reference set to itself")),
            [owner] => owner,
            _ => {
                return refuse(format!(
                    "node {node:?} can only create pods with a single owner reference set to itself"
                ));
            }
        };
        let owner_is =
            text(owner, &["apiVersion"]) == "v1" && text(owner, &["kind"]) == "Node" && text(owner, &["name"]) == node;
        if !owner_is {
            return refuse(format!("node {node:?} can only create pods with an owner reference set to itself"));
        }
        if at(owner, &["controller"]) != true {
            return refuse(format!(
                "node {node:?} can only create pods with a controller owner reference set to itself"
            ));
        }
        if at(owner, &["blockOwnerDeletion"]) == true {
            return refuse(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
        }
        let stored = self.get("nodes", "", node)?;
        let (uid, stored) = (text(owner, &["uid"]), text(&stored, &["metadata", "uid"]));
        if uid != stored {
            return refuse(format!("node {node} UID mismatch: expected {uid} got {stored}"));
        }
        match references(pod) {
            Some(what) => refuse(format!("node {node:?} can not create pods that reference {what}")),
            None => Ok(()),
        }
    }

    fn token(&self, node: &str, a: &Attributes<'_>) -> Checked {
        if a.operation != Operation::Create || a.subresource != "token" {
            return Ok(());
        }
        let reference = at(a.new_object(), &["spec", "boundObjectRef"]);
        let (pod_name, uid) = (text(reference, &["name"]), text(reference, &["uid"]));
        let to_pod = text(reference, &["apiVersion"]) == "v1" && text(reference, &["kind"]) == "Pod";
        if !to_pod || pod_name.is_empty() {
            return Err(a.forbidden("node requested token not bound to a pod"));
        }
        if uid.is_empty() {
            return Err(a.forbidden("node requested token with a pod binding without a uid"));
        }
        let pod = self.get("pods", a.namespace, pod_name)?;
        if text(&pod, &["metadata", "uid"]) != uid {
            return Err(a.forbidden(&format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have \
                 been deleted and then recreated"
            )));
        }
        if text(&pod, &["spec", "nodeName"]) != node {
            return Err(a.forbidden("node requested token bound to a pod scheduled on a different node"));
        }
        if !self.gates.enabled("ServiceAccountNodeAudienceRestriction") {
            return Ok(());
        }
        let audience = match list(a.new_object(), &["spec", "audiences"]) {
            [] => "",
            [one] => one.as_str().unwrap_or(""),
            _ => return Err(a.forbidden("node may only request 0 or 1 audiences")),
        };
        if self.pod_uses_audience(a.namespace, &pod, audience) {
            return Ok(());
        }
        let verb = "request-serviceaccounts-token-audience";
        let ask = Request::resource(a.user, verb, "", audience, a.namespace, a.name);
        if self.authorizer.authorize(&Request { version: "v1", ..ask }).is_allow() {
            return Ok(());
        }
        Err(a.forbidden(&format!(
            "audience {audience:?} not found in pod spec volume, {} is not authorized to request tokens for this audience",
            a.user.name
        )))
    }

    /// Reports whether a projected volume, or a CSI driver that requests tokens, uses the audience.
    fn pod_uses_audience(&self, namespace: &str, pod: &Value, audience: &str) -> bool {
        let objects = self.objects.as_ref();
        let pod_name = text(pod, &["metadata", "name"]);
        list(pod, &["spec", "volumes"]).iter().any(|volume| {
            let projected = list(volume, &["projected", "sources"]).iter().any(|s| {
                let token = at(s, &["serviceAccountToken"]);
                !token.is_null() && text(token, &["audience"]) == audience
            });
            if projected {
                return true;
            }
            let of_claim = |claim: &str| {
                let claim = objects.tree("", "persistentvolumeclaims", namespace, claim)?;
                let volume = objects.tree("", "persistentvolumes", "", text(&claim, &["spec", "volumeName"]))?;
                Some(text(&volume, &["spec", "csi", "driver"]).to_owned())
            };
            let driver = if !at(volume, &["ephemeral"]).is_null() {
                of_claim(&format!("{pod_name}-{}", text(volume, &["name"])))
            } else if !at(volume, &["persistentVolumeClaim"]).is_null() {
                of_claim(text(volume, &["persistentVolumeClaim", "claimName"]))
            } else {
                Some(text(volume, &["csi", "driver"]).to_owned())
            };
            driver.filter(|d| !d.is_empty()).is_some_and(|driver| {
                objects.tree("storage.k8s.io", "csidrivers", "", &driver).is_some_and(|d| {
                    list(&d, &["spec", "tokenRequests"]).iter().any(|t| text(t, &["audience"]) == audience)
                })
            })
        })
    }
}

/// Returns the kind of object that a mirror pod refers to; it may refer to none.
fn references(pod: &Value) -> Option<&'static str> {
    if !text(pod, &["spec", "serviceAccountName"]).is_empty() {
        return Some("serviceaccounts");
    }
    if references_secret(pod) {
        return Some("secrets");
    }
    let spec = at(pod, &["spec"]);
    let config_map = containers(spec).any(|(_, _, c)| {
        list(c, &["env"]).iter().any(|e| !at(e, &["valueFrom", "configMapKeyRef"]).is_null())
            || list(c, &["envFrom"]).iter().any(|e| !at(e, &["configMapRef"]).is_null())
    });
    let volumes = list(spec, &["volumes"]);
    let has = |field: &str| volumes.iter().any(|v| !at(v, &[field]).is_null());
    let projects = |field: &str| {
        volumes.iter().flat_map(|v| list(v, &["projected", "sources"])).any(|s| !at(s, &[field]).is_null())
    };
    if config_map || has("configMap") || projects("configMap") {
        return Some("configmaps");
    }
    if projects("serviceAccountToken") {
        return Some("serviceaccounts (via projected volumes)");
    }
    if projects("clusterTrustBundle") {
        return Some("clustertrustbundles");
    }
    if projects("podCertificate") {
        return Some("podcertificates");
    }
    if has("persistentVolumeClaim") || has("ephemeral") {
        return Some("persistentvolumeclaims");
    }
    (!list(spec, &["resourceClaims"]).is_empty()).then_some("resourceclaims")
}

fn pod_status(node: &str, a: &Attributes<'_>) -> Checked {
    let (old, new) = (a.stored(), a.new_object());
    if text(old, &["spec", "nodeName"]) != node {
        return Err(a.forbidden(&format!(
            "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
        )));
    }
    let unchanged = |path: &[&str]| same(at(old, path), at(new, path));
    if !unchanged(&["metadata", "labels"]) {
        return Err(a.forbidden(&format!("node {node:?} cannot update labels through pod status")));
    }
    if !unchanged(&["status", "resourceClaimStatuses"]) {
        return Err(a.forbidden(&format!("node {node:?} cannot update resource claim statues")));
    }
    if !unchanged(&["status", "extendedResourceClaimStatus"]) {
        return Err(a.forbidden(&format!("node {node:?} cannot update extended resource claim status")));
    }
    Ok(())
}

/// The pod address ranges of a node, which only the node IPAM controller assigns.
const POD_RANGES: [&[&str]; 2] = [&["spec", "podCIDR"], &["spec", "podCIDRs"]];

fn node_object(node: &str, a: &Attributes<'_>) -> Checked {
    let asked = a.object_name();
    if asked != node {
        return Err(a.forbidden(&format!("node {node:?} is not allowed to modify node {asked:?}")));
    }
    let (old, new) = (a.stored(), a.new_object());
    match a.operation {
        Operation::Create => {
            // Stricter than upstream: the pod network routes by these ranges, so a node must not set them.
            if POD_RANGES.iter().any(|path| !same(at(new, path), &Value::Null)) {
                return Err(a.forbidden(&format!("node {node:?} is not allowed to set its pod CIDRs")));
            }
            if !at(new, &["spec", "configSource"]).is_null() {
                let why = format!("node {node:?} is not allowed to create pods with a non-nil configSource");
                return Err(a.forbidden(&why));
            }
            let labels = forbidden_labels(strings(new, &["metadata", "labels"]).map(|(k, _)| k));
            if !labels.is_empty() {
                let labels = labels.join(", ");
                let why = format!("node {node:?} is not allowed to set the following labels: {labels}");
                return Err(a.forbidden(&why));
            }
        }
        Operation::Update => {
            let source = ["spec", "configSource"];
            if !at(new, &source).is_null() && at(new, &source) != at(old, &source) {
                let why = format!("node {node:?} is not allowed to update configSource to a new non-nil configSource");
                return Err(a.forbidden(&why));
            }
            if POD_RANGES.iter().any(|path| !same(at(new, path), at(old, path))) {
                return Err(a.forbidden(&format!("node {node:?} is not allowed to modify its pod CIDRs")));
            }
            if !same(at(new, &["spec", "taints"]), at(old, &["spec", "taints"])) {
                return Err(a.forbidden(&format!("node {node:?} is not allowed to modify taints")));
            }
            let owners = ["metadata", "ownerReferences"];
            if !same(at(new, &owners), at(old, &owners)) {
                return Err(a.forbidden(&format!("node {node:?} is not allowed to modify ownerReferences")));
            }
            let labels = forbidden_labels(changed_labels(new, old).into_iter());
            if !labels.is_empty() {
                return Err(a.forbidden(&format!("is not allowed to modify labels: {}", labels.join(", "))));
            }
        }
        Operation::Delete | Operation::Connect => {}
    }
    Ok(())
}

/// Checks that a claim's status update only changes size and conditions.
fn claim_status(node: &str, a: &Attributes<'_>) -> Checked {
    if a.subresource != "status" {
        return Err(a.forbidden("may only update PVC status"));
    }
    if a.operation != Operation::Update {
        return Err(a.forbidden(&format!("unexpected operation {:?}", a.operation.as_str())));
    }
    let rest = |claim: &Value| {
        let mut claim = claim.clone();
        for field in ["resourceVersion", "managedFields"] {
            claim.get_mut("metadata").and_then(Value::as_object_mut).map(|m| m.remove(field));
        }
        for field in ["capacity", "conditions", "allocatedResources", "allocatedResourceStatuses"] {
            claim.get_mut("status").and_then(Value::as_object_mut).map(|m| m.remove(field));
        }
        claim
    };
    if rest(a.stored()) == rest(a.new_object()) {
        return Ok(());
    }
    Err(a.forbidden(&format!(
        "node {node:?} is not allowed to update fields other than status.quantity and status.conditions"
    )))
}

fn own_name(node: &str, a: &Attributes<'_>, what: &str) -> Checked {
    if a.object_name() == node {
        return Ok(());
    }
    Err(a.forbidden(&format!("can only access {what} with the same name as the requesting node")))
}

fn resource_slice(node: &str, a: &Attributes<'_>) -> Checked {
    let (slice, verb) = match a.operation {
        Operation::Create => (a.new_object(), "create"),
        Operation::Delete => (a.stored(), "delete"),
        Operation::Update | Operation::Connect => return Ok(()),
    };
    if text(slice, &["spec", "nodeName"]) == node {
        return Ok(());
    }
    Err(a.forbidden(&format!("can only {verb} ResourceSlice with the same NodeName as the requesting node")))
}

fn signing_request(node: &str, a: &Attributes<'_>) -> Checked {
    let signer = text(a.new_object(), &["spec", "signerName"]);
    if a.operation != Operation::Create || !matches!(signer, KUBELET_SERVING | KUBE_APISERVER_CLIENT_KUBELET) {
        return Ok(());
    }
    let request = request_of(a.new_object()).map_err(|e| a.forbidden(&format!("unable to parse csr: {e}")))?;
    if request.common_name == format!("system:node:{node}") {
        return Ok(());
    }
    Err(a.forbidden(&format!("can only create a node CSR with CN=system:node:{node}")))
}

impl Plugin for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::WRITE.or(Operations::DELETE).contains(op)
    }
    fn admit(&self, a: &mut Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        let a = &*a;
        let Some(node) = node_name(a.user) else { return Ok(()) };
        if node.is_empty() {
            return Err(a.forbidden(&format!("could not determine node from user {:?}", a.user.name)));
        }
        match (a.resource.group.as_str(), a.resource.resource.as_str()) {
            ("", "pods") => self.pod(node, a),
            ("", "nodes") => node_object(node, a),
            ("", "persistentvolumeclaims") => claim_status(node, a),
            ("", "serviceaccounts") => self.token(node, a),
            ("coordination.k8s.io", "leases") if a.namespace != "kube-node-lease" => {
                Err(a.forbidden("can only access leases in the \"kube-node-lease\" system namespace"))
            }
            ("coordination.k8s.io", "leases") => own_name(node, a, "node lease"),
            ("storage.k8s.io", "csinodes") => own_name(node, a, "CSINode"),
            ("resource.k8s.io", "resourceslices") => resource_slice(node, a),
            ("certificates.k8s.io", "certificatesigningrequests") => {
                let anybodys = self.gates.enabled("AllowInsecureKubeletCertificateSigningRequests");
                if anybodys { Ok(()) } else { signing_request(node, a) }
            }
            ("certificates.k8s.io", "podcertificaterequests") if self.gates.enabled("PodCertificateRequest") => {
                pod_certificates::check(self.objects.as_ref(), node, a)
            }
            ("certificates.k8s.io", "podcertificaterequests") => {
                Err(a.forbidden("PodCertificateRequest feature gate is disabled"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "node_restriction_tests.rs"]
mod tests;
