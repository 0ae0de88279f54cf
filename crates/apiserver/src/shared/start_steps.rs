//! The steps of a start that health checks report, under the names of upstream's post-start hooks.
use std::sync::atomic::{AtomicU32, Ordering};

/// A step of the start. The order is that of upstream's reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartStep {
    /// The admission chain has its plugins.
    AdmissionInitializer,
    /// Authentication and authorization read from the store.
    GenericInformers,
    /// The objects of priority and fairness configure flow control.
    FairnessConfigConsumer,
    /// Requests wait for seats.
    FairnessFilter,
    /// Requests in flight are limited by fixed numbers.
    MaxInFlightFilter,
    /// Definitions of custom resources are read.
    ExtensionsInformers,
    /// Objects of deleted definitions are deleted.
    ExtensionsControllers,
    /// All stored definitions are served.
    DefinitionsSynced,
    /// The system namespaces exist and are created again.
    SystemNamespaces,
    /// What other API servers on the same storage serve was read once.
    PeerProxy,
    /// The CA bundles for aggregated API servers are published.
    ClusterAuthenticationInfo,
    /// The identity of this server is renewed.
    IdentityLease,
    /// Expired identities are deleted.
    IdentityLeaseCollection,
    /// Uses of legacy tokens are recorded.
    LegacyTokenTracking,
    /// All stored objects can be read.
    StorageReadiness,
    /// The addresses of services are known, and their objects are repaired.
    ServiceIpRepair,
    /// The default roles and bindings exist.
    BootstrapRoles,
    /// The system priority classes exist.
    PriorityClasses,
    /// The default objects of priority and fairness exist.
    FairnessConfigProducer,
    /// The `kubernetes` service exists and is maintained.
    BootstrapController,
    /// The ServiceCIDR of the configured ranges exists.
    ServiceCidr,
    /// APIServices are read.
    AggregatorInformers,
    /// Conditions of APIServices of this server are maintained.
    LocalAvailability,
    /// Aggregated API servers are probed.
    RemoteAvailability,
    /// Stored APIServices are served.
    ApiServiceRegistration,
    /// APIServices of definitions are maintained.
    Autoregistration,
    /// The APIServices of all built-in group versions exist.
    AutoregisterCompletion,
    /// OpenAPI v2 documents include those of aggregated API servers.
    OpenApiV2,
    /// OpenAPI v3 documents include those of aggregated API servers.
    OpenApiV3,
}

impl StartStep {
    /// All steps, in the order in which a verbose health check lists them.
    pub const ALL: [Self; 29] = [
        Self::AdmissionInitializer,
        Self::GenericInformers,
        Self::FairnessConfigConsumer,
        Self::FairnessFilter,
        Self::MaxInFlightFilter,
        Self::ExtensionsInformers,
        Self::ExtensionsControllers,
        Self::DefinitionsSynced,
        Self::SystemNamespaces,
        Self::PeerProxy,
        Self::ClusterAuthenticationInfo,
        Self::IdentityLease,
        Self::IdentityLeaseCollection,
        Self::LegacyTokenTracking,
        Self::StorageReadiness,
        Self::ServiceIpRepair,
        Self::BootstrapRoles,
        Self::PriorityClasses,
        Self::FairnessConfigProducer,
        Self::BootstrapController,
        Self::ServiceCidr,
        Self::AggregatorInformers,
        Self::LocalAvailability,
        Self::RemoteAvailability,
        Self::ApiServiceRegistration,
        Self::Autoregistration,
        Self::AutoregisterCompletion,
        Self::OpenApiV2,
        Self::OpenApiV3,
    ];

    /// The name of the check.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AdmissionInitializer => "poststarthook/start-apiserver-admission-initializer",
            Self::GenericInformers => "poststarthook/generic-apiserver-start-informers",
            Self::FairnessConfigConsumer => "poststarthook/priority-and-fairness-config-consumer",
            Self::FairnessFilter => "poststarthook/priority-and-fairness-filter",
            Self::MaxInFlightFilter => "poststarthook/max-in-flight-filter",
            Self::ExtensionsInformers => "poststarthook/start-apiextensions-informers",
            Self::ExtensionsControllers => "poststarthook/start-apiextensions-controllers",
            Self::DefinitionsSynced => "poststarthook/crd-informer-synced",
            Self::SystemNamespaces => "poststarthook/start-system-namespaces-controller",
            Self::PeerProxy => "poststarthook/mixed-version-proxy-handler",
            Self::ClusterAuthenticationInfo => "poststarthook/start-cluster-authentication-info-controller",
            Self::IdentityLease => "poststarthook/start-kube-apiserver-identity-lease-controller",
            Self::IdentityLeaseCollection => "poststarthook/start-kube-apiserver-identity-lease-garbage-collector",
            Self::LegacyTokenTracking => "poststarthook/start-legacy-token-tracking-controller",
            Self::StorageReadiness => "poststarthook/storage-readiness",
            Self::ServiceIpRepair => "poststarthook/start-service-ip-repair-controllers",
            Self::BootstrapRoles => "poststarthook/rbac/bootstrap-roles",
            Self::PriorityClasses => "poststarthook/scheduling/bootstrap-system-priority-classes",
            Self::FairnessConfigProducer => "poststarthook/priority-and-fairness-config-producer",
            Self::BootstrapController => "poststarthook/bootstrap-controller",
            Self::ServiceCidr => "poststarthook/start-kubernetes-service-cidr-controller",
            Self::AggregatorInformers => "poststarthook/start-kube-aggregator-informers",
            Self::LocalAvailability => "poststarthook/apiservice-status-local-available-controller",
            Self::RemoteAvailability => "poststarthook/apiservice-status-remote-available-controller",
            Self::ApiServiceRegistration => "poststarthook/apiservice-registration-controller",
            Self::Autoregistration => "poststarthook/kube-apiserver-autoregistration",
            Self::AutoregisterCompletion => "autoregister-completion",
            Self::OpenApiV2 => "poststarthook/apiservice-openapi-controller",
            Self::OpenApiV3 => "poststarthook/apiservice-openapiv3-controller",
        }
    }

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// The start steps of a server, and those that are finished.
#[derive(Debug, Default)]
pub struct StartSteps {
    left_out: AtomicU32,
    finished: AtomicU32,
}

impl StartSteps {
    /// Leaves out a step that this server does not have.
    pub fn leave_out(&self, step: StartStep) {
        self.left_out.fetch_or(step.bit(), Ordering::Relaxed);
    }
    /// The steps of this server, in order.
    pub fn all(&self) -> impl Iterator<Item = StartStep> {
        let left_out = self.left_out.load(Ordering::Relaxed);
        StartStep::ALL.into_iter().filter(move |step| left_out & step.bit() == 0)
    }
    /// Marks steps as finished.
    pub fn finish(&self, steps: &[StartStep]) {
        self.finished.fetch_or(steps.iter().fold(0, |bits, step| bits | step.bit()), Ordering::Release);
    }
    /// Whether a step is finished.
    pub fn is_finished(&self, step: StartStep) -> bool {
        self.finished.load(Ordering::Acquire) & step.bit() != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_has_its_own_name_and_state() {
        let steps = StartSteps::default();
        for step in StartStep::ALL {
            assert!(!steps.is_finished(step), "{step:?}");
            steps.finish(&[step]);
            assert!(steps.is_finished(step), "{step:?}");
        }
        let mut names = StartStep::ALL.map(StartStep::name);
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        steps.leave_out(StartStep::MaxInFlightFilter);
        assert_eq!(steps.all().count(), StartStep::ALL.len() - 1);
    }
}
