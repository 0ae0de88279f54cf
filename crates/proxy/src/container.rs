//! The named sets and maps of every proxy table.

use std::sync::{Arc, LazyLock};

use kelson_net::table::Item;

/// A named set or map of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Container {
    /// Every cluster address.
    ClusterIps,
    /// Endpoints of this node, paired with themselves.
    Hairpin,
    /// Address, protocol and port, to the chain of the service.
    ServiceIps,
    /// Protocol and node port, to the chain of the service.
    ServiceNodePorts,
    /// Addresses, protocols and ports without an endpoint, to the verdict for their packets.
    NoEndpointServices,
    /// Protocols and node ports without an endpoint, to the verdict for their packets.
    NoEndpointNodePorts,
    /// Addresses whose clients must be in a list of source ranges.
    FirewallIps,
    /// Address, protocol, port and a number below that of the endpoints, to the address and port of an endpoint.
    Endpoints,
}

/// The names, in the order of the variants: an element shares its container's.
static NAMES: LazyLock<[Arc<str>; 8]> = LazyLock::new(|| {
    [
        "cluster-ips",
        "hairpin",
        "service-ips",
        "service-nodeports",
        "no-endpoint-services",
        "no-endpoint-nodeports",
        "firewall-ips",
        "endpoints",
    ]
    .map(Arc::from)
});

impl Container {
    /// Returns the name in the table.
    pub fn name(self) -> &'static str {
        &NAMES[self as usize]
    }

    /// Creates an element.
    pub fn element(self, key: String) -> Item {
        Item::Element(Arc::clone(&NAMES[self as usize]), key)
    }
}
