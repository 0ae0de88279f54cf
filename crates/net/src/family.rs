//! Address families, as in nftables and in the tables of proxy and policies.
use std::net::IpAddr;

/// An address family. Each has a separate nftables table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4, table family `ip`.
    V4,
    /// IPv6, table family `ip6`.
    V6,
}

impl Family {
    /// Both families, in the order in which tables are created.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];
    /// Returns the family of an address.
    pub fn of(ip: &IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }
    /// Returns the name of tables and headers in nft: `ip` or `ip6`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "ip",
            Self::V6 => "ip6",
        }
    }
    /// Returns the type of an address in nft: `ipv4_addr` or `ipv6_addr`.
    pub fn address_type(self) -> &'static str {
        match self {
            Self::V4 => "ipv4_addr",
            Self::V6 => "ipv6_addr",
        }
    }
}
