//! What all requests share, and what the steps of one request share. Parts are made by `start` and read from everywhere above.
pub mod admission;
pub mod allocations;
pub mod authorizers;
pub mod context;
pub mod conversion;
pub mod dialer;
pub mod documents;
pub mod elsewhere;
pub mod fairness;
pub mod flow;
pub mod identity;
pub mod identity_metrics;
pub mod impersonation_metrics;
pub mod issued_metrics;
pub mod issuer_uses;
pub mod log_limit;
pub mod metrics;
pub mod objects;
pub mod readiness;
pub mod room;
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

use allocations::Services;
use dialer::KubeletDialer;
use documents::Documents;
use flow::Flow;
use identity::Auth;
use log_limit::LogLimit;
use metrics::Metrics;
use readiness::Readiness;
use room::Room;
use watches::Watches;

use crate::aggregate::registry::Aggregation;
use crate::catalog::Catalog;
use crate::config::Config;
use crate::custom::registrar::Definitions;
use crate::request::routes::Routes;

/// Bytes from which on a request's body or a stored object is large: what is done with it takes a core for so long that it is done off
/// the runtime's threads.
pub const HEAVY_BYTES_MIN: usize = 64 * 1024;

/// Everything requests share.
pub struct Server {
    /// What the server was told.
    pub config: Config,
    /// Where objects are kept.
    pub store: Store,
    /// What is served, changed by definitions of kinds.
    pub catalog: Arc<Catalog>,
    /// Kinds that users define.
    pub definitions: Definitions,
    /// Group versions that other servers answer for.
    pub aggregation: Aggregation,
    /// Where requests for resources end.
    pub routes: Arc<Routes>,
    /// The store as others read it.
    pub objects: Arc<dyn Objects>,
    /// Fields of features that are off.
    pub gated: GatedFields,
    /// The chain that each write passes.
    pub admission: Chain,
    /// Decides what a user may do.
    pub authorizer: Arc<dyn Authorizer>,
    /// What authentication and authorization are built of, for reviews and token requests.
    pub auth: Auth,
    /// The wall clock of timestamps and expiry.
    pub clock: Arc<dyn Clock>,
    /// When it was started.
    pub started_at: Timestamp,
    /// Cluster IPs and node ports.
    pub services: Services,
    /// The way to kubelets.
    pub kubelets: Option<KubeletDialer>,
    /// What `/metrics` tells.
    pub metrics: Metrics,
    /// What `/readyz` and `/livez` tell.
    pub health: Readiness,
    /// Discovery's documents, made anew when the catalog changes.
    pub discovery: Documents,
    /// OpenAPI's documents, made anew when the catalog changes.
    pub openapi: Documents,
    /// Who may run when.
    pub flow: Arc<dyn Flow>,
    /// Priority and fairness, where requests are sorted by it.
    pub fairness: Option<Arc<FlowControl>>,
    /// What clients watch.
    pub watches: Arc<Watches>,
    /// Bytes of requests' bodies.
    pub bodies: Arc<Room>,
    /// Bytes of answers that are there whole and are being sent.
    pub answers: Arc<Room>,
    /// The threads of requests that compute for long.
    pub heavy: Arc<FairLane>,
    /// Connections to kubelets, pods and services.
    pub backends: Arc<Room>,
    /// How often rejected credentials are told in the log.
    pub rejections: LogLimit,
    /// Background work, connections and streams.
    pub tasks: Tasks,
    /// Where it listens, once it does.
    pub listens_at: OnceLock<SocketAddr>,
}

impl Server {
    /// The port at which others reach it: as told, else the one that it was given.
    pub fn port(&self) -> u16 {
        const DEFAULT: u16 = 6443;
        match self.config.advertise_port {
            0 => self.listens_at.get().map_or(DEFAULT, SocketAddr::port),
            given => given,
        }
    }

    /// Where clients from elsewhere reach it: host and port.
    pub fn external_address(&self) -> String {
        let host = self.config.external_host.as_deref().filter(|host| !host.is_empty());
        match (host, self.config.advertise_address) {
            // One that names a port is taken as it is.
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

/// Whether what stands before and behind a colon are a host and a port.
fn names_a_port(host: &str, port: &str) -> bool {
    port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']'))
}
