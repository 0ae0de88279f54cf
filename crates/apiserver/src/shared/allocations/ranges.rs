//! The ranges of cluster IPs: the configured ones and those of ready ServiceCIDR objects that are not being deleted (KEP-1880). They
//! are read from the store for each Service that needs an address; there are few.
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use kelson_store::{Resource, Store};
use rand::Rng as _;

use crate::catalog::record::parse;

const GROUP: &str = "networking.k8s.io";
/// Label of an IPAddress that was created for a Service. Addresses of other IPAddress objects are not allocated.
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const ALLOCATOR: &str = "ipallocator.k8s.io";
/// Limit of candidate addresses per range; the rest of a larger range is allocated only on request.
const POOL_MAX: u128 = 1 << 20;
/// Random candidates before the range is searched in order.
const RANDOM_TRIES: usize = 16;

/// The ranges, the configured ones first.
pub(super) struct Ranges<'a> {
    all: Vec<IpNet>,
    store: &'a Store,
}

/// The IP family, `IPv4` or `IPv6`.
fn family(ip: &IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}

impl<'a> Ranges<'a> {
    /// The ranges from which addresses may be allocated now.
    pub fn now(configured: &[IpNet], store: &'a Store) -> Self {
        let mut all = configured.to_vec();
        for record in store.list(Resource::new(GROUP, "servicecidrs"), None, None, None).iter() {
            if record.meta().deleting {
                continue;
            }
            let object = parse(record);
            let conditions = object["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
            if !conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True") {
                continue;
            }
            let cidrs = object["spec"]["cidrs"].as_array().map_or(&[][..], Vec::as_slice);
            let nets = cidrs.iter().filter_map(|c| c.as_str()?.parse::<IpNet>().ok()).map(|net| net.trunc());
            for net in nets {
                if !all.contains(&net) {
                    all.push(net);
                }
            }
        }
        Self { all, store }
    }

    /// The configured families, the primary one first.
    pub fn families(&self) -> Vec<&'static str> {
        let mut out: Vec<&'static str> = self.all.iter().map(|net| family(&net.addr())).collect();
        let primary = out.first().copied();
        out.sort_unstable_by_key(|f| Some(*f) != primary);
        out.dedup();
        out
    }

    fn of(&self, wanted: &str) -> impl Iterator<Item = &IpNet> {
        self.all.iter().filter(move |net| family(&net.addr()) == wanted)
    }

    /// Whether an IPAddress object for it exists that the allocator did not create.
    fn is_held(&self, ip: IpAddr) -> bool {
        let record = self.store.get(Resource::new(GROUP, "ipaddresses"), "", &ip.to_string());
        record.is_some_and(|record| parse(&record)["metadata"]["labels"][MANAGED_BY].as_str() != Some(ALLOCATOR))
    }

    /// Takes a requested address.
    ///
    /// # Errors
    /// The reason why it cannot be taken.
    pub fn claim(&self, wanted: &str, ip: IpAddr, taken: &mut HashSet<IpAddr>) -> Result<(), String> {
        let usable =
            |net: &&IpNet| net.contains(&ip) && ip != net.network() && !(ip.is_ipv4() && ip == net.broadcast());
        if !self.of(wanted).any(|net| usable(&net)) {
            let shown: Vec<String> = self.of(wanted).map(ToString::to_string).collect();
            let shown = shown.join(", ");
            return Err(format!("the provided IP ({ip}) is not in the valid range. The range of valid IPs is {shown}"));
        }
        if self.is_held(ip) || !taken.insert(ip) {
            return Err("provided IP is already allocated".into());
        }
        Ok(())
    }

    /// Takes a free address of a family.
    pub fn any(&self, wanted: &str, taken: &mut HashSet<IpAddr>) -> Option<IpAddr> {
        let ip = self.of(wanted).find_map(|net| self.free(net, taken))?;
        taken.insert(ip);
        Some(ip)
    }

    /// A free address of a range. The beginning of the range is used last, because it is reserved for static choice.
    fn free(&self, net: &IpNet, taken: &HashSet<IpAddr>) -> Option<IpAddr> {
        let size = size(net);
        let lower = (size / 16).clamp(16, 256).min(size / 2);
        // An address that is registered is not free, even if its Service is not stored yet.
        let is_registered =
            |ip: &IpAddr| self.store.get(Resource::new(GROUP, "ipaddresses"), "", &ip.to_string()).is_some();
        let is_free = |ip: &IpAddr| !taken.contains(ip) && !is_registered(ip);
        let mut rng = rand::rng();
        let random = (0..RANDOM_TRIES)
            .filter(|_| lower < size)
            .map(|_| at(net, rng.random_range(lower + 1..=size)))
            .find(|ip| is_free(ip));
        let search = |range: std::ops::RangeInclusive<u128>| range.map(|o| at(net, o)).find(|ip| is_free(ip));
        random.or_else(|| search(lower + 1..=size)).or_else(|| search(1..=lower))
    }
}

/// The number of addresses that can be allocated; network and (IPv4) broadcast address are excluded.
fn size(net: &IpNet) -> u128 {
    let bits = net.max_prefix_len() - net.prefix_len();
    let all = 1u128.checked_shl(u32::from(bits)).unwrap_or(u128::MAX);
    let reserved = if net.addr().is_ipv4() { 2 } else { 1 };
    all.saturating_sub(reserved).min(POOL_MAX)
}

/// The address at an offset of a range.
pub(super) fn at(net: &IpNet, offset: u128) -> IpAddr {
    match net.network() {
        IpAddr::V4(base) => IpAddr::V4(Ipv4Addr::from(u32::from(base).wrapping_add(offset as u32))),
        IpAddr::V6(base) => IpAddr::V6(Ipv6Addr::from(u128::from(base).wrapping_add(offset))),
    }
}
