//! Names, paths and address ranges of a node's network, all derived from its data directory.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by the CNI plugin in a process of its own")]

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use kelson_ranges::{Ranges, VNI_MAX};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::NetError;

/// The longest prefix with room for a gateway and one pod.
const PREFIX_MAX: u8 = 30;
/// Used when the host has no default route to take an MTU from.
pub(crate) const MTU_DEFAULT: u32 = 1500;
/// The size that VXLAN over IPv4 adds to a packet: Ethernet, IP, UDP and VXLAN headers.
pub(crate) const VXLAN_OVERHEAD: u32 = 50;
/// The UDP port of the overlay: Linux' default, which other VXLAN networks use too; the network identifier
/// distinguishes their packets.
pub const VXLAN_PORT: u16 = 8472;

/// Returns the short ID of a data directory: eight hex digits of the digest of its canonical path.
pub fn network_id(data_dir: &Path) -> String {
    let path = data_dir.canonicalize().unwrap_or_else(|_| data_dir.to_path_buf());
    hex_prefix(path.as_os_str().as_encoded_bytes(), 4)
}

pub(crate) fn hex_prefix(bytes: &[u8], count: usize) -> String {
    Sha256::digest(bytes).iter().take(count).fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// The connection of a node's pods to those of other nodes: VXLAN, which only requires that the nodes' addresses reach
/// each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OverlayConfig {
    /// The network identifier, the same on all nodes of a cluster; 1 to [`VNI_MAX`].
    pub vni: u32,
    /// The UDP port, the same on all nodes.
    pub port: u16,
    /// The address of this node, as the others see it.
    pub node_ip: Ipv4Addr,
}

/// The pod network of a node. Serialized into the CNI configuration, so that the plugin needs nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkConfig {
    /// Identifies objects of this data directory's server on the host: see [`network_id`].
    pub id: String,
    /// The absolute path of the server's data directory.
    pub data_dir: PathBuf,
    /// The node's pod CIDRs, one per address family. Currently one, IPv4.
    pub subnets: Vec<IpNet>,
    /// The cluster's pod CIDRs: traffic to them keeps the pod's address.
    pub cluster_cidrs: Vec<IpNet>,
    /// The MTU of the bridge and of the pods' interfaces; 0 takes that of the node's interface, less what the overlay
    /// adds.
    #[serde(default)]
    pub mtu: u32,
    /// The connection to other nodes; `None` for a single node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlay: Option<OverlayConfig>,
}

impl NetworkConfig {
    /// Creates the network of the node with this data directory.
    ///
    /// # Errors
    /// The data directory is missing, or the ranges have no room for pods.
    pub fn new(data_dir: &Path, subnets: Vec<IpNet>, cluster_cidrs: Vec<IpNet>) -> Result<Self, NetError> {
        let data_dir = data_dir.canonicalize().map_err(NetError::io(data_dir.display().to_string()))?;
        let subnets = subnets.iter().map(IpNet::trunc).collect();
        let config = Self { id: network_id(&data_dir), data_dir, subnets, cluster_cidrs, mtu: 0, overlay: None };
        config.validate()?;
        Ok(config)
    }

    /// Creates the network of a node with these pod CIDRs in a cluster's ranges; `node_ip` is the node's end of the
    /// overlay.
    ///
    /// # Errors
    /// As of [`NetworkConfig::new`].
    pub fn within(
        ranges: &Ranges,
        data_dir: &Path,
        subnets: Vec<IpNet>,
        node_ip: Option<Ipv4Addr>,
    ) -> Result<Self, NetError> {
        let overlay = node_ip.map(|node_ip| OverlayConfig { vni: ranges.vni, port: VXLAN_PORT, node_ip });
        Ok(Self::new(data_dir, subnets, vec![ranges.cluster])?.with_overlay(overlay))
    }

    /// Sets the connection to other nodes.
    pub fn with_overlay(mut self, overlay: Option<OverlayConfig>) -> Self {
        self.overlay = overlay;
        self
    }

