//! Start: the only file that knows every part. It builds the parts from the configuration, connects them, and shuts them down.
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kelson_auth::authenticate::jwt::Issuer;
use kelson_auth::authorize::config::WebhookConfig;
use kelson_auth::{Objects, UserInfo};
use kelson_flowcontrol::FlowControl;
use kelson_resources::GatedFields;
use kelson_tasks::{FairLane, OnPanic, Tasks};
use kelson_transport::Transport;
use kelson_webhook::{Credentials, ServiceResolver, WebhookClient};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

use crate::aggregate::registry::Aggregation;
use crate::aggregate::remote::ConnectionParts;
use crate::bootstrap;
use crate::bootstrap::own::ServerCalls;
use crate::catalog::Catalog;
use crate::config::{AuthorizationMode, Config, PEER_GATE, StartError, Trusted};
use crate::custom::registrar::Definitions;
use crate::extend::{
    availability, cleanup, fairness, identity_lease, legacy_tokens, local, others, peer_address, peers, usage,
};
use crate::front::inprocess::InProcess;
use crate::front::listen;
use crate::peers::server::PeerServers;
use crate::request::routes::Routes;
use crate::shared::allocations::Services;
use crate::shared::conversion::ConversionWebhooks;
use crate::shared::dialer::KubeletDialer;
use crate::shared::documents::Documents;
use crate::shared::fairness::Fairness;
use crate::shared::flow::{Flow, InFlight};
use crate::shared::identity::IssuersError;
use crate::shared::log_limit::LogLimit;
use crate::shared::metrics::Metrics;
use crate::shared::objects::StoreObjects;
use crate::shared::pool::Pool;
use crate::shared::readiness::{ComponentCheck, Readiness};
use crate::shared::start_steps::StartStep;
use crate::shared::watches::Watches;
use crate::shared::{Server, admission, identity};
use crate::usage::{ResourceMetrics, kinds};
use crate::write::quota::Charges;

/// Limit of the bytes of all complete responses that wait for their readers.
const ANSWERS_BYTES_MAX: usize = 128 << 20;
/// Heavy requests that run at once: as many as a small machine has cores, and one more for nodes and the control plane.
const HEAVY_WIDTH: usize = 2;
const HEAVY_RESERVE: usize = 1;
/// Limit of the bytes of all request bodies together. A decoded body needs up to about twenty times as much.
const BODIES_BYTES_MAX: usize = 32 * 1024 * 1024;
/// The time for which a shutdown waits for requests in progress.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts API servers; see [`ApiServer::start`].
pub struct ApiServer;

impl ApiServer {
    /// Builds a server, creates the objects that every cluster has, and serves. Returns as soon as requests are accepted. A server is
    /// ready later; see [`Running::ready`].
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(config: Config) -> Result<Running, StartError> {
        Self::start_like(None, config).await
    }

    /// `model` is a running server whose store was forked for this one.
    async fn start_like(model: Option<&Server>, config: Config) -> Result<Running, StartError> {
        let store = config.store.clone();
        let objects: Arc<dyn Objects> = Arc::new(StoreObjects::new(store.clone()));
        let catalog = catalog(&config);
        let tasks = config.tasks.clone();
        let metrics = metrics(&config);
        let auth = identity::auth(&config, &objects, metrics.registry())?;
        let watches = Arc::new(Watches::default());
        let (flow, fairness) = flow(&config, &metrics, &watches);
        metrics.show_in_flight(Arc::clone(&flow));
        let charges = Arc::new(Charges::default());
        let own = Arc::new(ServerCalls::default());
        let links = admission::AdmissionLinks { charges: charges.clone(), namespaces: own.clone(), own: own.clone() };
        let admission = admission::chain(&config, &objects, &auth, &catalog, metrics.admission(), links)?;
        let routes = Arc::new(Routes::new(Arc::clone(&catalog)));
        let resolver: Arc<dyn ServiceResolver> = Arc::new(admission::EndpointResolver(Arc::clone(&objects)));
        let webhooks = ConversionWebhooks(WebhookClient::new(Arc::clone(&resolver), Credentials::default()));
        let parts = ConnectionParts { resolver, certificate: config.front_proxy_client.clone(), tasks: tasks.clone() };
        let server = Arc::new(Server {
            aggregation: Aggregation::new(Arc::clone(&routes), parts),
            routes,
            definitions: Definitions::new(Arc::clone(&catalog), store.clone(), Some(Arc::new(webhooks))),
            catalog,
            peers: peer_servers(&config, &tasks, &metrics)?,
            objects,
            gated: GatedFields::of(&config.feature_gates),
            admission,
            authorizer: Arc::clone(&auth.authorizer) as _,
            auth,
            clock: Arc::clone(&config.clock),
            started_at: config.clock.now(),
            services: Services::new(&config, &store)?,
            kubelets: config.kubelet.as_ref().map(KubeletDialer::new).transpose()?,
            usage: config.resource_metrics.then(|| ResourceMetrics::new(metrics.registry())),
            metrics,
            health: Readiness::default(),
            discovery: Documents::default(),
            openapi: Documents::default(),
            flow,
            fairness,
            watches,
            bodies: Pool::new(BODIES_BYTES_MAX),
            answers: Pool::new(ANSWERS_BYTES_MAX),
            heavy: FairLane::new("heavy requests", HEAVY_WIDTH, HEAVY_RESERVE),
            list_pieces: Arc::new(Semaphore::new(Handle::current().metrics().num_workers())),
            backends: Pool::new(config.backends_max),
            rejections: LogLimit::default(),
            tasks,
            store,
            config,
            listens_at: OnceLock::new(),
        });
        charges.connect(&server);
        own.connect(&server);
        begin_steps(&server);
        load(&server, model);
        let listener = listen::Listener::bind(&server).await?;
        let local_addr = listener.as_ref().map(listen::Listener::local_addr);
        // Boxed: many requests side by side, each with all its steps, are more than the stack of a runtime's thread should hold.
        Box::pin(bootstrap::run_or_keep_trying(&server)).await?;
        if server.fairness.is_some() {
            fairness::begin(&server).await;
        }
        keep_running(&server);
        server.health.set_ready();
        if let Some(listener) = listener {
            server.tasks.spawn("api-listener", OnPanic::EndProcess, listener.run(Arc::clone(&server)));
        }
        Ok(Running { server, local_addr })
    }
}

