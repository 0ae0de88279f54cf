//! The addresses on which the test server may listen.
use std::net::SocketAddr;
use std::path::PathBuf;

/// The address of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A loopback address; port 0 takes a free one. All users of the machine can access it.
    Tcp(SocketAddr),
    /// A unix socket, accessible to its owner only.
    Unix(PathBuf),
}
