//! Where the reference keeps the objects of a resource in etcd: the path under the prefix (`DefaultStorageFactory` of the
//! generic API server, `SpecialDefaultResourcePrefixes` of kube-apiserver). Encryption at rest authenticates with it too.

use std::borrow::Cow;

/// The prefix of all keys, unless `--etcd-prefix` names another one.
pub const PREFIX: &str = "/registry";

/// Built-in groups whose resources are kept under their plural name alone.
const BY_PLURAL: &[&str] = &[
    "",
    "admissionregistration.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
    "storagemigration.k8s.io",
];

/// The path of a resource between the prefix and the name (or namespace and name) of an object, without slashes around it.
/// Those of all groups that are not named here, custom resources among them, have their group in it.
pub fn path(group: &str, plural: &str) -> Cow<'static, str> {
    Cow::Borrowed(match (group, plural) {
        // No resource that is served: the leases of API servers, by address. It is the name under which they may be encrypted.
        ("", "apiserveripinfo") => "masterleases",
        ("", "endpoints") => "services/endpoints",
        ("", "nodes") => "minions",
        ("", "replicationcontrollers") => "controllers",
        // No resource that is served either: which node ports are in use.
        ("", "servicenodeportallocations") => "ranges",
        ("", "services") => "services/specs",
        ("networking.k8s.io", "ingresses") => "ingress",
        (group, plural) if BY_PLURAL.contains(&group) => return Cow::Owned(plural.to_owned()),
        (group, plural) => return Cow::Owned(format!("{group}/{plural}")),
    })
}
