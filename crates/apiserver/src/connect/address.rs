//! Checks which addresses the server connects to for clients. An address is checked once and then dialed; names are not resolved a
//! second time, when the result might differ (CVE-2020-8562).
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, ToSocketAddrs, lookup_host};

/// Idle time before keep-alive probes, and their interval.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Unanswered probes that end a connection.
const KEEP_ALIVES_MAX: u32 = 4;

/// Whether an address may be connected to: not loopback, link-local, multicast or unspecified addresses.
pub fn is_allowed(ip: IpAddr) -> bool {
    // `::ffff:127.0.0.1` is another notation of a loopback address.
    match ip.to_canonical() {
        IpAddr::V4(a) => !(a.is_loopback() || a.is_link_local() || a.is_multicast() || a.is_unspecified()),
        IpAddr::V6(a) => {
            let link_local = a.segments()[0] & 0xffc0 == 0xfe80;
            !(a.is_loopback() || link_local || a.is_multicast() || a.is_unspecified())
        }
    }
}

/// Connects to a host by name or address. `loopback`: the host is this machine, whose address may be a loopback address.
///
/// # Errors
/// The name cannot be resolved, one of its addresses is not allowed, or none accepts the connection.
pub async fn connect(host: &str, port: u16, loopback: bool) -> io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = lookup_host((host, port)).await?.collect();
    let refused = |ip: IpAddr| !(is_allowed(ip) || loopback && ip.to_canonical().is_loopback());
    if let Some(address) = addresses.iter().find(|a| refused(a.ip())) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("address {} not allowed", address.ip())));
    }
    // Tries the addresses in order.
    dial(addresses.as_slice()).await
}

/// Connects with keep-alive, so that the loss of the other machine is noticed. Followed logs may be silent for hours, and the
/// connection would otherwise look alive forever.
///
/// # Errors
/// No address accepts the connection.
pub async fn dial(addresses: impl ToSocketAddrs) -> io::Result<TcpStream> {
    let tcp = TcpStream::connect(addresses).await?;
    let keep = TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE).with_retries(KEEP_ALIVES_MAX);
    SockRef::from(&tcp).set_tcp_keepalive(&keep)?;
    Ok(tcp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_are_not_allowed() {
        for bad in [
            "127.0.0.1",
            "169.254.169.254",
            "0.0.0.0",
            "::1",
            "fe80::1",
            "224.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
        ] {
            assert!(!is_allowed(bad.parse().unwrap()), "{bad}");
        }
        assert!(is_allowed("10.42.0.7".parse().unwrap()));
    }

    #[tokio::test]
    async fn names_are_checked_by_their_resolved_addresses() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for host in ["localhost", "127.0.0.1"] {
            let refused = connect(host, port, false).await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{host}");
        }
        let tcp = connect("127.0.0.1", port, true).await.expect("this machine");
        assert!(SockRef::from(&tcp).keepalive().unwrap(), "keep-alive is on");
        assert_eq!(SockRef::from(&tcp).tcp_keepalive_time().unwrap(), KEEP_ALIVE);
        assert_eq!(connect("0.0.0.0", port, true).await.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
