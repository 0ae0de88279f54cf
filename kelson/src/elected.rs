//! The components of a control plane that one server runs for the cluster: controllers and scheduler. Everything else of
//! a server (API, metrics API, its certificates, its policy and settings objects, its node) runs on every server.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use jiff::tz::TimeZone;
use kelson_apiserver::Running;
use kelson_auth::token::{IssuerOptions, TokenIssuer};
use kelson_auth::user;
use kelson_client::{Client, Transport};
use kelson_controllers::{AddressPool, Authorities, Controllers, ManifestSet, ReservedNames};
use kelson_meta::SystemClock;
use kelson_metrics::Registry;
use kelson_pki::ClusterPki;
use kelson_ranges::Ranges;
use kelson_scheduler::Scheduler;
use kelson_tasks::Tasks;
use tokio::sync::watch;

use crate::args::feature_gates;
use crate::cli::{BuiltIn, ServerArgs};
use crate::election::Election;
use crate::leading::{Candidate, Elector, Part, Term};
use crate::snapshot_schedule::ScheduledSnapshots;

const CONTROLLERS: &str = "kube-controller-manager";
const SCHEDULER: &str = "kube-scheduler";

/// Returns the transport of a user of this process.
pub type Transports = Arc<dyn Fn(&str) -> Arc<dyn Transport> + Send + Sync>;

/// The parts of their server that the components need.
pub struct Elected<'a> {
    /// The flags of the server.
    pub args: &'a ServerArgs,
    /// The address ranges.
    pub ranges: &'a Ranges,
    /// The CAs and the key of service account tokens.
    pub pki: &'a ClusterPki,
    /// Names for which no kubelet serving certificate is approved.
    pub reserved_names: ReservedNames,
    /// The CAs with which the controllers sign.
    pub authorities: watch::Receiver<Authorities>,
    /// The manifests of this server, which are applied while it is the leader.
    pub manifests: watch::Receiver<Arc<ManifestSet>>,
    /// The transports of the components' users.
    pub transports: Transports,
    /// The identity of this server in elections; `None` if no other server has the same store.
    pub identity: Option<String>,
    /// The group of the components' tasks.
    pub tasks: &'a Tasks,
    /// The timeout for stopping a component.
    pub end_max: Duration,
}

