//! The number of objects each controller syncs concurrently, and how long changes are collected before they are
//! written: upstream's `--concurrent-…-syncs` and batch periods. The table below has the controller of each flag.
//! `--concurrent-service-syncs` is for the cloud load balancer controller, which does not exist here: it has no effect.
use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use kelson_controllers::BatchPeriods;
use kelson_meta::parse_duration;

/// Upstream's maximum, for flags that have one.
const ENDPOINTS_MAX: i64 = 50;

macro_rules! syncs {
    ($($(#[$doc:meta])* $flag:ident: $controller:literal, up to $most:expr;)*) => {
        /// The number of objects each controller syncs concurrently; the controller's default if not set.
        #[derive(Args, Debug, Clone, Default)]
        pub struct SyncArgs {
            $(
                $(#[$doc])*
                #[arg(long, value_name = "N", allow_hyphen_values = true)]
                pub $flag: Option<i64>,
            )*
        }

        impl SyncArgs {
            /// Returns each flag with its controller, its maximum and its value.
            fn rows(&self) -> Vec<(String, &'static str, i64, Option<i64>)> {
                vec![$((stringify!($flag).replace('_', "-"), $controller, $most, self.$flag)),*]
            }
        }
    };
}

syncs! {
    /// Number of cron jobs to sync concurrently [default, here and below: 4].
    concurrent_cron_job_syncs: "cronjob-controller", up to i64::MAX;
    /// Number of daemon sets to sync concurrently.
    concurrent_daemonset_syncs: "daemonset-controller", up to i64::MAX;
    /// Number of deployments to sync concurrently.
    concurrent_deployment_syncs: "deployment-controller", up to i64::MAX;
    /// Number of pods on tainted devices to evict concurrently.
    concurrent_device_taint_eviction_syncs: "device-taint-eviction-controller", up to i64::MAX;
    /// Number of services whose Endpoints to sync concurrently.
    concurrent_endpoint_syncs: "endpoints-controller", up to i64::MAX;
    /// Number of ephemeral volumes to sync concurrently.
    concurrent_ephemeralvolume_syncs: "ephemeral-volume-controller", up to i64::MAX;
    /// Number of objects to check for garbage collection concurrently.
    concurrent_gc_syncs: "garbage-collector-controller", up to i64::MAX;
    /// Number of autoscalers to sync concurrently.
    concurrent_horizontal_pod_autoscaler_syncs: "horizontal-pod-autoscaler-controller", up to i64::MAX;
    /// Number of jobs to sync concurrently.
    concurrent_job_syncs: "job-controller", up to i64::MAX;
    /// Number of terminating namespaces to sync concurrently.
    concurrent_namespace_syncs: "namespace-controller", up to i64::MAX;
    /// Number of replication controllers to sync concurrently.
    concurrent_rc_syncs: "replicationcontroller-controller", up to i64::MAX;
    /// Number of replica sets to sync concurrently.
    concurrent_replicaset_syncs: "replicaset-controller", up to i64::MAX;
    /// Number of resource quotas to sync concurrently.
    concurrent_resource_quota_syncs: "resourcequota-controller", up to i64::MAX;
    /// Number of resource claims to sync concurrently.
    concurrent_resourceclaim_syncs: "resourceclaim-controller", up to i64::MAX;
    /// Number of services whose EndpointSlices to sync concurrently, 1 to 50.
    concurrent_service_endpoint_syncs: "endpointslice-controller", up to ENDPOINTS_MAX;
    /// Number of service account token secrets to sync concurrently.
    concurrent_serviceaccount_token_syncs: "serviceaccount-token-controller", up to i64::MAX;
    /// Number of stateful sets to sync concurrently.
    concurrent_statefulset_syncs: "statefulset-controller", up to i64::MAX;
    /// Number of finished jobs to delete concurrently after their TTL.
    concurrent_ttl_after_finished_syncs: "ttl-after-finished-controller", up to i64::MAX;
    /// Number of validating admission policies to type-check concurrently.
    concurrent_validating_admission_policy_status_syncs: "validatingadmissionpolicy-status-controller", up to i64::MAX;
    /// Number of Endpoints to mirror concurrently, 1 to 50.
    mirroring_concurrent_service_endpoint_syncs: "endpointslice-mirroring-controller", up to ENDPOINTS_MAX;
}

impl SyncArgs {
    /// Returns the values that are set, by controller.
    pub fn by_controller(&self) -> anyhow::Result<BTreeMap<&'static str, usize>> {
        let mut out = BTreeMap::new();
        for (flag, controller, most, said) in self.rows() {
            let Some(n) = said else { continue };
            if n > most {
                bail!("{flag} must not be more than {most}, but got {n}");
            }
            match usize::try_from(n) {
                Ok(n) if n > 0 => drop(out.insert(controller, n)),
                _ => bail!("{flag} must be greater than 0, but got {n}"),
            }
        }
        Ok(out)
    }
}

/// The time for which changes of endpoints are collected.
#[derive(Args, Debug, Clone)]
pub struct BatchArgs {
    /// Time to collect pod changes before Endpoints are updated.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration)]
    pub endpoint_updates_batch_period: Duration,
    /// Time to collect pod changes before EndpointSlices are updated.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration)]
    pub endpointslice_updates_batch_period: Duration,
    /// Time to collect changes of Endpoints before mirrored slices are updated.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration)]
    pub mirroring_endpointslice_updates_batch_period: Duration,
}

impl BatchArgs {
    /// Returns the periods of the flags.
    pub fn periods(&self) -> BatchPeriods {
        BatchPeriods {
            endpoints: self.endpoint_updates_batch_period,
            slices: self.endpointslice_updates_batch_period,
            mirrored: self.mirroring_endpointslice_updates_batch_period,
        }
    }
}

#[cfg(test)]
mod tests {
    use kelson_controllers::CONTROLLERS;

    use super::*;

    #[test]
    fn every_flag_is_of_a_controller_and_upstreams() {
        let facts = include_str!("flags/facts/kube-controller-manager.txt");
        let all = SyncArgs::default().rows();
        for (flag, controller, ..) in &all {
            assert!(facts.lines().any(|l| l.split(' ').next() == Some(flag.as_str())), "{flag}");
            assert!(CONTROLLERS.iter().any(|c| c.name == *controller), "{controller}");
        }
        let upstream = facts.lines().filter_map(|l| l.split(' ').next()).filter(|f| f.contains("concurrent-"));
        let missing: Vec<&str> = upstream.filter(|f| !all.iter().any(|(flag, ..)| flag == f)).collect();
        assert_eq!(missing, ["concurrent-service-syncs"]);
    }

    #[test]
    fn numbers_and_their_bounds() {
        let said = |jobs, slices| {
            let args = SyncArgs {
                concurrent_job_syncs: jobs,
                concurrent_service_endpoint_syncs: slices,
                ..SyncArgs::default()
            };
            args.by_controller().map_err(|e| e.to_string())
        };
        assert_eq!(said(Some(7), None), Ok([("job-controller", 7)].into()));
        assert_eq!(said(Some(0), None), Err("concurrent-job-syncs must be greater than 0, but got 0".into()));
        let why = "concurrent-service-endpoint-syncs must not be more than 50, but got 51";
        assert_eq!(said(None, Some(51)), Err(why.into()));
    }
}
