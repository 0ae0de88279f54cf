//! The server: sockets, TLS, the calls of the protocol, and what is asked over plain HTTP.

mod calls;
mod grpc;
mod http;
mod listen;
mod metrics;
mod route;
mod streams;
#[cfg(test)]
mod tests;
mod tls;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kelson_metrics::Registry;
use kelson_tasks::{OnPanic, Tasks};

use crate::store::Store;
use listen::Listener;
use metrics::Metrics;

/// The version that answers name: the newest release of etcd whose protocol this speaks. Clients compare it to learn what a
/// server can do.
pub const VERSION: &str = "3.6.8";
/// The version of the members together, and of the storage.
const CLUSTER_VERSION: &str = "3.6.0";

/// What a server is told.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The member's name (`--name`).
    pub name: String,
    /// Where clients are served (`--listen-client-urls`).
    pub clients: Vec<Endpoint>,
    /// Where health and metrics alone are served (`--listen-metrics-urls`).
    pub metrics: Vec<Endpoint>,
    /// What the list of members says (`--advertise-client-urls`).
    pub client_urls: Vec<String>,
    /// What the list of members says (`--initial-advertise-peer-urls`); nobody listens there.
    pub peer_urls: Vec<String>,
    /// Certificates for endpoints with TLS.
    pub tls: Option<TlsFiles>,
    /// How often quiet watches hear how far they are.
    pub watch_progress_every: Duration,
    /// Requests of one connection at once (`--max-concurrent-streams`).
    pub streams_max: u32,
    /// Where metrics are kept.
    pub registry: Registry,
}

/// Where to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address and port; port 0 is any free one.
    pub address: SocketAddr,
    /// Whether TLS is spoken.
    pub tls: bool,
}

/// Files for TLS, in PEM. They are read again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and those between it and its authority (`--cert-file`).
    pub certificate: PathBuf,
    /// Its key (`--key-file`).
    pub key: PathBuf,
    /// Who signs for clients (`--trusted-ca-file`); with it, each client must show a certificate.
    pub client_authority: Option<PathBuf>,
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address that cannot be listened on.
    #[error("listen on {address}: {source}")]
    Bind {
        /// Which one.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// Certificates that are of no use.
    #[error("TLS: {0}")]
    Tls(String),
}

/// A running server; it ends with its group of tasks.
#[derive(Debug)]
pub struct Server {
    /// Where clients are served.
    pub clients: Vec<SocketAddr>,
    /// Where health and metrics are served.
    pub metrics: Vec<SocketAddr>,
}

/// What requests are answered from.
#[derive(Debug)]
struct Face {
    store: Store,
    options: ServerOptions,
    metrics: Metrics,
    tasks: Tasks,
}

impl Server {
    /// Listens, and serves from then on.
    ///
    /// # Errors
    /// An address that is taken, certificates that are of no use.
    pub async fn start(store: Store, options: ServerOptions, tasks: &Tasks) -> Result<Self, StartError> {
        let tls = match &options.tls {
            Some(files) => Some(tls::Acceptor::load(files.clone(), tasks).await?),
            None => None,
        };
        let bind = async |endpoints: &[Endpoint]| {
            let mut listeners = Vec::new();
            for endpoint in endpoints {
                let tls = if endpoint.tls { Some(tls.clone().ok_or_else(tls::missing)?) } else { None };
                listeners.push(Listener::bind(endpoint.address, tls).await?);
            }
            Ok::<_, StartError>(listeners)
        };
        let (clients, scraped) = (bind(&options.clients).await?, bind(&options.metrics).await?);
        let addresses = |listeners: &[Listener]| listeners.iter().map(Listener::address).collect();
        let server = Self { clients: addresses(&clients), metrics: addresses(&scraped) };
        let metrics = Metrics::new(&options.registry, store.shared());
        let face = Arc::new(Face { store, options, metrics, tasks: tasks.clone() });
        for (listener, whole) in clients.into_iter().map(|l| (l, true)).chain(scraped.into_iter().map(|l| (l, false))) {
            tasks.spawn_graceful("etcd-listen", OnPanic::EndProcess, listener.run(Arc::clone(&face), whole));
        }
        Ok(server)
    }
}
