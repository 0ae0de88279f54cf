//! The table of controllers by upstream's names (`cmd/kube-controller-manager/names`). A new controller is a module and
//! a row here. Its permissions are its role in `kelson-auth`'s policy, and a test checks that the role exists.
//! Upstream's controllers that Kelson does not have are listed with the reason.
use std::sync::Arc;

use crate::shared::context::{Context, ControllerDescriptor, Identity};

/// The three controllers of certificate signing requests share one service account, as upstream.
const CERTIFICATES: Identity = account("certificate-controller");
/// The controllers of nodes share one service account, as upstream.
const NODES: Identity = account("node-controller");

const fn account(name: &'static str) -> Identity {
    Identity::ServiceAccount(name)
}

const fn row(name: &'static str, identity: Identity, start: fn(&Arc<Context>)) -> ControllerDescriptor {
    ControllerDescriptor { name, identity, on_by_default: true, start }
}

impl ControllerDescriptor {
    const fn off_by_default(mut self) -> Self {
        self.on_by_default = false;
        self
    }
}

/// All controllers, sorted by name.
pub const CONTROLLERS: &[ControllerDescriptor] = &[
    row("bootstrap-signer-controller", account("bootstrap-signer"), crate::bootstrap::start_signer).off_by_default(),
    row("certificatesigningrequest-approving-controller", CERTIFICATES, crate::certificates::approve::start),
    row("certificatesigningrequest-cleaner-controller", CERTIFICATES, crate::certificates::clean::start),
    row("certificatesigningrequest-signing-controller", CERTIFICATES, crate::certificates::sign::start),
    row(
        "clusterrole-aggregation-controller",
        account("clusterrole-aggregation-controller"),
        crate::cluster_roles::start,
    ),
    row("cronjob-controller", account("cronjob-controller"), crate::cronjob::start),
    row("daemonset-controller", account("daemon-set-controller"), crate::daemonset::start),
    row("deployment-controller", account("deployment-controller"), crate::deployment::start),
    row("device-taint-eviction-controller", account("device-taint-eviction-controller"), crate::devices::taints::start),
    row("disruption-controller", account("disruption-controller"), crate::disruption::start),
    row("endpoints-controller", account("endpoint-controller"), crate::endpoints::start),
    row("endpointslice-controller", account("endpointslice-controller"), crate::endpointslice::start),
    row(
        "endpointslice-mirroring-controller",
        account("endpointslicemirroring-controller"),
        crate::endpointslice::mirroring::start,
    ),
    row("ephemeral-volume-controller", account("ephemeral-volume-controller"), crate::volume::ephemeral::start),
    row("garbage-collector-controller", account("generic-garbage-collector"), crate::garbage::start),
    row("horizontal-pod-autoscaler-controller", account("horizontal-pod-autoscaler"), crate::podautoscaler::start),
    row("job-controller", account("job-controller"), crate::job::start),
    row(
        "legacy-serviceaccount-token-cleaner-controller",
        account("legacy-service-account-token-cleaner"),
        crate::legacy_tokens::start,
    ),
    // Only `kelson server` enables it by default, since it adds a default storage class.
    row("local-path-provisioner", account("local-path-provisioner"), crate::volume::local_path::start).off_by_default(),
    // Only Kelson's own server has files of manifests.
    row("manifests-controller", account("manifests-controller"), crate::manifests::start).off_by_default(),
    row("namespace-controller", account("namespace-controller"), crate::namespace::start),
    row("node-ipam-controller", NODES, crate::nodeipam::start),
    row("node-lifecycle-controller", NODES, crate::nodelifecycle::start),
    row("persistentvolume-attach-detach-controller", account("attachdetach-controller"), crate::volume::attach::start),
    row("persistentvolume-binder-controller", account("persistent-volume-binder"), crate::volume::binder::start),
    row("persistentvolume-expander-controller", account("expand-controller"), crate::volume::expand::start),
    row(
        "persistentvolume-protection-controller",
        account("pv-protection-controller"),
        crate::protection::start_volumes,
    ),
    row(
        "persistentvolumeclaim-protection-controller",
        account("pvc-protection-controller"),
        crate::protection::start_claims,
    ),
    row("pod-garbage-collector-controller", account("pod-garbage-collector"), crate::podgc::start),
    row("replicaset-controller", account("replicaset-controller"), crate::replicaset::start),
    row("replicationcontroller-controller", account("replication-controller"), crate::replicaset::start_replication),
    row("resourceclaim-controller", account("resource-claim-controller"), crate::devices::claims::start),
    row("resourcequota-controller", account("resourcequota-controller"), crate::resourcequota::start),
    row("root-ca-certificate-publisher-controller", account("root-ca-cert-publisher"), crate::root_ca::start),
    row("service-cidr-controller", account("service-cidrs-controller"), crate::service_cidrs::start),
    // Only `kelson server` enables it by default: elsewhere a cloud provider or an add-on is the load balancer.
    row("service-lb-controller", account("service-controller"), crate::servicelb::start).off_by_default(),
    row("serviceaccount-controller", account("service-account-controller"), crate::serviceaccount::start),
    // It creates the tokens with which the others authenticate, so it acts as the manager, as upstream.
    row("serviceaccount-token-controller", Identity::Manager, crate::tokens::start),
    row("statefulset-controller", account("statefulset-controller"), crate::statefulset::start),
    // It does nothing unless its feature gate is enabled, which is off by default as upstream.
    row(
        "storage-version-migrator-controller",
        account("storage-version-migrator-controller"),
        crate::storage_migration::start,
    ),
    row("taint-eviction-controller", NODES, crate::nodelifecycle::eviction::start),
    // Both bootstrap controllers are off by default: only clusters that nodes join with bootstrap tokens need them.
    row("token-cleaner-controller", account("token-cleaner"), crate::bootstrap::start_cleaner).off_by_default(),
    row("ttl-after-finished-controller", account("ttl-after-finished-controller"), crate::ttl_after_finished::start),
    row("ttl-controller", account("ttl-controller"), crate::node_ttl::start),
    row(
        "validatingadmissionpolicy-status-controller",
        account("validatingadmissionpolicy-status-controller"),
        crate::policy_types::start,
    ),
    row(
        "volumeattributesclass-protection-controller",
        account("volumeattributesclass-protection-controller"),
        crate::protection::start_classes,
    ),
];

