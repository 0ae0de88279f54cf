//! Time-outs of the kernel's connection tracking, set as kube-proxy sets them. The kernel forgets a half-closed connection after a
//! minute, while programs may use it for longer; what they send then is no longer translated, and the other end resets it.

use std::io;
use std::time::Duration;

use kelson_net::sysctl;
use kelson_tasks::FILES;

/// Time-outs of TCP connections; zero leaves the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpTimeouts {
    /// The time without a packet after which an established connection is forgotten
    /// (`--conntrack-tcp-timeout-established`).
    pub established: Duration,
    /// The same of one that one end has closed (`--conntrack-tcp-timeout-close-wait`).
    pub close_wait: Duration,
}

impl Default for TcpTimeouts {
    fn default() -> Self {
        Self { established: Duration::from_secs(24 * 3600), close_wait: Duration::from_secs(3600) }
    }
}

impl TcpTimeouts {
    /// Sets them in this network namespace. What cannot be set is logged: connections work, and are forgotten as the kernel says.
    pub(crate) async fn apply(self) {
        let settings = [
            ("nf_conntrack_tcp_timeout_established", self.established),
            ("nf_conntrack_tcp_timeout_close_wait", self.close_wait),
        ];
        for (name, timeout) in settings.into_iter().filter(|(_, timeout)| !timeout.is_zero()) {
            let written = FILES
                .run(move || sysctl::ensure(&format!("net/netfilter/{name}"), &timeout.as_secs().to_string()))
                .await;
            if let Err(error) = written.unwrap_or_else(|e| Err(io::Error::other(e))) {
                tracing::warn!(%error, setting = name, "setting a time-out of connection tracking failed; the kernel's applies");
            }
        }
    }
}
