//! The controllers of Kubernetes: one module and one row in `registry` for each. All have the same shape: `start(&ctx)`
//! registers handlers with the shared informers and starts workers that call `sync(key)`, and pure functions decide
//! what a sync does. No controller polls, so an idle cluster causes no work. The caller selects which controllers run.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `views/` | the fields that are read of each kind, one file for each kind, and its index keys |
//! | `shared/` | context, informers, expectations, ownership, pods, scales, discovery |
//! | `registry` | the table of controllers; it imports every controller |
//!
//! Between `shared/` and `registry` there is one module for each controller. A line in a view only decodes. A controller reads
//! informers and writes with its client under its service account. Only `registry` names two controllers; facts that one
//! controller defines and another uses (the key of a taint, how the port of a pod is found) are the exception. `policy_types`
//! checks what the expressions of validating policies say about fields, by the table of built-in kinds and the OpenAPI
//! documents of others, so that it is done once with any API server. A new controller is a module, a row, and its role in the
//! policy of `kelson-auth`; a test looks for the role.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod bootstrap;
mod certificates;
#[cfg(test)]
mod cluster;
mod cluster_roles;
mod cronjob;
mod daemonset;
mod deployment;
mod devices;
mod disruption;
mod endpoints;
mod endpointslice;
#[cfg(test)]
mod every_write;
mod garbage;
mod job;
mod legacy_tokens;
mod manifests;
mod namespace;
mod node_ttl;
mod nodeipam;
mod nodelifecycle;
mod podautoscaler;
mod podgc;
mod policy_types;
mod protection;
mod registry;
mod replicaset;
mod resourcequota;
mod root_ca;
mod service_cidrs;
mod serviceaccount;
mod servicelb;
mod shared;
mod statefulset;
mod storage_migration;
#[cfg(test)]
mod testing;
mod tokens;
mod ttl_after_finished;
mod views;
mod volume;

use std::sync::Arc;
use std::time::Duration;

use kelson_meta::Clock;
use kelson_tasks::Tasks;
use shared::context::Context;

pub use registry::{ABSENT, CONTROLLERS, canonical_name};
pub use shared::address_pool::{AddressPool, AddressPoolError};
pub use shared::authorities::Authorities;
pub use shared::config::{
    AutoscalerRules, BatchPeriods, Config, EvictionRates, FEATURE_GATES, LegacyTokenSigner, ReservedNames, SliceSizes,
};
pub use shared::context::{ClientFactory, ControllerDescriptor, Identity, MANAGER_USER};
pub use shared::manifest_set::{DocumentError, ManifestError, ManifestFile, ManifestSet, MissingField};

/// The timeout of the shutdown. It is short, as a sync only sends requests one after the other.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);

/// The controller manager. [`Controllers::start`] starts the controllers that a [`Config`] enables and returns a
/// [`Running`] handle.
///
/// All controllers share one set of informers, so that each kind is watched once, and only kinds that an enabled
/// controller reads are watched at all. Every controller sends its requests as its own user, which limits what it can
/// do.
pub struct Controllers;

impl Controllers {
    /// Starts every controller that `config` enables in the task group `tasks`. `factory` returns a client for a user
    /// name: `system:kube-controller-manager` for the shared informers, and `system:serviceaccount:kube-system:NAME`
    /// for each controller, with the groups of a service account.
    pub fn start(config: Config, factory: Box<ClientFactory>, clock: Arc<dyn Clock>, tasks: Tasks) -> Running {
        let manager = Context::new(config, factory, clock, tasks);
        let gates = Arc::clone(&manager.config.feature_gates);
        manager.config.metrics.on_scrape(move |families| {
            let help = "1 if the feature gate is enabled, by name and stage.";
            let mut family = families.gauge("kubernetes_feature_enabled", help);
            for (name, stage, on) in gates.all() {
                family.sample(&[("name", name), ("stage", stage.label())], f64::from(u8::from(on)));
            }
        });
        let help = "1 for each running controller of this manager.";
        let running = manager.config.metrics.gauges("running_managed_controllers", help, &["name", "manager"]);
        for controller in CONTROLLERS {
            if manager.config.enables(controller.name, controller.on_by_default) {
                (controller.start)(&manager.of(controller));
                running.with_label_values(&[controller.name, "kube-controller-manager"]).set(1);
            }
        }
        manager.informers.start(&manager.client(), &manager.tasks);
        Running { manager }
    }
}

/// The running controllers. They stop on [`shutdown`](Self::shutdown), or when this value is dropped.
pub struct Running {
    manager: Context,
}

impl Running {
    /// Waits until every shared informer has its initial list.
    pub async fn synced(&self) {
        self.manager.informers.synced().await;
    }

    /// Stops all controllers and waits until they have stopped.
    pub async fn shutdown(self) {
        self.manager.tasks.shutdown(SHUTDOWN_LIMIT).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.manager.tasks.token().cancel();
        self.manager.informers.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use kelson_metrics::Registry;
    use kelson_simulation::Api;
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn metrics_of_upstream_are_there_with_their_labels() {
        let api = Api::start().await;
        api.namespace("n").await;
        let metrics = Registry::of_component();
        let config = Config { metrics: metrics.clone(), ..Config::default() };
        let _running = testing::run(&api, &["*"], config).await;
        let spec = json!({"selector": {"a": "b"}, "ports": [{"port": 80}], "trafficDistribution": "PreferClose"});
        api.create("v1/services", json!({"metadata": {"name": "s", "namespace": "n"}, "spec": spec})).await;
        api.settle().await;
        let described = metrics.described();
        let facts = include_str!("../../../facts/component-metrics.txt");
        let mut looked_at = 0;
        for line in facts.lines().filter_map(|l| l.strip_prefix("kube-controller-manager ")) {
            let words: Vec<&str> = line.split(' ').collect();
            let labels: BTreeSet<String> = words[2].split(',').filter(|l| *l != "-").map(str::to_owned).collect();
            assert_eq!(described.get(words[1]), Some(&labels), "{line}");
            looked_at += 1;
        }
        assert!(looked_at > 20);
    }
}
