//! What all requests share, and the context of one request. `start` builds the parts; the rooms above read them.
pub mod admission;
pub mod allocations;
pub mod authorizers;
pub mod context;
pub mod conversion;
pub mod dialer;
pub mod documents;
pub mod fairness;
pub mod flow;
pub mod identity;
pub mod identity_metrics;
pub mod identity_webhooks;
pub mod impersonation_metrics;
pub mod issued_metrics;
pub mod issuer_uses;
pub mod log_limit;
pub mod metrics;
pub mod objects;
pub mod pool;
pub mod readiness;
pub mod start_steps;
pub mod stream_metrics;
pub mod token_uses;
pub mod watches;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use kelson_admission::Chain;
use kelson_auth::{Authorizer, Objects};
use kelson_flowcontrol::FlowControl;
use kelson_meta::Clock;
use kelson_resources::GatedFields;
use kelson_store::Store;
use kelson_tasks::{FairLane, Tasks};
use tokio::sync::Semaphore;

use allocations::Services;
use dialer::KubeletDialer;
use documents::Documents;
use flow::Flow;
use identity::Auth;
use log_limit::LogLimit;
use metrics::Metrics;
use pool::Pool;
use readiness::Readiness;
use watches::Watches;

use crate::aggregate::registry::Aggregation;
use crate::catalog::Catalog;
use crate::config::Config;
use crate::custom::registrar::Definitions;
use crate::peers::server::PeerServers;
use crate::request::routes::Routes;
use crate::usage::ResourceMetrics;

/// A request body or a stored object of this size (bytes) or more is large: processing it takes a core for so long that it must not
/// happen on a runtime thread.
pub const HEAVY_BYTES_MIN: usize = 64 * 1024;

/// The parts that all requests of a server share, from its configuration to its limits. `start` builds it once; handlers reach it
/// through the request's context, background tasks through an `Arc`. Parts that change at runtime have their own locks, so the struct
/// itself never changes.
pub struct Server {
    /// The server's configuration.
    pub config: Config,
    /// The storage of all objects.
    pub store: Store,
    /// The served kinds; custom resource definitions change it.
    pub catalog: Arc<Catalog>,
    /// Custom resource definitions.
    pub definitions: Definitions,
    /// Group versions that aggregated API servers serve.
    pub aggregation: Aggregation,
    /// The targets of resource requests.
    pub routes: Arc<Routes>,
    /// The store, as authentication, authorization and admission read it.
    pub objects: Arc<dyn Objects>,
    /// Fields of disabled features.
    pub gated: GatedFields,
    /// The admission chain that every write passes.
    pub admission: Chain,
    /// Decides whether requests are allowed.
    pub authorizer: Arc<dyn Authorizer>,
    /// The parts of authentication and authorization, for reviews and token requests.
    pub auth: Auth,
    /// The other API servers on the same storage; `None` if requests are not forwarded to them.
    pub peers: Option<Arc<PeerServers>>,
    /// The wall clock of timestamps and expiry.
    pub clock: Arc<dyn Clock>,
    /// Time of the start.
    pub started_at: Timestamp,
    /// Allocates cluster IPs and node ports.
    pub services: Services,
    /// Connects to kubelets; `None` if it is not configured.
    pub kubelets: Option<KubeletDialer>,
    /// The metrics of `/metrics`.
    pub metrics: Metrics,
    /// The resource usage of nodes and pods; `None` if the server does not serve it.
    pub usage: Option<ResourceMetrics>,
    /// The state of `/readyz` and `/livez`.
    pub health: Readiness,
    /// Cached discovery documents.
    pub discovery: Documents,
    /// Cached OpenAPI documents.
    pub openapi: Documents,
    /// Flow control of requests.
    pub flow: Arc<dyn Flow>,
    /// Priority and fairness, if it is enabled.
    pub fairness: Option<Arc<FlowControl>>,
    /// Numbers of open watches.
    pub watches: Arc<Watches>,
    /// Limit of the bytes of request bodies.
    pub bodies: Arc<Pool>,
    /// Limit of the bytes of complete responses that are being sent.
    pub answers: Arc<Pool>,
    /// The threads for heavy requests.
    pub heavy: Arc<FairLane>,
    /// Pieces of lists that may be made at the same time: one for each thread of the runtime.
    pub list_pieces: Arc<Semaphore>,
    /// Limit of connections to kubelets, pods and services.
    pub backends: Arc<Pool>,
    /// Rate limit of log lines about rejected credentials and connections.
    pub rejections: LogLimit,
    /// Background work, connections and streams.
    pub tasks: Tasks,
    /// The bound address, once the server listens.
    pub listens_at: OnceLock<SocketAddr>,
}

impl Server {
    /// The port under which other servers and clients reach this one: the advertised port, else the bound one.
    pub fn port(&self) -> u16 {
        const DEFAULT: u16 = 6443;
        match self.config.advertise_port {
            0 => self.listens_at.get().map_or(DEFAULT, SocketAddr::port),
            given => given,
        }
    }

    /// Host and port under which clients outside the cluster reach the server.
    pub fn external_address(&self) -> String {
        let host = self.config.external_host.as_deref().filter(|host| !host.is_empty());
        match (host, self.config.advertise_address) {
            // A host with a port is used unchanged.
            (Some(host), _) if host.rsplit_once(':').is_some_and(|(host, port)| names_a_port(host, port)) => {
                host.to_owned()
            }
            (Some(host), _) if host.contains(':') => format!("[{host}]:{}", self.port()),
            (Some(host), _) => format!("{host}:{}", self.port()),
            (None, IpAddr::V4(address)) => format!("{address}:{}", self.port()),
            (None, IpAddr::V6(address)) => format!("[{address}]:{}", self.port()),
        }
    }
}

/// Whether the strings before and after a colon are a host and a port.
fn names_a_port(host: &str, port: &str) -> bool {
    port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']'))
}