/// Returns the other servers on the same storage, to which requests are forwarded.
fn peer_servers(config: &Config, tasks: &Tasks, metrics: &Metrics) -> Result<Option<Arc<PeerServers>>, StartError> {
    let is_on = !config.peer_ca_pem.is_empty() && config.feature_gates.enabled(PEER_GATE);
    let Some(own) = identity_lease::id(config).filter(|_| is_on) else { return Ok(None) };
    let certificate = config.front_proxy_client.clone();
    let peers = PeerServers::new(own, &config.peer_ca_pem, certificate, tasks, metrics.registry());
    peers.map(|peers| Some(Arc::new(peers))).map_err(|e| StartError::Tls(e.to_string()))
}

/// Returns the kinds that this server serves.
fn catalog(config: &Config) -> Arc<Catalog> {
    let catalog = Arc::new(Catalog::serving(&config.runtime_config, &config.feature_gates));
    if config.resource_metrics {
        kinds::served().into_iter().for_each(|served| catalog.insert(Arc::new(served)));
    }
    catalog
}

/// Returns the metrics of this server and of its audit log.
fn metrics(config: &Config) -> Metrics {
    let metrics = Metrics::new(config.store.clone(), Arc::clone(&config.feature_gates));
    if let Some(audit) = &config.audit {
        audit.register(metrics.registry());
    }
    metrics
}

/// Leaves out the steps of parts that this server does not have, and finishes those of parts that are ready once they are built.
fn begin_steps(server: &Server) {
    let gates = &server.config.feature_gates;
    let has_lease = identity_lease::id(&server.config).is_some();
    let is_fair = server.fairness.is_some();
    for (step, is_there) in [
        (StartStep::FairnessConfigConsumer, is_fair),
        (StartStep::FairnessConfigProducer, is_fair),
        (StartStep::FairnessFilter, is_fair),
        (StartStep::MaxInFlightFilter, !is_fair),
        (StartStep::IdentityLease, has_lease),
        (StartStep::IdentityLeaseCollection, has_lease),
        (StartStep::PeerProxy, server.peers.is_some()),
        (StartStep::LegacyTokenTracking, server.auth.issuer.is_some()),
        (StartStep::StorageReadiness, gates.enabled("WatchCacheInitializationPostStartHook")),
    ] {
        if !is_there {
            server.health.steps.leave_out(step);
        }
    }
    let built = [StartStep::AdmissionInitializer, StartStep::FairnessFilter, StartStep::MaxInFlightFilter];
    server.health.steps.finish(&built);
}

/// Reads from the store which addresses, credentials, custom resources and aggregated APIs there are.
fn load(server: &Arc<Server>, model: Option<&Server>) {
    server.services.connect(bootstrap::addresses::ServiceAddressRegistry::of(server));
    server.auth.follow(&server.store, &server.tasks);
    server.definitions.load(model.map(|model| &model.definitions));
    server.aggregation.load(&server.store);
    server.health.steps.finish(&[
        StartStep::GenericInformers,
        StartStep::ExtensionsInformers,
        StartStep::DefinitionsSynced,
        StartStep::AggregatorInformers,
        StartStep::ApiServiceRegistration,
    ]);
}

