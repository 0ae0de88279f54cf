//! Host ports of pods, as in a network configuration (`portMappings`).
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The transport protocol of a host port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// `TCP`, the default protocol.
    #[serde(alias = "TCP")]
    Tcp,
    /// `UDP`, which has no connections.
    #[serde(alias = "UDP")]
    Udp,
    /// `SCTP`, if the kernel supports it.
    #[serde(alias = "SCTP")]
    Sctp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        })
    }
}

/// A host port of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMapping {
    /// The port on the host.
    pub host_port: u16,
    /// The port in the pod.
    pub container_port: u16,
    /// The protocol; the same number can be used once per protocol.
    pub protocol: Protocol,
    /// The host's address to listen on; unspecified means all.
    pub host_ip: IpAddr,
}
