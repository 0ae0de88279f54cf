//! The table of controllers: a new one is a module and a row here. Which informers it reads it says where it reads them;
//! what it may do is its role in `kelson-auth`'s policy, which a test here looks for.
use std::sync::Arc;

use crate::shared::context::{Context, ControllerDescriptor, Identity};

/// All three controllers of certificate requests act as one account, as upstream.
const CERTIFICATES: Identity = account("certificate-controller");
/// So do those of nodes.
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

/// Every controller there is, by name.
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
    row("disruption-controller", account("disruption-controller"), crate::disruption::start),
    row("endpoints-controller", account("endpoint-controller"), crate::endpoints::start),
    row("endpointslice-controller", account("endpointslice-controller"), crate::endpointslice::start),
    row(
        "endpointslice-mirroring-controller",
        account("endpointslicemirroring-controller"),
        crate::endpointslice::mirroring::start,
    ),
    row("garbage-collector-controller", account("generic-garbage-collector"), crate::garbage::start),
    row("horizontal-pod-autoscaler-controller", account("horizontal-pod-autoscaler"), crate::podautoscaler::start),
    row("job-controller", account("job-controller"), crate::job::start),
    row("namespace-controller", account("namespace-controller"), crate::namespace::start),
    row("node-ipam-controller", NODES, crate::nodeipam::start),
    row("node-lifecycle-controller", NODES, crate::nodelifecycle::start),
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
    row("resourcequota-controller", account("resourcequota-controller"), crate::resourcequota::start),
    row("root-ca-certificate-publisher-controller", account("root-ca-cert-publisher"), crate::root_ca::start),
    row("serviceaccount-controller", account("service-account-controller"), crate::serviceaccount::start),
    // It makes what the others authenticate with, so it acts as the manager, as upstream.
    row("serviceaccount-token-controller", Identity::Manager, crate::tokens::start),
    row("statefulset-controller", account("statefulset-controller"), crate::statefulset::start),
    row("taint-eviction-controller", NODES, crate::nodelifecycle::eviction::start),
    // Both bootstrap controllers are off unless named: only clusters that nodes join by bootstrap tokens need them.
    row("token-cleaner-controller", account("token-cleaner"), crate::bootstrap::start_cleaner).off_by_default(),
    row("ttl-after-finished-controller", account("ttl-after-finished-controller"), crate::ttl_after_finished::start),
    row(
        "volumeattributesclass-protection-controller",
        account("volumeattributesclass-protection-controller"),
        crate::protection::start_classes,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_unique() {
        assert!(CONTROLLERS.windows(2).all(|w| w[0].name < w[1].name));
    }

    #[test]
    fn every_account_has_a_role() {
        let policy = kelson_auth::authorize::policy::bootstrap_objects();
        let bound: Vec<String> = policy.iter().map(|o| o["subjects"].to_string()).collect();
        for c in CONTROLLERS {
            if let Identity::ServiceAccount(name) = c.identity {
                let subject = format!("\"name\":\"{name}\",\"namespace\":\"kube-system\"");
                assert!(bound.iter().any(|s| s.contains(&subject)), "{}: no binding for {name}", c.name);
            }
        }
    }
}