/// Starts the server's background tasks. They run until the server stops.
fn keep_running(server: &Arc<Server>) {
    let of_endpoints = Arc::clone(server);
    let follow = move || bootstrap::kubernetes::follow(Arc::clone(&of_endpoints));
    server.tasks.supervise("api-kubernetes-service", follow);
    let of_namespaces = Arc::clone(server);
    server.tasks.supervise("api-namespaces", move || bootstrap::follow_namespaces(Arc::clone(&of_namespaces)));
    let of_addresses = Arc::clone(server);
    server.tasks.supervise("api-addresses", move || bootstrap::addresses::follow(Arc::clone(&of_addresses)));
    let of_definitions = Arc::clone(server);
    server.tasks.supervise("api-custom-resources", move || cleanup::run(Arc::clone(&of_definitions)));
    let of_services = Arc::clone(server);
    server.tasks.supervise("api-availability", move || availability::run(Arc::clone(&of_services)));
    let of_local = Arc::clone(server);
    server.tasks.supervise("api-local-services", move || local::follow(Arc::clone(&of_local)));
    if server.usage.is_some() && server.kubelets.is_some() {
        let of_usage = Arc::clone(server);
        server.tasks.supervise("api-resource-metrics", move || usage::run(Arc::clone(&of_usage)));
    }
    let (of_identity, of_expired) = (Arc::clone(server), Arc::clone(server));
    server.tasks.supervise("api-identity", move || identity_lease::renew(Arc::clone(&of_identity)));
    server.tasks.supervise("api-identities", move || identity_lease::collect(Arc::clone(&of_expired)));
    if server.peers.is_some() {
        let of_peers = Arc::clone(server);
        server.tasks.supervise("api-peers", move || peers::follow(Arc::clone(&of_peers)));
    }
    if server.store.is_mirror() {
        let of_others = Arc::clone(server);
        let (of_ports, of_address) = (Arc::clone(server), Arc::clone(server));
        server.tasks.supervise("api-node-ports", move || bootstrap::node_ports::follow(Arc::clone(&of_ports)));
        server.tasks.supervise("api-other-servers", move || others::follow(Arc::clone(&of_others)));
        server.tasks.supervise("api-peer-address", move || peer_address::announce(Arc::clone(&of_address)));
    }
    if server.auth.issuer.is_some() {
        let of_tokens = Arc::clone(server);
        server.tasks.supervise("api-legacy-tokens", move || legacy_tokens::track(Arc::clone(&of_tokens)));
        if let Some(marks) = server.auth.uses.take_marks() {
            server.tasks.spawn("api-token-uses", OnPanic::Contain, legacy_tokens::mark(Arc::clone(server), marks));
        }
    }
    let chain = server.admission.clone();
    server.tasks.supervise("admission-files", move || admission::follow_files(chain.clone()));
    if let Some(control) = server.fairness.clone() {
        let of_objects = Arc::clone(server);
        server.tasks.supervise("api-flow-objects", move || fairness::follow(Arc::clone(&of_objects)));
        server.tasks.supervise("api-flow-seats", move || fairness::adjust(Arc::clone(&control)));
    }
    server.tasks.spawn("api-unlock", OnPanic::Contain, server.store.run_unlock());
    let store = server.store.clone();
    server.tasks.supervise("api-event-expiry", move || {
        let store = store.clone();
        async move { store.run_expiry().await }
    });
    server.health.steps.finish(&[
        StartStep::ExtensionsControllers,
        StartStep::IdentityLease,
        StartStep::IdentityLeaseCollection,
        StartStep::LegacyTokenTracking,
        StartStep::ServiceIpRepair,
        StartStep::LocalAvailability,
        StartStep::RemoteAvailability,
        StartStep::Autoregistration,
        StartStep::OpenApiV2,
        StartStep::OpenApiV3,
    ]);
}

/// Flow control: fixed limits in flight, or priority and fairness with their sum as the number of seats.
fn flow(config: &Config, metrics: &Metrics, watches: &Arc<Watches>) -> (Arc<dyn Flow>, Option<Arc<FlowControl>>) {
    let (reads, writes) = (config.reads_in_flight_max, config.writes_in_flight_max);
    if !config.priority_and_fairness {
        return (Arc::new(InFlight::new(reads, writes)), None);
    }
    let seats = u32::try_from(reads.saturating_add(writes)).unwrap_or(u32::MAX).max(1);
    let control = FlowControl::new(seats, metrics.registry(), &config.tasks);
    let (store, watches) = (config.store.clone(), Arc::clone(watches));
    let flow = Fairness::new(Arc::clone(&control), store, watches, config.request_timeout, metrics.registry());
    (Arc::new(flow), Some(control))
}

