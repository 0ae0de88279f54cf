//! Where the server of clusters may listen.
use std::net::SocketAddr;
use std::path::PathBuf;

/// Where the server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A loopback address; port 0 takes a free one. Whoever has an account on the machine may ask.
    Tcp(SocketAddr),
    /// A socket that its owner alone may use.
    Unix(PathBuf),
}