/// Names of upstream's `--controllers` flag before 1.28, which are still accepted.
const OLD_NAMES: &[(&str, &str)] = &[
    ("attachdetach", "persistentvolume-attach-detach-controller"),
    ("bootstrapsigner", "bootstrap-signer-controller"),
    ("cloud-node-lifecycle", "cloud-node-lifecycle-controller"),
    ("clusterrole-aggregation", "clusterrole-aggregation-controller"),
    ("cronjob", "cronjob-controller"),
    ("csrapproving", "certificatesigningrequest-approving-controller"),
    ("csrcleaner", "certificatesigningrequest-cleaner-controller"),
    ("csrsigning", "certificatesigningrequest-signing-controller"),
    ("daemonset", "daemonset-controller"),
    ("deployment", "deployment-controller"),
    ("disruption", "disruption-controller"),
    ("endpoint", "endpoints-controller"),
    ("endpointslice", "endpointslice-controller"),
    ("endpointslicemirroring", "endpointslice-mirroring-controller"),
    ("ephemeral-volume", "ephemeral-volume-controller"),
    ("garbagecollector", "garbage-collector-controller"),
    ("horizontalpodautoscaling", "horizontal-pod-autoscaler-controller"),
    ("job", "job-controller"),
    ("legacy-service-account-token-cleaner", "legacy-serviceaccount-token-cleaner-controller"),
    ("namespace", "namespace-controller"),
    ("nodeipam", "node-ipam-controller"),
    ("nodelifecycle", "node-lifecycle-controller"),
    ("persistentvolume-binder", "persistentvolume-binder-controller"),
    ("persistentvolume-expander", "persistentvolume-expander-controller"),
    ("podgc", "pod-garbage-collector-controller"),
    ("pv-protection", "persistentvolume-protection-controller"),
    ("pvc-protection", "persistentvolumeclaim-protection-controller"),
    ("replicaset", "replicaset-controller"),
    ("replicationcontroller", "replicationcontroller-controller"),
    ("resource-claim-controller", "resourceclaim-controller"),
    ("resourcequota", "resourcequota-controller"),
    ("root-ca-cert-publisher", "root-ca-certificate-publisher-controller"),
    ("route", "node-route-controller"),
    ("service", "service-lb-controller"),
    ("serviceaccount", "serviceaccount-controller"),
    ("serviceaccount-token", "serviceaccount-token-controller"),
    ("statefulset", "statefulset-controller"),
    ("storage-version-gc", "storageversion-garbage-collector-controller"),
    ("svm", "storage-version-migrator-controller"),
    ("tokencleaner", "token-cleaner-controller"),
    ("ttl", "ttl-controller"),
    ("ttl-after-finished", "ttl-after-finished-controller"),
];

const CLOUD: &str = "cloud providers run their own controller managers (KEP-2395)";
const GATED: &str = "upstream runs it only with a feature gate that is off by default";

