//! Start: the one file that knows every part. It builds them from the configuration, joins them, and ends them.
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kelson_auth::authenticate::jwt::Issuer;
use kelson_auth::authorize::config::WebhookConfig;
use kelson_auth::{Objects, UserInfo};
use kelson_flowcontrol::FlowControl;
use kelson_resources::GatedFields;
use kelson_tasks::{FairLane, OnPanic};
use kelson_transport::Transport;
use kelson_webhook::{Credentials, ServiceResolver, WebhookClient};
use tokio::sync::watch;

use crate::aggregate::registry::Aggregation;
use crate::aggregate::remote::Means;
use crate::bootstrap;
use crate::bootstrap::own::Own;
use crate::catalog::Catalog;
use crate::config::{AuthorizationMode, Config, StartError, Trusted};
use crate::custom::registrar::Definitions;
use crate::extend::{availability, cleanup, fairness, identity_lease, legacy_tokens, local, others};
use crate::front::inprocess::InProcess;
use crate::front::listen;
use crate::request::routes::Routes;
use crate::shared::allocations::Services;
use crate::shared::conversion::ConversionWebhooks;
use crate::shared::dialer::KubeletDialer;
use crate::shared::documents::Documents;
use crate::shared::fairness::Fairness;
use crate::shared::flow::{Flow, InFlight};
use crate::shared::log_limit::LogLimit;
use crate::shared::metrics::Metrics;
use crate::shared::objects::StoreObjects;
use crate::shared::readiness::{ComponentCheck, Readiness};
use crate::shared::room::Room;
use crate::shared::watches::Watches;
use crate::shared::{Server, admission, identity};
use crate::write::quota::Charges;

/// Bytes of all answers that are there whole and wait for their readers.
const ANSWERS_BYTES_MAX: usize = 128 << 20;
/// Requests that compute for long, at once: as many as a small machine has cores, and one more of nodes and the control plane.
const HEAVY_WIDTH: usize = 2;
const HEAVY_RESERVE: usize = 1;
/// Bytes of all requests' bodies together. What a body is decoded to takes some twenty times as much at worst.
const BODIES_BYTES_MAX: usize = 32 * 1024 * 1024;
/// How long a shutdown waits for requests that are under way.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// What starts a server; see [`ApiServer::start`].
pub struct ApiServer;

impl ApiServer {
    /// Builds a server, makes the cluster's own objects, and serves. Returns as soon as requests are accepted; see
    /// [`Running::ready`].
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(config: Config) -> Result<Running, StartError> {
        Self::start_like(None, config).await
    }

    /// `model` is a running server whose store was copied for this one.
    async fn start_like(model: Option<&Server>, config: Config) -> Result<Running, StartError> {
        let store = config.store.clone();
        let objects: Arc<dyn Objects> = Arc::new(StoreObjects::new(store.clone()));
        let catalog = Arc::new(Catalog::serving(&config.runtime_config, &config.feature_gates));
        let tasks = config.tasks.clone();
        let metrics = Metrics::new(store.clone(), Arc::clone(&config.feature_gates));
        let auth = identity::auth(&config, &objects, metrics.registry())?;
        let watches = Arc::new(Watches::default());
        let (flow, fairness) = flow(&config, &metrics, &watches);
        metrics.show_in_flight(Arc::clone(&flow));
        if let Some(audit) = &config.audit {
            audit.register(metrics.registry());
        }
        let charges = Arc::new(Charges::default());
        let own = Arc::new(Own::default());
        let ways = admission::Ways { charges: charges.clone(), namespaces: own.clone(), own: own.clone() };
        let admission = admission::chain(&config, &objects, &auth, &catalog, metrics.admission(), ways)?;
        let routes = Arc::new(Routes::new(Arc::clone(&catalog)));
        let resolver: Arc<dyn ServiceResolver> = Arc::new(admission::Endpoints(Arc::clone(&objects)));
        let webhooks = ConversionWebhooks(WebhookClient::new(Arc::clone(&resolver), Credentials::default()));
        let means = Means { resolver, certificate: config.front_proxy_client.clone(), tasks: tasks.clone() };
        let server = Arc::new(Server {
            aggregation: Aggregation::new(Arc::clone(&routes), means),
            routes,
            definitions: Definitions::new(Arc::clone(&catalog), store.clone(), Some(Arc::new(webhooks))),
            catalog,
            objects,
            gated: GatedFields::of(&config.feature_gates),
            admission,
            authorizer: Arc::clone(&auth.authorizer) as _,
            auth,
            clock: Arc::clone(&config.clock),
            started_at: config.clock.now(),
            services: Services::new(&config, &store)?,
            kubelets: config.kubelet.as_ref().map(KubeletDialer::new).transpose()?,
            metrics,
            health: Readiness::default(),
            discovery: Documents::default(),
            openapi: Documents::default(),
            flow,
            fairness,
            watches,
            bodies: Room::new(BODIES_BYTES_MAX),
            answers: Room::new(ANSWERS_BYTES_MAX),
            heavy: FairLane::new("heavy requests", HEAVY_WIDTH, HEAVY_RESERVE),
            backends: Room::new(config.backends_max),
            rejections: LogLimit::default(),
            tasks,
            store,
            config,
            listens_at: OnceLock::new(),
        });
        charges.connect(&server);
        own.connect(&server);
        load(&server, model);
        let listener = listen::Listener::bind(&server).await?;
        let local_addr = listener.as_ref().map(listen::Listener::local_addr);
        // Boxed: many requests side by side, each with all its steps, are more than the stack of a runtime's thread should hold.
        Box::pin(bootstrap::run_or_keep_trying(&server)).await?;
        if server.fairness.is_some() {
            fairness::begin(&server).await;
        }
        server.health.set_ready();
        if let Some(listener) = listener {
            server.tasks.spawn("api-listener", OnPanic::EndProcess, listener.run(Arc::clone(&server)));
        }
        keep_running(&server);
        Ok(Running { server, local_addr })
    }
}

