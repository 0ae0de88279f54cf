//! Keys: from etcd's to the store's and back. Pure.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use kelson_resources::Strategy;
use kelson_schema::{Schema, TypeId, storage};
use kelson_store::{FieldNames, Key, Resource};

/// A built-in resource that is stored.
pub(crate) struct Row {
    pub resource: Resource,
    pub namespaced: bool,
    pub strategy: &'static dyn Strategy,
    /// Selectable fields, as the store keeps them.
    pub fields: FieldNames,
    /// The type of the stored form.
    pub ty: Option<TypeId>,
}

/// Rows by path, and paths by resource.
struct Rows {
    by_path: HashMap<String, &'static Row>,
    by_resource: HashMap<Resource, &'static Row>,
}

static ROWS: LazyLock<Rows> = LazyLock::new(|| {
    let mut rows = Rows { by_path: HashMap::new(), by_resource: HashMap::new() };
    for strategy in kelson_resources::all() {
        let o = strategy.options();
        // Of a resource that two groups serve, the rules are those of the group that it is stored in.
        if !o.stored || o.storage.group != *o.group {
            continue;
        }
        let row = Box::leak(Box::new(Row {
            resource: Resource::new(&o.group, &o.resource),
            namespaced: o.namespaced,
            strategy,
            fields: FieldNames::new(o.fields.iter().map(|f| &**f)),
            ty: Schema::builtin().by_gvk(&o.storage.group, &o.storage.version, &o.storage.kind),
        }));
        rows.by_path.insert(storage::path(&o.group, &o.resource).into_owned(), row);
        rows.by_resource.insert(row.resource, row);
    }
    rows
});

/// The row of a built-in resource.
pub(crate) fn row(resource: Resource) -> Option<&'static Row> {
    ROWS.by_resource.get(&resource).copied()
}

/// The keys under one prefix.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// The prefix of all keys, with a slash at both ends.
    prefix: Arc<str>,
}

impl Keys {
    /// Under `--etcd-prefix`, which may or may not begin and end with a slash.
    pub fn under(prefix: &str) -> Self {
        let inner = prefix.trim_matches('/');
        Self { prefix: if inner.is_empty() { "/".into() } else { format!("/{inner}/").into() } }
    }

    /// The first key, and the first one behind the last.
    pub fn range(&self) -> (Vec<u8>, Vec<u8>) {
        let mut end = self.prefix.as_bytes().to_vec();
        // The prefix ends with a slash.
        end.pop();
        end.push(b'/' + 1);
        (self.prefix.as_bytes().to_vec(), end)
    }

    /// Returns the prefix of the keys of all records of a resource.
    pub fn below(&self, resource: Resource) -> String {
        format!("{}{}/", self.prefix, storage::path(resource.group(), resource.plural()))
    }

    /// Returns the key of a record.
    pub fn of(&self, key: &Key) -> String {
        let (prefix, path) = (&self.prefix, storage::path(key.resource.group(), key.resource.plural()));
        match &*key.namespace {
            "" => format!("{prefix}{path}/{}", key.name),
            namespace => format!("{prefix}{path}/{namespace}/{}", key.name),
        }
    }

    /// A key beside those of objects.
    pub fn beside(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Returns the record of a key. Returns `None` for keys that are not objects of the API: allocations, leases of API
    /// servers, and other users of the same etcd.
    pub fn parse(&self, key: &[u8]) -> Option<Key> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&*self.prefix)?;
        let (first, behind) = rest.split_once('/')?;
        let known = ROWS.by_path.get(first).map(|row| (*row, behind));
        let known = known.or_else(|| {
            let (second, behind) = behind.split_once('/')?;
            Some((*ROWS.by_path.get(&format!("{first}/{second}"))?, behind))
        });
        if let Some((row, place)) = known {
            let (namespace, name) = match row.namespaced {
                true => place.split_once('/')?,
                false => ("", place),
            };
            return made(row.resource, namespace, name);
        }
        // What is left may be custom: their groups are domains.
        let (plural, place) = behind.split_once('/')?;
        if !first.contains('.') {
            return None;
        }
        let (namespace, name) = place.split_once('/').unwrap_or(("", place));
        made(Resource::new(first, plural), namespace, name)
    }
}