/// Handle of a running server. [`Running::shutdown`] ends the server; dropping the handle leaves it running until its runtime ends.
/// Through the handle, components of this process send requests without sockets ([`Running::in_process`]), wait for readiness, and
/// replace what may change at runtime: trusted CAs, token issuers and authorizers.
#[derive(Clone)]
pub struct Running {
    server: Arc<Server>,
    local_addr: Option<SocketAddr>,
}

impl Running {
    /// The bound address; `None` if the server does not listen.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local_addr
    }
    /// Starts another server with a store that was forked from this one's (`Store::fork`). Both share what they have in common, so
    /// that the second costs a fraction of the time and memory.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn fork(&self, config: Config) -> Result<Running, StartError> {
        ApiServer::start_like(Some(&self.server), Config { prepared: true, ..config }).await
    }
    /// Resolves when `/readyz` answers ok.
    pub async fn ready(&self) {
        let mut ready: watch::Receiver<bool> = self.server.health.subscribe();
        // The sender lives in the server, which this handle keeps.
        let _ = ready.wait_for(|r| *r).await;
    }
    /// A transport for components of this process: requests of this user take the whole request path, without sockets.
    /// `system:authenticated` is added to the user's groups if it is missing.
    pub fn in_process(&self, user: UserInfo) -> Arc<dyn Transport> {
        Arc::new(InProcess::new(Arc::clone(&self.server), user))
    }
    /// Adds a component of this process to `/readyz` and to the component statuses.
    pub fn register_component(&self, name: &'static str, check: ComponentCheck) {
        self.server.health.register(name, check);
    }
    /// Replaces the trusted CAs from the next request on, on open connections too, and publishes them for aggregated API servers.
    /// Only CAs that were configured at start can be replaced.
    ///
    /// # Errors
    /// A bundle cannot be parsed, or the CAs cannot be published. Bundles that were replaced before the error stay replaced.
    pub async fn trust(&self, trusted: &Trusted) -> Result<(), StartError> {
        let fault = |e: kelson_pki::PkiError| StartError::Tls(e.to_string());
        let authenticator = &self.server.auth.authenticator;
        if let Some(certificates) = &authenticator.certificates {
            certificates.trust(&trusted.client_ca_pem).map_err(fault)?;
        }
        if let Some(proxy) = &authenticator.front_proxy {
            proxy.trust(&trusted.request_header_ca_pem).map_err(fault)?;
        }
        if let Some(kubelets) = &self.server.kubelets {
            kubelets.trust(&trusted.kubelet_ca_pem).map_err(fault)?;
        }
        if let Some(peers) = &self.server.peers {
            peers.trust(&trusted.peer_ca_pem).map_err(|e| StartError::Tls(e.to_string()))?;
        }
        let own = bootstrap::client::SelfClient::new(&self.server);
        bootstrap::publish_cas(&own, &trusted.client_ca_pem, &trusted.request_header_ca_pem).await
    }
    /// Replaces the trusted token issuers, once the keys of all new ones are known.
    ///
    /// # Errors
    /// See [`IssuersError`]. Nothing changes then.
    pub async fn replace_issuers(&self, issuers: Vec<Arc<Issuer>>) -> Result<(), IssuersError> {
        self.server.auth.replace_issuers(issuers).await
    }
    /// Replaces the authorizers from the next request on. A webhook mode refers to its webhook by index.
    ///
    /// # Errors
    /// An authorizer's configuration is invalid. Nothing changes then.
    pub fn replace_authorizers(&self, modes: &[AuthorizationMode], webhooks: &[WebhookConfig]) -> Result<(), String> {
        self.server.auth.authorizer.replace(modes, webhooks)
    }
    /// The parts of the server; for tests and for components that read the store's log in this process.
    pub fn server(&self) -> &Arc<Server> {
        &self.server
    }
    /// Rejects new connections, ends watches, and waits a limited time for other requests and for audit and traces to be written. The
    /// store stays open, because its owner closes it.
    pub async fn shutdown(&self) {
        self.server.health.set_stopping();
        bootstrap::kubernetes::leave(&self.server).await;
        identity_lease::leave(&self.server).await;
        peer_address::leave(&self.server).await;
        self.server.tasks.shutdown(DRAIN_TIMEOUT).await;
        if let Some(audit) = &self.server.config.audit {
            audit.close().await;
        }
        if let Some(tracer) = &self.server.config.tracer {
            tracer.close().await;
        }
    }
}
