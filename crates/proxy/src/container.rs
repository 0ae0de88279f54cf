//! The named sets and maps that every proxy table has.

use std::sync::{Arc, LazyLock};

use kelson_net::table::Item;

/// A named set or map of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Container {
    /// Every cluster address.
    ClusterIps,
    /// Endpoints of this node with themselves.
    Hairpin,
    /// Address, protocol and port to the chain that answers.
    ServiceIps,
    /// Protocol and node port to the chain that answers.
    ServiceNodePorts,
    /// Addresses, protocols and ports without an endpoint, to what happens to their packets.
    NoEndpointServices,
    /// The same for node ports.
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
    /// Its name in the table.
    pub fn name(self) -> &'static str {
        &NAMES[self as usize]
    }

    /// An element of it.
    pub fn element(self, key: String) -> Item {
        Item::Element(Arc::clone(&NAMES[self as usize]), key)
    }
}