    pub(crate) fn validate(&self) -> Result<(), NetError> {
        let subnet = match self.subnets.as_slice() {
            [one] => one,
            [] => return Err(NetError::Config("the node has no pod CIDR".to_owned())),
            _ => return Err(NetError::Config("dual-stack pod CIDRs are not supported yet".to_owned())),
        };
        if !matches!(subnet, IpNet::V4(_)) {
            return Err(NetError::Config(format!("pod CIDR {subnet}: only IPv4 is supported yet")));
        }
        if subnet.prefix_len() > PREFIX_MAX {
            return Err(NetError::Config(format!(
                "pod CIDR {subnet} is too small; the prefix length must be at most {PREFIX_MAX}"
            )));
        }
        if let Some(o) = self.overlay
            && (o.vni == 0 || o.vni > VNI_MAX)
        {
            return Err(NetError::Config(format!("VXLAN network identifier {} is not 1 to {VNI_MAX}", o.vni)));
        }
        if self.id.len() != 8 || !self.id.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(NetError::Config(format!("network ID must be eight hex digits, got {:?}", self.id)));
        }
        Ok(())
    }

    /// Returns the node's pod CIDR.
    pub fn subnet(&self) -> IpNet {
        self.subnets[0]
    }

    /// Returns the host's address on the bridge, the first of the subnet, which is the pods' gateway.
    pub fn gateway(&self) -> IpAddr {
        gateway_of(&self.subnet())
    }

    /// Returns the name of the bridge.
    pub fn bridge(&self) -> String {
        format!("kn{}", self.id)
    }

    /// Returns the name of the overlay's device.
    pub fn vxlan(&self) -> String {
        format!("kv{}", self.id)
    }

    /// Returns the name of the nftables table (family `ip`).
    pub fn table(&self) -> String {
        format!("kelson-{}", self.id)
    }

    /// Returns the name of the CNI network.
    pub fn network_name(&self) -> String {
        format!("kelson-{}", self.id)
    }

    /// Returns the prefix of host interface names.
    pub(crate) fn veth_prefix(&self) -> String {
        format!("kv{}", &self.id[..4])
    }

    /// Returns the name of the host end of a container's interface, derived from the container, so that DEL needs no
    /// state.
    pub fn veth(&self, container: &str, ifname: &str) -> String {
        format!("{}{}", self.veth_prefix(), hex_prefix(format!("{container}/{ifname}").as_bytes(), 4))
    }

    /// Returns the directory of allocations.
    pub(crate) fn state_dir(&self) -> PathBuf {
        self.data_dir.join("net")
    }

    /// Returns the directory of CNI executables, for the runtime's configuration.
    pub fn cni_bin_dir(data_dir: &Path) -> PathBuf {
        data_dir.join("cni").join("bin")
    }

    /// Returns the directory of CNI network configurations, for the runtime's configuration.
    pub fn cni_conf_dir(data_dir: &Path) -> PathBuf {
        data_dir.join("cni").join("conf")
    }

    pub(crate) fn conflist_path(&self) -> PathBuf {
        Self::cni_conf_dir(&self.data_dir).join("10-kelson.conflist")
    }

    /// Returns the CNI configuration with which a runtime calls this plugin.
    pub(crate) fn conflist(&self) -> serde_json::Value {
        serde_json::json!({
            "cniVersion": "1.0.0",
            "name": self.network_name(),
            "plugins": [{
                "type": "kelson",
                "capabilities": { "portMappings": true },
                "kelson": self,
            }],
        })
    }
}

pub(crate) fn gateway_of(subnet: &IpNet) -> IpAddr {
    match subnet.network() {
        IpAddr::V4(net) => IpAddr::V4((u32::from(net) + 1).into()),
        IpAddr::V6(net) => IpAddr::V6((u128::from(net) + 1).into()),
    }
}

/// Derives a hardware address from the IP, so that a reused address never has a stale neighbour entry.
pub(crate) fn mac_of(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => [&[0x0a, 0x58], &ip.octets()[..]].concat(),
        IpAddr::V6(ip) => [&[0x0a, 0x58], &ip.octets()[12..]].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(subnet: &str) -> Result<NetworkConfig, NetError> {
        let dir = tempfile::tempdir().unwrap();
        NetworkConfig::new(dir.path(), vec![subnet.parse().unwrap()], vec!["10.42.0.0/16".parse().unwrap()])
    }

    #[test]
    fn names_fit_an_interface_and_belong_to_the_directory() {
        let (a, b) = (config("10.42.0.0/24").unwrap(), config("10.42.0.0/24").unwrap());
        assert_ne!(a.bridge(), b.bridge());
        let veth = a.veth(&"f".repeat(64), "eth0");
        assert!(a.bridge().len() <= 15 && veth.len() <= 15, "{veth}");
        assert!(a.vxlan().len() <= 15 && a.vxlan().len() != veth.len(), "told apart by their length");
        assert_ne!(veth, a.veth(&"f".repeat(64), "eth1"));
        assert_eq!(a.gateway().to_string(), "10.42.0.1");
    }

    #[test]
    fn ranges_that_cannot_work_are_refused() {
        for (subnet, word) in [("fd00::/64", "IPv4"), ("10.0.0.0/31", "too small")] {
            let message = config(subnet).expect_err(subnet).to_string();
            assert!(message.contains(word), "{message}");
        }
    }
}
