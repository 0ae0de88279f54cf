//! How many objects each controller works on at once, and how long changes are gathered before they are written: upstream's
//! `--concurrent-…-syncs` and batch periods. The table below names the controller that each flag is for. `--concurrent-service-syncs`
//! is for the load balancers of clouds, whose controller is not here: it has no effect.
use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use kelson_controllers::BatchPeriods;

use crate::args::duration;

/// As many at once as upstream takes where it has a bound.
const ENDPOINTS_MAX: i64 = 50;

macro_rules! syncs {
    ($($(#[$doc:meta])* $flag:ident: $controller:literal, up to $most:expr;)*) => {
        /// How many objects each controller works on at once; as many as suit it where nothing is said.
        #[derive(Args, Debug, Clone, Default)]
        pub struct SyncArgs {
            $(
                $(#[$doc])*
                #[arg(long, value_name = "N", allow_hyphen_values = true)]
                pub $flag: Option<i64>,
            )*
        }

        impl SyncArgs {
            /// Each flag, whose it is, how large it may be, and what it says.
            fn rows(&self) -> Vec<(String, &'static str, i64, Option<i64>)> {
                vec![$((stringify!($flag).replace('_', "-"), $controller, $most, self.$flag)),*]
            }
        }
    };
}

syncs! {
    /// Cron jobs that are worked on at once [default, here and below: 4].
    concurrent_cron_job_syncs: "cronjob-controller", up to i64::MAX;
    /// Daemon sets at once.
    concurrent_daemonset_syncs: "daemonset-controller", up to i64::MAX;
    /// Deployments at once.
    concurrent_deployment_syncs: "deployment-controller", up to i64::MAX;
    /// Pods on devices that nobody may go on with, at once.
    concurrent_device_taint_eviction_syncs: "device-taint-eviction-controller", up to i64::MAX;
    /// Services at once whose Endpoints are kept.
    concurrent_endpoint_syncs: "endpoints-controller", up to i64::MAX;
    /// Ephemeral volumes at once.
    concurrent_ephemeralvolume_syncs: "ephemeral-volume-controller", up to i64::MAX;
    /// Objects at once of which it is looked whether they are garbage.
    concurrent_gc_syncs: "garbage-collector-controller", up to i64::MAX;
    /// Autoscalers at once.
    concurrent_horizontal_pod_autoscaler_syncs: "horizontal-pod-autoscaler-controller", up to i64::MAX;
    /// Jobs at once.
    concurrent_job_syncs: "job-controller", up to i64::MAX;
    /// Namespaces at once that end.
    concurrent_namespace_syncs: "namespace-controller", up to i64::MAX;
    /// Replication controllers at once.
    concurrent_rc_syncs: "replicationcontroller-controller", up to i64::MAX;
    /// Replica sets at once.
    concurrent_replicaset_syncs: "replicaset-controller", up to i64::MAX;
    /// Quotas at once.
    concurrent_resource_quota_syncs: "resourcequota-controller", up to i64::MAX;
    /// Claims for devices at once.
    concurrent_resourceclaim_syncs: "resourceclaim-controller", up to i64::MAX;
    /// Services at once whose slices are kept, 1 to 50.
    concurrent_service_endpoint_syncs: "endpointslice-controller", up to ENDPOINTS_MAX;
    /// Secrets of service accounts at once.
    concurrent_serviceaccount_token_syncs: "serviceaccount-token-controller", up to i64::MAX;
    /// Stateful sets at once.
    concurrent_statefulset_syncs: "statefulset-controller", up to i64::MAX;
    /// Finished jobs at once whose time is over.
    concurrent_ttl_after_finished_syncs: "ttl-after-finished-controller", up to i64::MAX;
    /// Validating policies at once whose expressions are checked.
    concurrent_validating_admission_policy_status_syncs: "validatingadmissionpolicy-status-controller", up to i64::MAX;
    /// Endpoints at once that are mirrored, 1 to 50.
    mirroring_concurrent_service_endpoint_syncs: "endpointslice-mirroring-controller", up to ENDPOINTS_MAX;
}

impl SyncArgs {
    /// By controller, those that are said.
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

/// How long changes of endpoints are gathered.
#[derive(Args, Debug, Clone)]
pub struct BatchArgs {
    /// Time to collect pod changes before Endpoints are updated.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    pub endpoint_updates_batch_period: Duration,
    /// Time to collect pod changes before EndpointSlices are updated.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    pub endpointslice_updates_batch_period: Duration,
    /// Time to collect changes of Endpoints before mirrored slices are updated.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    pub mirroring_endpointslice_updates_batch_period: Duration,
}

impl BatchArgs {
    /// What they say.
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
