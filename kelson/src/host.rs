//! The machine's name and address, and addresses of a range by number.
use std::net::{IpAddr, Ipv4Addr, UdpSocket};

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

/// Returns the address of the default route's interface; loopback if there is no route.
pub fn address() -> IpAddr {
    // Connecting a datagram socket sends nothing; it only makes the kernel choose a source address.
    let chosen = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|s| {
        s.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        s.local_addr()
    });
    chosen.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |a| a.ip())
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