fn made(resource: Resource, namespace: &str, name: &str) -> Option<Key> {
    (!name.is_empty() && !name.contains('/')).then(|| Key::new(resource, namespace, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paths at which the reference of version 1.36 was seen to keep objects, by resource; namespaced ones have a `*`.
    const SEEN: &[(&str, &str)] = &[
        ("configmaps", "configmaps/*"),
        ("endpoints", "services/endpoints/*"),
        ("events", "events/*"),
        ("limitranges", "limitranges/*"),
        ("namespaces", "namespaces"),
        ("nodes", "minions"),
        ("persistentvolumeclaims", "persistentvolumeclaims/*"),
        ("persistentvolumes", "persistentvolumes"),
        ("pods", "pods/*"),
        ("podtemplates", "podtemplates/*"),
        ("replicationcontrollers", "controllers/*"),
        ("resourcequotas", "resourcequotas/*"),
        ("secrets", "secrets/*"),
        ("serviceaccounts", "serviceaccounts/*"),
        ("services", "services/specs/*"),
        ("admissionregistration.k8s.io/mutatingadmissionpolicies", "mutatingadmissionpolicies"),
        ("admissionregistration.k8s.io/mutatingadmissionpolicybindings", "mutatingadmissionpolicybindings"),
        ("admissionregistration.k8s.io/mutatingwebhookconfigurations", "mutatingwebhookconfigurations"),
        ("admissionregistration.k8s.io/validatingadmissionpolicies", "validatingadmissionpolicies"),
        ("admissionregistration.k8s.io/validatingadmissionpolicybindings", "validatingadmissionpolicybindings"),
        ("admissionregistration.k8s.io/validatingwebhookconfigurations", "validatingwebhookconfigurations"),
        ("apiextensions.k8s.io/customresourcedefinitions", "apiextensions.k8s.io/customresourcedefinitions"),
        ("apiregistration.k8s.io/apiservices", "apiregistration.k8s.io/apiservices"),
        ("apps/controllerrevisions", "controllerrevisions/*"),
        ("apps/daemonsets", "daemonsets/*"),
        ("apps/deployments", "deployments/*"),
        ("apps/replicasets", "replicasets/*"),
        ("apps/statefulsets", "statefulsets/*"),
        ("autoscaling/horizontalpodautoscalers", "horizontalpodautoscalers/*"),
        ("batch/cronjobs", "cronjobs/*"),
        ("batch/jobs", "jobs/*"),
        ("certificates.k8s.io/certificatesigningrequests", "certificatesigningrequests"),
        ("certificates.k8s.io/clustertrustbundles", "clustertrustbundles"),
        ("certificates.k8s.io/podcertificaterequests", "podcertificaterequests/*"),
        ("coordination.k8s.io/leases", "leases/*"),
        ("coordination.k8s.io/leasecandidates", "leasecandidates/*"),
        ("discovery.k8s.io/endpointslices", "endpointslices/*"),
        ("flowcontrol.apiserver.k8s.io/flowschemas", "flowschemas"),
        ("flowcontrol.apiserver.k8s.io/prioritylevelconfigurations", "prioritylevelconfigurations"),
        ("internal.apiserver.k8s.io/storageversions", "storageversions"),
        ("networking.k8s.io/ingressclasses", "ingressclasses"),
        ("networking.k8s.io/ingresses", "ingress/*"),
        ("networking.k8s.io/ipaddresses", "ipaddresses"),
        ("networking.k8s.io/networkpolicies", "networkpolicies/*"),
        ("networking.k8s.io/servicecidrs", "servicecidrs"),
        ("node.k8s.io/runtimeclasses", "runtimeclasses"),
        ("policy/poddisruptionbudgets", "poddisruptionbudgets/*"),
        ("rbac.authorization.k8s.io/clusterrolebindings", "clusterrolebindings"),
        ("rbac.authorization.k8s.io/clusterroles", "clusterroles"),
        ("rbac.authorization.k8s.io/rolebindings", "rolebindings/*"),
        ("rbac.authorization.k8s.io/roles", "roles/*"),
        ("resource.k8s.io/deviceclasses", "deviceclasses"),
        ("resource.k8s.io/devicetaintrules", "devicetaintrules"),
        ("resource.k8s.io/resourceclaims", "resourceclaims/*"),
        ("resource.k8s.io/resourceclaimtemplates", "resourceclaimtemplates/*"),
        ("resource.k8s.io/resourcepoolstatusrequests", "resourcepoolstatusrequests"),
        ("resource.k8s.io/resourceslices", "resourceslices"),
        ("scheduling.k8s.io/podgroups", "podgroups/*"),
        ("scheduling.k8s.io/priorityclasses", "priorityclasses"),
        ("scheduling.k8s.io/workloads", "workloads/*"),
        ("storage.k8s.io/csidrivers", "csidrivers"),
        ("storage.k8s.io/csinodes", "csinodes"),
        ("storage.k8s.io/csistoragecapacities", "csistoragecapacities/*"),
        ("storage.k8s.io/storageclasses", "storageclasses"),
        ("storage.k8s.io/volumeattachments", "volumeattachments"),
        ("storage.k8s.io/volumeattributesclasses", "volumeattributesclasses"),
        ("storagemigration.k8s.io/storageversionmigrations", "storageversionmigrations"),
    ];

    #[test]
    fn every_stored_resource_is_kept_where_the_reference_keeps_it() {
        let seen: HashMap<&str, &str> = SEEN.iter().copied().collect();
        let keys = Keys::under("/registry");
        for row in ROWS.by_resource.values() {
            let Some(path) = seen.get(row.resource.as_str()) else {
                panic!("{}: the reference's path is not in the table", row.resource);
            };
            let namespace = if row.namespaced { "ns" } else { "" };
            let key = Key::new(row.resource, namespace, "a.b-c:d");
            let want = format!("/registry/{}/a.b-c:d", path.replace('*', "ns"));
            assert_eq!(path.ends_with('*'), row.namespaced, "{}", row.resource);
            assert_eq!(keys.of(&key), want);
            assert_eq!(keys.parse(want.as_bytes()), Some(key));
            assert!(row.ty.is_some(), "{}: its stored form is no type of the table", row.resource);
        }
        assert!(ROWS.by_path.len() > 55, "{}", ROWS.by_path.len());
    }

    #[test]
    fn custom_resources_have_their_group_in_the_key() {
        let keys = Keys::under("registry/");
        for (key, resource, namespace, name) in [
            ("/registry/example.com/widgets/default/w1", "example.com/widgets", "default", "w1"),
            ("/registry/example.com/gadgets/g1", "example.com/gadgets", "", "g1"),
        ] {
            let parsed = keys.parse(key.as_bytes()).unwrap();
            assert_eq!(parsed, Key::new(Resource::parse(resource), namespace, name));
            assert_eq!(keys.of(&parsed), key);
        }
    }

    #[test]
    fn other_values_than_objects_have_no_key() {
        let keys = Keys::under("/registry");
        for key in [
            "compact_rev_key",
            "/registry/masterleases/192.0.2.2",
            "/registry/peerserverleases/a",
            "/registry/ranges/servicenodeports",
            "/registry/kelson/progress",
            "/registry/pods/ns",
            "/registry/pods/ns/",
            "/registry/pods/ns/a/b",
            "/registry/minions/a/b",
            "/registry/example.com/widgets",
            "/registry/",
            "/registryx/pods/ns/a",
            "/other/pods/ns/a",
        ] {
            assert_eq!(keys.parse(key.as_bytes()), None, "{key}");
        }
        assert_eq!(keys.parse(b"/registry/pods/ns/\xff"), None);
        assert_eq!(keys.range(), (b"/registry/".to_vec(), b"/registry0".to_vec()));
    }
}
