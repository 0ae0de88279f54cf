//! Options of a server, and its version.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use kelson_metrics::Registry;

/// The reported version: the newest release of etcd whose protocol this implements. Clients compare it to find out what
/// a server supports.
pub const VERSION: &str = "3.6.8";
/// The cluster version, and that of the storage.
pub(super) const CLUSTER_VERSION: &str = "3.6.0";
/// The cluster version without the patch release.
pub(super) const CLUSTER_MINOR: &str = "3.6";

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The name of the member (`--name`).
    pub name: String,
    /// The endpoints for clients (`--listen-client-urls`).
    pub clients: Vec<Endpoint>,
    /// The endpoints for health and metrics only (`--listen-metrics-urls`).
    pub metrics: Vec<Endpoint>,
    /// The client URLs in the member list (`--advertise-client-urls`).
    pub client_urls: Vec<String>,
    /// The peer URLs in the member list (`--initial-advertise-peer-urls`); they are not served.
    pub peer_urls: Vec<String>,
    /// The certificates for endpoints with TLS.
    pub tls: Option<TlsFiles>,
    /// The interval of progress notifications for idle watches.
    pub watch_progress_every: Duration,
    /// The maximum number of concurrent requests on a connection (`--max-concurrent-streams`).
    pub streams_max: u32,
    /// The registry for metrics.
    pub registry: Registry,
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// IP address and port; port 0 takes any free port.
    Tcp(SocketAddr),
    /// A Unix socket with access for its owner only. An existing file at the path is removed.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// An endpoint to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The address to bind, without the scheme.
    pub address: Address,
    /// Whether it uses TLS.
    pub tls: bool,
}

/// TLS files in PEM format. They are read again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate with its intermediate certificates (`--cert-file`).
    pub certificate: PathBuf,
    /// The server's key (`--key-file`).
    pub key: PathBuf,
    /// The CA of client certificates (`--trusted-ca-file`); if set, clients must present a certificate.
    pub client_authority: Option<PathBuf>,
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be bound.
    #[error("listen on {address}: {source}")]
    Bind {
        /// The requested address.
        address: Address,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The certificates are invalid.
    #[error("TLS: {0}")]
    Tls(String),
}