/// Upstream's controllers that Kelson does not have, each with the reason.
pub const ABSENT: &[(&str, &str)] = &[
    ("cloud-node-lifecycle-controller", CLOUD),
    ("kube-apiserver-serving-clustertrustbundle-publisher-controller", GATED),
    ("node-route-controller", CLOUD),
    ("podcertificaterequest-cleaner-controller", GATED),
    ("podgroup-protection-controller", GATED),
    ("resourcepoolstatusrequest-controller", GATED),
    (
        "selinux-warning-controller",
        "off by default upstream and only useful where the kubelet mounts with SELinux contexts",
    ),
    ("storageversion-garbage-collector-controller", GATED),
];

/// Returns the current name of a controller of Kelson or upstream, given its current or old name.
pub fn canonical_name(name: &str) -> Option<&'static str> {
    let mut known = CONTROLLERS.iter().map(|c| c.name).chain(ABSENT.iter().map(|(absent, _)| *absent));
    known.find(|k| *k == name).or_else(|| OLD_NAMES.iter().find(|(old, _)| *old == name).map(|(_, new)| *new))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Upstream's controllers of 1.36.
    const UPSTREAM: &str = "bootstrap-signer-controller certificatesigningrequest-approving-controller \
        certificatesigningrequest-cleaner-controller certificatesigningrequest-signing-controller \
        cloud-node-lifecycle-controller clusterrole-aggregation-controller cronjob-controller daemonset-controller \
        deployment-controller device-taint-eviction-controller disruption-controller endpoints-controller \
        endpointslice-controller endpointslice-mirroring-controller ephemeral-volume-controller \
        garbage-collector-controller horizontal-pod-autoscaler-controller job-controller \
        kube-apiserver-serving-clustertrustbundle-publisher-controller legacy-serviceaccount-token-cleaner-controller \
        namespace-controller node-ipam-controller node-lifecycle-controller node-route-controller \
        persistentvolume-attach-detach-controller persistentvolume-binder-controller \
        persistentvolume-expander-controller persistentvolume-protection-controller \
        persistentvolumeclaim-protection-controller pod-garbage-collector-controller \
        podcertificaterequest-cleaner-controller podgroup-protection-controller replicaset-controller \
        replicationcontroller-controller resourceclaim-controller resourcepoolstatusrequest-controller \
        resourcequota-controller root-ca-certificate-publisher-controller selinux-warning-controller \
        service-cidr-controller service-lb-controller serviceaccount-controller serviceaccount-token-controller \
        statefulset-controller storage-version-migrator-controller storageversion-garbage-collector-controller \
        taint-eviction-controller token-cleaner-controller ttl-after-finished-controller ttl-controller \
        validatingadmissionpolicy-status-controller volumeattributesclass-protection-controller";

    #[test]
    fn each_of_upstreams_is_a_row_or_absent_with_a_reason() {
        let here: BTreeSet<&str> = CONTROLLERS.iter().map(|c| c.name).collect();
        let absent: BTreeSet<&str> = ABSENT.iter().map(|(name, _)| *name).collect();
        assert_eq!(here.intersection(&absent).collect::<Vec<_>>(), Vec::<&&str>::new(), "has a row: no longer absent");
        let upstream: BTreeSet<&str> = UPSTREAM.split_whitespace().collect();
        let known: BTreeSet<&str> = here.union(&absent).copied().collect();
        assert_eq!(upstream.difference(&known).collect::<Vec<_>>(), Vec::<&&str>::new());
        assert_eq!(absent.difference(&upstream).collect::<Vec<_>>(), Vec::<&&str>::new());
    }

    #[test]
    fn old_names_are_understood() {
        for (name, want) in [
            ("podgc", Some("pod-garbage-collector-controller")),
            ("job-controller", Some("job-controller")),
            ("service-lb-controller", Some("service-lb-controller")),
            ("jobs", None),
        ] {
            assert_eq!(canonical_name(name), want, "{name}");
        }
        assert!(OLD_NAMES.windows(2).all(|w| w[0].0 < w[1].0));
        for (old, new) in OLD_NAMES {
            assert_eq!(canonical_name(new), Some(*new), "{old}");
        }
    }

    #[test]
    fn names_are_sorted_and_unique() {
        assert!(CONTROLLERS.windows(2).all(|w| w[0].name < w[1].name));
    }

    #[test]
    fn every_account_has_a_role() {
        let policy = kelson_auth::authorize::policy::bootstrap_objects(|_| true);
        let bound: Vec<String> = policy.iter().map(|o| o["subjects"].to_string()).collect();
        for c in CONTROLLERS {
            if let Identity::ServiceAccount(name) = c.identity {
                let subject = format!("\"name\":\"{name}\",\"namespace\":\"kube-system\"");
                assert!(bound.iter().any(|s| s.contains(&subject)), "{}: no binding for {name}", c.name);
            }
        }
    }
}
