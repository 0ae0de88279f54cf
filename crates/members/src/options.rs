//! What a server says about its member.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kelson_meta::Clock;
use kelson_pki::San;
use kelson_tasks::Tasks;

use crate::layout::Layout;

/// The port of peers, as etcd's default.
pub const PEER_PORT: u16 = 2380;
/// The port of clients, as etcd's default.
pub const CLIENT_PORT: u16 = 2379;

/// The options of a member. What is `None` keeps the value of the settings on disk.
#[derive(Clone)]
pub struct MemberOptions {
    /// The data directory of the server.
    pub data_dir: PathBuf,
    /// `--etcd-binary`; without it `DIR/bin/etcd`, then PATH.
    pub binary: Option<PathBuf>,
    /// The name of the member: that of the server's node.
    pub name: String,
    /// The address at which other members reach this one, and on which it listens.
    pub peer_address: IpAddr,
    /// Whether the user gave that address. A default that differs from the settings is ignored.
    pub peer_address_given: bool,
    /// `--etcd-peer-port`.
    pub peer_port: Option<u16>,
    /// `--etcd-client-port`, on the loopback address.
    pub client_port: Option<u16>,
    /// `--quota-backend-bytes`; 0 is etcd's default, 2 GiB.
    pub quota_bytes: u64,
    /// The group of the member's tasks. The member ends by [`crate::Member::shutdown`], not with the group.
    pub tasks: Tasks,
    /// The clock of certificates.
    pub clock: Arc<dyn Clock>,
}

impl MemberOptions {
    /// Returns the files of the member.
    pub fn layout(&self) -> Layout {
        Layout::new(&self.data_dir)
    }

    /// Returns the peer URL by the flags.
    pub(crate) fn peer_url(&self) -> String {
        peer_url(SocketAddr::new(self.peer_address, self.peer_port.unwrap_or(PEER_PORT)))
    }

    /// Returns the directory with binaries that an administrator installs for Kelson, `DIR/bin`.
    pub(crate) fn bin_dir(&self) -> PathBuf {
        self.data_dir.join("bin")
    }
}

/// Returns the URL of a peer address.
pub fn peer_url(address: SocketAddr) -> String {
    format!("https://{address}")
}

/// Splits a peer URL, `https://HOST:PORT`, into host (an IPv6 address without brackets) and port; `None` for anything else.
pub(crate) fn host_and_port(url: &str) -> Option<(String, u16)> {
    let authority = url.strip_prefix("https://")?.trim_end_matches('/');
    let (host, port) = authority.rsplit_once(':')?;
    let is_address = host.starts_with('[') && host.ends_with(']');
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_valid = !host.is_empty() && !host.contains(['/', '@', '?', '#']) && (is_address || !host.contains(':'));
    is_valid.then_some((host.to_owned(), port.parse().ok()?))
}

/// Returns the names in a member's certificates for peers: its address and the loopback addresses, from which it may connect.
pub(crate) fn peer_names(peer_url: &str) -> Vec<San> {
    let mut names = loopback_names();
    if let Some((host, _)) = host_and_port(peer_url) {
        let own = host.parse().map_or(San::Dns(host), San::Ip);
        if !names.contains(&own) {
            names.insert(0, own);
        }
    }
    names
}

/// Returns the names in a member's certificate for clients, which are on the same machine.
pub(crate) fn loopback_names() -> Vec<San> {
    vec![
        San::Dns("localhost".to_owned()),
        San::Ip(IpAddr::from([127, 0, 0, 1])),
        San::Ip(IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])),
    ]
}

/// Returns whether a path exists. Blocks.
#[allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]
pub(crate) fn is_there(path: &Path) -> bool {
    path.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_urls_have_a_host_and_a_port() {
        for (url, want) in [
            ("https://10.0.0.1:2380", Some(("10.0.0.1", 2380))),
            ("https://[fd00::1]:2380", Some(("fd00::1", 2380))),
            ("https://etcd.example.com:1/", Some(("etcd.example.com", 1))),
            ("http://10.0.0.1:2380", None),
            ("https://10.0.0.1", None),
            ("https://fd00::1:2380", None),
            ("https://a@b:1", None),
            ("https://:1", None),
            ("https://a:99999", None),
        ] {
            assert_eq!(host_and_port(url), want.map(|(host, port)| (host.to_owned(), port)), "{url}");
        }
        assert_eq!(peer_url("[fd00::1]:2380".parse().unwrap()), "https://[fd00::1]:2380");
        assert_eq!(peer_names("https://127.0.0.1:1").len(), 3);
        assert_eq!(peer_names("https://a.b:1")[0], San::Dns("a.b".to_owned()));
    }
}
