//! The paths of records in upstream's store, which are authenticated with the encrypted value.

use kelson_schema::storage;
use kelson_store::Key;

/// Returns the path of a record below a prefix such as `/registry`.
pub(crate) fn of(prefix: &str, key: &Key) -> String {
    let kept = storage::path(key.resource.group(), key.resource.plural());
    if key.namespace.is_empty() {
        format!("{prefix}/{kept}/{}", key.name)
    } else {
        format!("{prefix}/{kept}/{}/{}", key.namespace, key.name)
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
            assert_eq!(of(storage::PREFIX, &Key::new(Resource::parse(resource), namespace, "n")), want);
        }
        assert_eq!(of("/a/b", &Key::new(Resource::parse("secrets"), "ns", "n")), "/a/b/secrets/ns/n");
    }
}