/// Reads what the store holds of what is served, and to whom.
fn load(server: &Arc<Server>, model: Option<&Server>) {
    server.services.connect(bootstrap::addresses::Book::of(server));
    server.auth.follow(&server.store, &server.tasks);
    server.definitions.load(model.map(|model| &model.definitions));
    server.aggregation.load(&server.store);
}

/// Starts what the server does of itself, for as long as it runs.
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
    let (of_identity, of_expired) = (Arc::clone(server), Arc::clone(server));
    server.tasks.supervise("api-identity", move || identity_lease::renew(Arc::clone(&of_identity)));
    server.tasks.supervise("api-identities", move || identity_lease::collect(Arc::clone(&of_expired)));
    if server.store.is_mirror() {
        let of_others = Arc::clone(server);
        let of_ports = Arc::clone(server);
        server.tasks.supervise("api-node-ports", move || bootstrap::node_ports::follow(Arc::clone(&of_ports)));
        server.tasks.supervise("api-other-servers", move || others::follow(Arc::clone(&of_others)));
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
}

/// Fixed limits, or their sum shared by priority levels.
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

/// A running server. It ends by [`Running::shutdown`]; dropping the handle leaves it running until its runtime ends.
#[derive(Clone)]
pub struct Running {
    server: Arc<Server>,
    local_addr: Option<SocketAddr>,
}

impl Running {
    /// The bound address, if there is one.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local_addr
    }
    /// Starts another server with a store that began as a copy of this one's (`Store::fork`). What both have alike is shared:
    /// it takes a part of the time and of the memory.
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
    /// A transport for components of this process: the whole request path under this identity, without sockets.
    /// `system:authenticated` is added to the groups where it is missing.
    pub fn in_process(&self, user: UserInfo) -> Arc<dyn Transport> {
        Arc::new(InProcess::new(Arc::clone(&self.server), user))
    }
    /// Has a component of this process shown in `/readyz` and in the component statuses.
    pub fn register_component(&self, name: &'static str, check: ComponentCheck) {
        self.server.health.register(name, check);
    }
    /// Trusts other authorities from the next request on, on open connections too, and tells extension servers. Only what was
    /// configured at start is replaced.
    ///
    /// # Errors
    /// When a bundle cannot be read, or extension servers cannot be told: what was taken up by then stays.
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
        let own = bootstrap::client::SelfClient::new(&self.server);
        bootstrap::publish_authorities(&own, &trusted.client_ca_pem, &trusted.request_header_ca_pem).await
    }
    /// Believes tokens of these issuers and no others, once their keys are known.
    ///
    /// # Errors
    /// An issuer that cannot be asked for its keys, or that is the cluster's own; nothing changes then.
    pub async fn replace_issuers(&self, issuers: Vec<Arc<Issuer>>) -> Result<(), String> {
        self.server.auth.replace_issuers(issuers).await
    }
    /// Has these authorizers decide from the next request on; a mode names its webhook by its place.
    ///
    /// # Errors
    /// What is wrong with one of them; nothing changes then.
    pub fn replace_authorizers(&self, modes: &[AuthorizationMode], webhooks: &[WebhookConfig]) -> Result<(), String> {
        self.server.auth.authorizer.replace(modes, webhooks)
    }
    /// What the server is made of; for tests and for components that read the store's log in this process.
    pub fn server(&self) -> &Arc<Server> {
        &self.server
    }
    /// Refuses new connections, ends watches, waits a while for the rest, and for what audit and traces have still to write. The store stays open: it is its owner's.
    pub async fn shutdown(&self) {
        self.server.health.set_stopping();
        bootstrap::kubernetes::leave(&self.server).await;
        identity_lease::leave(&self.server).await;
        self.server.tasks.shutdown(DRAIN_TIMEOUT).await;
        if let Some(audit) = &self.server.config.audit {
            audit.close().await;
        }
        if let Some(tracer) = &self.server.config.tracer {
            tracer.close().await;
        }
    }
}
