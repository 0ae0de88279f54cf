//! The machine's name and address, and addresses of a range by number.
#![allow(clippy::disallowed_methods, reason = "waits for the network before there is a runtime")]

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ipnet::IpNet;
use kelson_meta::is_dns1123_subdomain;

use crate::args::HostArgs;

/// This machine as a node, from flags and the host's own settings.
#[derive(Clone, Debug)]
pub struct NodeIdentity {
    /// The name of the Node object.
    pub name: String,
    pub address: IpAddr,
}

impl NodeIdentity {
    /// Returns the values of the flags, otherwise those of the host.
    pub fn of(args: &HostArgs) -> anyhow::Result<Self> {
        let name = args.node_name.clone().map_or_else(name, Ok)?;
        if let Err(why) = is_dns1123_subdomain(&name) {
            bail!("--node-name {name:?}: {}", why.join(", "));
        }
        Ok(Self { name, address: args.node_ip.unwrap_or_else(address) })
    }
}

/// Returns the host name in the form of a Node's name.
pub fn name() -> anyhow::Result<String> {
    let name = kelson_platform::process::host_name().trim().to_lowercase();
    anyhow::ensure!(!name.is_empty(), "the host name is not available");
    Ok(name)
}

/// The time limit of [`wait_for_route`]. DHCP and wireless networks take several seconds, at most one minute as a rule.
const ROUTE_LIMIT: Duration = Duration::from_secs(60);
/// The pause between two looks at the routes.
const ROUTE_PAUSE: Duration = Duration::from_millis(500);

/// Waits until this machine has a default route, unless a flag names the node's address. A node that the boot starts before the network
/// would register a loopback address and keep it until its next start. Blocks the thread for at most [`ROUTE_LIMIT`].
pub fn wait_for_route(args: &HostArgs) {
    if args.node_ip.is_some() || route().is_some() {
        return;
    }
    tracing::info!("no default route yet; waiting for the network, whose address the node registers");
    let started = Instant::now();
    while route().is_none() {
        if started.elapsed() > ROUTE_LIMIT {
            tracing::warn!(
                "no default route; the node registers a loopback address, which other nodes and cluster DNS cannot use: add a route, or set --node-ip"
            );
            return;
        }
        std::thread::sleep(ROUTE_PAUSE);
    }
}

/// Returns the address of the default route's interface; loopback if there is no route.
pub fn address() -> IpAddr {
    route().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// Returns the address of the default route's interface.
fn route() -> Option<IpAddr> {
    // Connecting a datagram socket sends nothing; it only makes the kernel choose a source address.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

/// Returns the `n`th address of a range.
pub fn nth(range: IpNet, n: usize) -> anyhow::Result<IpAddr> {
    let address = match range {
        IpNet::V4(r) => {
            u32::try_from(n).ok().and_then(|n| u32::from(r.network()).checked_add(n)).map(|a| IpAddr::V4(a.into()))
        }
        IpNet::V6(r) => u128::from(r.network()).checked_add(n as u128).map(|a| IpAddr::V6(a.into())),
    };
    address.filter(|a| range.contains(a)).with_context(|| format!("range {range} has no address {n}"))
}