impl Elected<'_> {
    /// Starts the controllers, or a candidate for them. Their metrics are in `registry` while they run.
    ///
    /// # Errors
    /// A feature gate is not known.
    pub fn start_controllers(&self, registry: &Registry) -> anyhow::Result<Part> {
        let config = self.controllers()?;
        let (tasks, transports, registry) = (self.tasks.clone(), Arc::clone(&self.transports), part_of(registry));
        let start = move |term: &Term| {
            let config = kelson_controllers::Config { metrics: fresh(&registry), ..config.clone() };
            let (term, transports) = (term.clone(), Arc::clone(&transports));
            let factory = move |name: &str| Client::new(term.guard(transports(name)), "controller-manager");
            let tasks = tasks.child("controllers");
            let running = Controllers::start(config, Box::new(factory), Arc::new(SystemClock), tasks);
            Box::pin(running.shutdown()) as kelson_client::BoxFuture<()>
        };
        let component = Candidate { name: CONTROLLERS, end_max: self.end_max, start: Box::new(start) };
        Ok(Part::start(component, self.elector(user::KUBE_CONTROLLER_MANAGER, CONTROLLERS), self.tasks))
    }

    /// Starts the scheduler, or a candidate for it. Its metrics are in `registry` while it runs.
    ///
    /// # Errors
    /// A feature gate is not known, or this machine has no name.
    pub fn start_scheduler(&self, registry: &Registry) -> anyhow::Result<Part> {
        let gates = Arc::new(feature_gates(&self.args.feature_gates, |_| true)?);
        let host = crate::host::name()?;
        let (tasks, transports, registry) = (self.tasks.clone(), Arc::clone(&self.transports), part_of(registry));
        let start = move |term: &Term| {
            let (gates, host, metrics) = (Arc::clone(&gates), host.clone(), Some(fresh(&registry)));
            let config = kelson_scheduler::Config { gates, host, metrics, ..kelson_scheduler::Config::default() };
            let client = Client::new(term.guard(transports(user::KUBE_SCHEDULER)), "scheduler");
            let running = Scheduler::start(config, client, Arc::new(SystemClock), None, &tasks);
            Box::pin(running.shutdown()) as kelson_client::BoxFuture<()>
        };
        let component = Candidate { name: SCHEDULER, end_max: self.end_max, start: Box::new(start) };
        Ok(Part::start(component, self.elector(user::KUBE_SCHEDULER, SCHEDULER), self.tasks))
    }

    /// Starts the scheduled snapshots, or a candidate for them.
    pub fn start_snapshots(&self, scheduled: ScheduledSnapshots, api: &Running) -> Option<Part> {
        scheduled.start(api, self.identity.clone(), &self.reserved_names.server_node, self.tasks)
    }

    fn elector(&self, user: &str, name: &str) -> Option<Elector> {
        let identity = self.identity.clone()?;
        Some(Elector { transport: (self.transports)(user), identity, election: Election::of(name) })
    }

    fn controllers(&self) -> anyhow::Result<kelson_controllers::Config> {
        let args = self.args;
        let issuer = TokenIssuer::new(self.pki.service_account.clone(), IssuerOptions::default());
        let sign = move |namespace: &str, account: &str, uid: &str, secret: &str| {
            issuer.legacy_token(namespace, account, uid, secret).map_err(|e| e.message)
        };
        let own_node = self.reserved_names.server_node.clone();
        Ok(kelson_controllers::Config {
            controllers: enabled(args).into_iter().map(String::from).collect(),
            cluster_cidrs: vec![self.ranges.cluster],
            service_cidr: Some(self.ranges.service),
            authorities: self.authorities.clone(),
            reserved_names: self.reserved_names.clone(),
            control_plane_node: if args.disable_agent { String::new() } else { own_node },
            legacy_tokens: Some(Arc::new(sign)),
            feature_gates: Arc::new(feature_gates(&args.feature_gates, |_| true)?),
            time_zone: TimeZone::system(),
            service_load_balancer: !args.disable.contains(&BuiltIn::ServiceLb),
            load_balancer_pools: pools(args, self.ranges)?,
            manifests: self.manifests.clone(),
            ..kelson_controllers::Config::default()
        })
    }
}

/// Returns the address pools of services.
fn pools(args: &ServerArgs, ranges: &Ranges) -> anyhow::Result<Vec<AddressPool>> {
    if !args.load_balancer_pool.is_empty() && args.disable.contains(&BuiltIn::ServiceLb) {
        bail!("--load-balancer-pool must not be set with --disable servicelb, which gives services no addresses");
    }
    for pool in &args.load_balancer_pool {
        if let Some(range) = [ranges.cluster, ranges.service].into_iter().find(|range| pool.overlaps(range)) {
            bail!("--load-balancer-pool: {pool} must not overlap {range}, a range of pods or services of the cluster");
        }
    }
    Ok(args.load_balancer_pool.clone())
}

/// Returns a registry for one start of a component. Its metrics are shown in place of those of the start before.
fn fresh(shown: &Registry) -> Registry {
    let own = Registry::new();
    shown.include_only(own.clone());
    own
}

/// Returns the registry, shown in `registry`, that has the metrics of a component that may be started again.
fn part_of(registry: &Registry) -> Registry {
    let part = Registry::new();
    registry.include(part.clone());
    part
}

/// Returns the controllers to run.
fn enabled(args: &ServerArgs) -> Vec<&'static str> {
    let mut names = [&["*"][..], &crate::controller_manager::CONTROLLERS_ADDED].concat();
    if !args.disable.contains(&BuiltIn::LocalStorage) {
        names.push("local-path-provisioner");
    }
    names
}
