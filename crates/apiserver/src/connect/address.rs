//! Which addresses the server connects to on behalf of a client. An address is checked once and then dialled as it is: no
//! name is resolved a second time, when it might say something else (CVE-2020-8562).
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, ToSocketAddrs, lookup_host};

/// How long a connection is silent before the other machine is asked whether it is there, and time between two such questions.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Questions without an answer that end a connection.
const KEEP_ALIVES_MAX: u32 = 4;

/// Addresses that are the server's own world are not connected to: its loopback interface, its links, no address at all.
pub fn is_allowed(ip: IpAddr) -> bool {
    // `::ffff:127.0.0.1` is the loopback address in another spelling.
    match ip.to_canonical() {
        IpAddr::V4(a) => !(a.is_loopback() || a.is_link_local() || a.is_multicast() || a.is_unspecified()),
        IpAddr::V6(a) => {
            let link_local = a.segments()[0] & 0xffc0 == 0xfe80;
            !(a.is_loopback() || link_local || a.is_multicast() || a.is_unspecified())
        }
    }
}

/// Connects to a host by name or address. `loopback` says that the host is this machine itself, which alone may be at its
/// loopback address.
///
/// # Errors
/// When the name does not resolve, when any of its addresses is not allowed, when none of them answers.
pub async fn connect(host: &str, port: u16, loopback: bool) -> io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = lookup_host((host, port)).await?.collect();
    let refused = |ip: IpAddr| !(is_allowed(ip) || loopback && ip.to_canonical().is_loopback());
    if let Some(address) = addresses.iter().find(|a| refused(a.ip())) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("address {} not allowed", address.ip())));
    }
    // Tries them in order.
    dial(addresses.as_slice()).await
}

/// Connects, and sees to it that a machine which lost its power is noticed: logs that are followed say nothing for hours, and
/// the connection would look well for ever.
///
/// # Errors
/// When nobody answers at any of the addresses.
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
    fn own_addresses_are_not_connected_to() {
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
    async fn names_are_checked_by_what_they_resolve_to() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for host in ["localhost", "127.0.0.1"] {
            let refused = connect(host, port, false).await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{host}");
        }
        let tcp = connect("127.0.0.1", port, true).await.expect("the machine itself");
        assert!(SockRef::from(&tcp).keepalive().unwrap(), "a machine that is gone is noticed");
        assert_eq!(SockRef::from(&tcp).tcp_keepalive_time().unwrap(), KEEP_ALIVE);
        assert_eq!(connect("0.0.0.0", port, true).await.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
