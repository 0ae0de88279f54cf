//! Where the reference keeps a record, which is what it authenticates with the encrypted value: `/registry/` and the path
//! its storage has for the resource (apiserver `DefaultStorageFactory`, kube-apiserver `SpecialDefaultResourcePrefixes`).

use kelson_store::Key;

/// Built-in groups, whose resources are kept under their plural name alone.
const BUILT_IN: &[&str] = &[
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

/// The path of a record.
pub(crate) fn of(key: &Key) -> String {
    let (group, plural) = (key.resource.group(), key.resource.plural());
    let kept = match (group, plural) {
        ("", "endpoints") => "services/endpoints".to_owned(),
        ("", "nodes") => "minions".to_owned(),
        ("", "replicationcontrollers") => "controllers".to_owned(),
        ("", "services") => "services/specs".to_owned(),
        ("networking.k8s.io", "ingresses") => "ingress".to_owned(),
        (group, plural) if BUILT_IN.contains(&group) => plural.to_owned(),
        (group, plural) => format!("{group}/{plural}"),
    };
    if key.namespace.is_empty() {
        format!("/registry/{kept}/{}", key.name)
    } else {
        format!("/registry/{kept}/{}/{}", key.namespace, key.name)
    }
}

#[cfg(test)]
mod tests {
    use kelson_store::Resource;

    use super::*;

    #[test]
    fn as_the_reference_keeps_them() {
        for (resource, namespace, want) in [
            ("secrets", "ns", "/registry/secrets/ns/n"),
            ("apps/deployments", "ns", "/registry/deployments/ns/n"),
            ("services", "ns", "/registry/services/specs/ns/n"),
            ("nodes", "", "/registry/minions/n"),
            ("networking.k8s.io/ingresses", "ns", "/registry/ingress/ns/n"),
            (
                "apiextensions.k8s.io/customresourcedefinitions",
                "",
                "/registry/apiextensions.k8s.io/customresourcedefinitions/n",
            ),
            ("example.com/things", "ns", "/registry/example.com/things/ns/n"),
        ] {
            assert_eq!(of(&Key::new(Resource::parse(resource), namespace, "n")), want);
        }
    }
}
