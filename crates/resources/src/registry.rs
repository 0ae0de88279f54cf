//! The table of all built-in kinds.
use std::collections::HashMap;
use std::sync::LazyLock;

use crate::strategy::Strategy;
use crate::{
    api_services, apps, autoscaling, batch, certificates, core, definitions, generic, networking, pod, policy, rbac,
    storage,
};

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
    &api_services::ApiServices,
    &definitions::CustomResourceDefinitions,
];

type Table = HashMap<(&'static str, &'static str), &'static dyn Strategy>;

static TABLE: LazyLock<Table> =
    LazyLock::new(|| all().map(|s| ((&*s.options().group, &*s.options().resource), s)).collect());

/// Returns the strategy of a built-in resource; `group` is empty for the legacy group.
pub fn strategy(group: &str, resource: &str) -> Option<&'static dyn Strategy> {
    // The table's keys outlive any caller's, so shortening their lifetime for the lookup is safe.
    let table: &HashMap<(&str, &str), &'static dyn Strategy> = &TABLE;
    table.get(&(group, resource)).copied()
}

/// Returns the strategy of every built-in resource.
pub fn all() -> impl Iterator<Item = &'static dyn Strategy> {
    KINDS.iter().copied().chain(generic::KINDS.iter().map(|g| g as &dyn Strategy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use serde_json::Value;
    use std::collections::BTreeSet;

    #[test]
    fn no_kind_twice_and_each_is_in_the_table() {
        let mut seen = BTreeSet::new();
        for s in all() {
            let o = s.options();
            assert!(seen.insert((&o.group, &o.resource)), "{}/{}", o.group, o.resource);
            assert!(!o.kind().is_empty(), "{}/{} is not in the schema's table", o.group, o.resource);
        }
        for r in kelson_schema::resource::resources() {
            let o =
                strategy(r.group, r.plural).unwrap_or_else(|| panic!("{}/{} is missing", r.group, r.plural)).options();
            assert_eq!((o.kind(), o.namespaced), (r.kind, r.namespaced), "{}", r.plural);
            assert_eq!(r.subresource("status").is_some(), o.has_status(), "{}", r.plural);
            assert_eq!(r.subresource("scale").is_some(), o.scale.is_some(), "{}", r.plural);
        }
    }

    /// A kind that is created at run time implements the same trait.
    #[test]
    fn a_kind_made_at_run_time() {
        struct OptionsOnly(Options);
        impl Strategy for OptionsOnly {
            fn options(&self) -> &Options {
                &self.0
            }
            fn default(&self, version: &str, _: &mut Value) -> Result<(), kelson_meta::Status> {
                Err(kelson_meta::Status::bad_request(format!("no defaults in {version}")))
            }
        }
        let (group, fields) = (String::from("example.com"), vec![String::from("spec.color").into()]);
        let stored_form = kelson_meta::Gvk::new(&*group, "v7", "Shirt");
        let options = Options { fields: fields.into(), ..Options::of_kind(group, "shirts", stored_form, true) };
        let made: std::sync::Arc<dyn Strategy> = std::sync::Arc::new(OptionsOnly(options));
        let obj = serde_json::json!({"spec": {"color": "red"}});
        assert_eq!(made.field_value(&obj, &made.options().fields[0]), "red");
        assert_eq!(made.default("v7", &mut obj.clone()).unwrap_err().message, "no defaults in v7");
    }
}
