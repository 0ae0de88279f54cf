//! TCP connections, and errors of connections as text.
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;

/// The timeout of a connection, including TLS.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// The idle time after which the kernel checks a connection.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Returns a connector for TCP.
pub(super) fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp
}

/// An error with its causes; hyper's own text alone says little.
pub(super) fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(s) = source {
        text.push_str(": ");
        text.push_str(&s.to_string());
        source = s.source();
    }
    text
}
