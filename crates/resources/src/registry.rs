//! The one table of kinds.
use std::collections::HashMap;
use std::sync::LazyLock;

use crate::strategy::Strategy;
use crate::{apps, autoscaling, batch, certificates, core, generic, networking, pod, policy, rbac, storage};

static KINDS: &[&dyn Strategy] = &[
    &pod::Pods,
    &core::ConfigMaps,
    &core::Events { strict: false },
    &core::Events { strict: true },
    &core::LeaseCandidates,
    &core::Leases,
    &core::Namespaces,
    &core::Nodes,
    &core::Secrets,
    &core::Services,
    &core::ServiceAccounts,
    &core::EndpointSlices,
    &core::Endpoints,
    &core::LimitRanges,
    &core::PersistentVolumeClaims,
    &core::PersistentVolumes,
    &core::PodTemplates,
    &core::ResourceQuotas,
    &rbac::Bindings { namespaced: false },
    &rbac::Bindings { namespaced: true },
    &rbac::Roles { namespaced: false },
    &rbac::Roles { namespaced: true },
    &apps::ControllerRevisions,
    &autoscaling::HorizontalPodAutoscalers,
    &certificates::CertificateSigningRequests,
    &certificates::ClusterTrustBundles,
    &certificates::PodCertificateRequests,
    &networking::IngressClasses,
    &networking::Ingresses,
    &networking::IpAddresses,
    &networking::NetworkPolicies,
    &networking::ServiceCidrs,
    &policy::PodDisruptionBudgets,
    &policy::PriorityClasses,
    &policy::RuntimeClasses,
    &storage::CsiDrivers,
    &storage::CsiNodes,
    &storage::CsiStorageCapacities,
    &storage::StorageClasses,
    &storage::VolumeAttachments,
    &storage::VolumeAttributesClasses,
    &apps::DaemonSets,
    &apps::Deployments,
    &apps::ReplicaSets,
    &apps::ReplicationControllers,
    &apps::StatefulSets,
    &batch::CronJobs,
    &batch::Jobs,
];

type Table = HashMap<(&'static str, &'static str), &'static dyn Strategy>;

static TABLE: LazyLock<Table> =
    LazyLock::new(|| all().map(|s| ((s.options().group, s.options().resource), s)).collect());

/// The strategy of a built-in resource; `group` is empty for the legacy one.
pub fn strategy(group: &str, resource: &str) -> Option<&'static dyn Strategy> {
    // The table's keys outlive any caller's, so shortening them for the lookup is sound.
    let table: &HashMap<(&str, &str), &'static dyn Strategy> = &TABLE;
    table.get(&(group, resource)).copied()
}

/// Every built-in resource.
pub fn all() -> impl Iterator<Item = &'static dyn Strategy> {
    KINDS.iter().copied().chain(generic::KINDS.iter().map(|g| g as &dyn Strategy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    /// Where the published documents are.
    pub(crate) fn shared() -> Option<std::path::PathBuf> {
        let base = std::env::var_os("KELSON_SHARED").map_or_else(
            || std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
            std::path::PathBuf::from,
        );
        let dir = base.join("reference");
        if dir.is_dir() {
            Some(dir)
        } else {
            println!("SKIPPED: no ../shared");
            None
        }
    }

    #[test]
    fn no_kind_twice() {
        let mut seen = BTreeSet::new();
        for s in all() {
            let o = s.options();
            assert!(seen.insert((o.group, o.resource)), "{}/{}", o.group, o.resource);
            assert!(o.versions.contains(&o.storage.1), "{}", o.resource);
        }
    }

    #[test]
    fn covers_discovery() {
        let Some(dir) = shared() else { return };
        let text = std::fs::read_to_string(dir.join("discovery/aggregated_v2.json")).unwrap();
        let doc: Value = serde_json::from_str(&text).unwrap();
        for g in doc["items"].as_array().unwrap() {
            let group = g["metadata"]["name"].as_str().unwrap_or("");
            for v in g["versions"].as_array().unwrap() {
                for r in v["resources"].as_array().unwrap() {
                    let name = r["resource"].as_str().unwrap();
                    let s = strategy(group, name).unwrap_or_else(|| panic!("{group}/{name} is missing"));
                    let o = s.options();
                    assert_eq!(o.kind, r["responseKind"]["kind"], "{name}");
                    assert_eq!(o.namespaced, r["scope"] == "Namespaced", "{name}");
                    assert!(o.versions.contains(&v["version"].as_str().unwrap()), "{name}");
                    let short: Vec<&Value> = r["shortNames"].as_array().into_iter().flatten().collect();
                    assert_eq!(short, o.short_names, "{name}");
                    let categories: Vec<&Value> = r["categories"].as_array().into_iter().flatten().collect();
                    assert_eq!(categories, o.categories, "{name}");
                    let subs: Vec<&str> = r["subresources"]
                        .as_array()
                        .into_iter()
                        .flatten()
                        .filter_map(|s| s["subresource"].as_str())
                        .collect();
                    assert_eq!(subs.contains(&"status"), o.has_status(), "{name}");
                    assert_eq!(subs.contains(&"scale"), o.scale.is_some(), "{name}");
                }
            }
        }
    }
}
