//! The backend of a service: the address of an endpoint, or an external host name.
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::{TcpStream, lookup_host};

/// The destination of a connection to a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The address of a ready endpoint.
    Address(SocketAddr),
    /// The external name of a service of type `ExternalName`, and the requested port.
    Name(String, u16),
}

impl From<SocketAddr> for Backend {
    fn from(address: SocketAddr) -> Self {
        Self::Address(address)
    }
}

impl fmt::Display for Backend {
    /// Formats the backend as the host and port of a URL.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name, port) => match name.parse::<IpAddr>() {
                Ok(ip) => SocketAddr::new(ip, *port).fmt(f),
                Err(_) => write!(f, "{name}:{port}"),
            },
        }
    }
}

impl Backend {
    /// Connects to the address, or to the first address of the name that accepts a connection.
    ///
    /// # Errors
    /// Returns `dial tcp …`, in the words of Go's dialer.
    pub async fn dial(&self) -> io::Result<TcpStream> {
        let addresses: Vec<SocketAddr> = match self {
            Self::Address(address) => vec![*address],
            Self::Name(name, port) => match lookup_host((name.as_str(), *port)).await {
                Ok(found) => found.collect(),
                Err(_) => Vec::new(),
            },
        };
        let mut failed = match self {
            Self::Name(name, _) => io::Error::other(format!("dial tcp: lookup {name}: no such host")),
            Self::Address(address) => io::Error::other(format!("dial tcp {address}: no address")),
        };
        for address in addresses {
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = io::Error::other(format!("dial tcp {address}: connect: {}", reason(&error))),
            }
        }
        Err(failed)
    }
}

/// Returns the operating system's message without the error number.
pub(crate) fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::ConnectionReset => "connection reset by peer".to_owned(),
        io::ErrorKind::HostUnreachable => "no route to host".to_owned(),
        io::ErrorKind::NetworkUnreachable => "network is unreachable".to_owned(),
        io::ErrorKind::TimedOut => "connection timed out".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_are_shown_as_in_urls() {
        for (backend, want) in [
            (Backend::from(SocketAddr::from(([10, 0, 0, 1], 443))), "10.0.0.1:443"),
            (Backend::Name("api.example.com".into(), 8443), "api.example.com:8443"),
            (Backend::Name("fd00::1".into(), 1), "[fd00::1]:1"),
        ] {
            assert_eq!(backend.to_string(), want);
        }
    }

    #[tokio::test]
    async fn a_name_is_looked_up() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("its address").port();
        Backend::Name("localhost".into(), port).dial().await.expect("somebody listens");
        drop(listener);
        let refused = Backend::Name("127.0.0.1".into(), port).dial().await.expect_err("nobody listens any more");
        assert_eq!(refused.to_string(), format!("dial tcp 127.0.0.1:{port}: connect: connection refused"));
    }
}
