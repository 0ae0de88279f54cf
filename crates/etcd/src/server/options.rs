//! What a server is told, and what it calls itself.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use kelson_metrics::Registry;

/// The version that answers name: the newest release of etcd whose protocol this speaks. Clients compare it to learn what a
/// server can do.
pub const VERSION: &str = "3.6.8";
/// The version of the members together, and of the storage.
pub(super) const CLUSTER_VERSION: &str = "3.6.0";
/// The same without what changes with each release.
pub(super) const CLUSTER_MINOR: &str = "3.6";

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

/// A place where others connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Address and port; port 0 is any free one.
    Tcp(SocketAddr),
    /// A socket in the file system, readable by its owner alone. What lies in its place is removed.
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

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Where clients find it: a port of this machine or a file.
    pub address: Address,
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
        /// The address that was asked for.
        address: Address,
        /// What the system says.
        source: std::io::Error,
    },
    /// Certificates that are of no use.
    #[error("TLS: {0}")]
    Tls(String),
}
