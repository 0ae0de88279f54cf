//! Ports of the host that lead to pods, as a network configuration names them (`portMappings`).
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Transport of a host port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// `TCP`, the protocol where none is named.
    #[serde(alias = "TCP")]
    Tcp,
    /// `UDP`, without connections of its own.
    #[serde(alias = "UDP")]
    Udp,
    /// `SCTP`, where the kernel has it.
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

/// One host port of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMapping {
    /// Port on the host.
    pub host_port: u16,
    /// Port in the pod.
    pub container_port: u16,
    /// A port number means another thing in each transport.
    pub protocol: Protocol,
    /// The host's address to listen on; unspecified means every one.
    pub host_ip: IpAddr,
}
