//! The table of controllers, with the names of upstream's `--controllers` flag.
use std::sync::Arc;

use crate::context::Context;

/// One controller.
pub struct Entry {
    /// Name as in `--controllers`.
    pub name: &'static str,
    /// Whether `*` includes it.
    pub on_by_default: bool,
    pub(crate) start: fn(&Arc<Context>),
}

const fn on(name: &'static str, start: fn(&Arc<Context>)) -> Entry {
    Entry { name, on_by_default: true, start }
}

/// Off unless named: only clusters that nodes join by bootstrap tokens need it.
const fn off(name: &'static str, start: fn(&Arc<Context>)) -> Entry {
    Entry { name, on_by_default: false, start }
}

/// Every controller there is.
pub const CONTROLLERS: &[Entry] = &[
    off("bootstrap-signer-controller", crate::bootstrap::start_signer),
    on("certificatesigningrequest-approving-controller", crate::certificates::approve::start),
    on("certificatesigningrequest-cleaner-controller", crate::certificates::clean::start),
    on("certificatesigningrequest-signing-controller", crate::certificates::sign::start),
    on("deployment-controller", crate::deployment::start),
    on("endpoints-controller", crate::endpoints::start),
    on("endpointslice-controller", crate::endpointslice::start),
    on("endpointslice-mirroring-controller", crate::endpointslice::mirroring::start),
    on("garbage-collector-controller", crate::garbage::start),
    on("namespace-controller", crate::namespace::start),
    on("node-ipam-controller", crate::nodeipam::start),
    on("node-lifecycle-controller", crate::nodelifecycle::start),
    on("persistentvolume-protection-controller", crate::protection::start_volumes),
    on("persistentvolumeclaim-protection-controller", crate::protection::start_claims),
    on("pod-garbage-collector-controller", crate::podgc::start),
    on("replicaset-controller", crate::replicaset::start),
    on("replicationcontroller-controller", crate::replicaset::start_replication),
    on("root-ca-certificate-publisher-controller", crate::root_ca::start),
    on("serviceaccount-controller", crate::serviceaccount::start),
    on("serviceaccount-token-controller", crate::tokens::start),
    on("taint-eviction-controller", crate::nodelifecycle::eviction::start),
    off("token-cleaner-controller", crate::bootstrap::start_cleaner),
    on("volumeattributesclass-protection-controller", crate::protection::start_classes),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_unique() {
        assert!(CONTROLLERS.windows(2).all(|w| w[0].name < w[1].name));
    }
}
