//! Allocates equal subnets of a network. Pure. Upstream `pkg/controller/nodeipam/ipam/cidrset`.
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// The maximum difference of prefix lengths: 65,536 subnets, as upstream.
const DEPTH_MAX: u8 = 16;

/// The subnets of one network.
#[derive(Debug)]
pub struct CidrSet {
    net: IpNet,
    prefix: u8,
    used: BTreeSet<u32>,
    /// The next subnet to try, so that a released subnet is not reused at once.
    next: u32,
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(a) => u128::from(u32::from(a)),
        IpAddr::V6(a) => u128::from(a),
    }
}

impl CidrSet {
    /// Returns the subnets of `net` with this prefix length.
    pub fn new(net: IpNet, prefix: u8) -> Result<Self, String> {
        let net = net.trunc();
        if prefix < net.prefix_len() || prefix > net.max_prefix_len() {
            return Err(format!("node mask size /{prefix} does not fit the cluster CIDR {net}"));
        }
        if prefix - net.prefix_len() > DEPTH_MAX {
            return Err(format!(
                "cluster CIDR {net} is too large for node masks of /{prefix}: the difference must be at most {DEPTH_MAX} bits"
            ));
        }
        Ok(Self { net, prefix, used: BTreeSet::new(), next: 0 })
    }

    fn count(&self) -> u32 {
        1 << (self.prefix - self.net.prefix_len())
    }
    fn width(&self) -> u32 {
        u32::from(self.net.max_prefix_len() - self.prefix)
    }

    fn part(&self, index: u32) -> Option<IpNet> {
        let base = number(self.net.network()) + (u128::from(index) << self.width());
        let ip = match self.net {
            IpNet::V4(_) => IpAddr::V4(Ipv4Addr::from(u32::try_from(base).ok()?)),
            IpNet::V6(_) => IpAddr::V6(Ipv6Addr::from(base)),
        };
        IpNet::new(ip, self.prefix).ok()
    }

    /// Returns the subnets that overlap `net`.
    fn range(&self, net: &IpNet) -> Option<std::ops::RangeInclusive<u32>> {
        if self.net.addr().is_ipv4() != net.addr().is_ipv4() {
            return None;
        }
        let base = number(self.net.network());
        let end = number(self.net.broadcast());
        let (from, to) = (number(net.network()).max(base), number(net.broadcast()).min(end));
        if from > to {
            return None;
        }
        let index = |n: u128| u32::try_from((n - base) >> self.width()).ok();
        Some(index(from)?..=index(to)?)
    }

    /// Marks the subnets that overlap `net` as allocated.
    pub fn occupy(&mut self, net: &IpNet) {
        if let Some(range) = self.range(net) {
            self.used.extend(range);
        }
    }

    /// Releases the subnets that `net` covers.
    pub fn release(&mut self, net: &IpNet) {
        if let Some(range) = self.range(net) {
            for i in range {
                self.used.remove(&i);
            }
        }
    }

    /// Releases an allocated subnet that was never used. It is the next one to be allocated.
    pub fn undo(&mut self, net: &IpNet) {
        if let Some(range) = self.range(net) {
            self.next = *range.start();
        }
        self.release(net);
    }

    /// Allocates a subnet, or returns `None` if none is free.
    pub fn allocate(&mut self) -> Option<IpNet> {
        let count = self.count();
        if self.used.len() as u64 >= u64::from(count) {
            return None;
        }
        let index = (0..count).map(|i| (self.next + i) % count).find(|i| !self.used.contains(i))?;
        self.used.insert(index);
        self.next = (index + 1) % count;
        self.part(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(s: &str) -> IpNet {
        s.parse().unwrap()
    }
    fn take(s: &mut CidrSet) -> Option<String> {
        s.allocate().map(|n| n.to_string())
    }

    #[test]
    fn gives_out_and_takes_back() {
        let mut s = CidrSet::new(net("10.42.0.0/22"), 24).unwrap();
        s.occupy(&net("10.42.1.0/24"));
        assert_eq!(take(&mut s).as_deref(), Some("10.42.0.0/24"));
        assert_eq!(take(&mut s).as_deref(), Some("10.42.2.0/24"));
        s.release(&net("10.42.0.0/24"));
        assert_eq!(take(&mut s).as_deref(), Some("10.42.3.0/24"), "not the one just given back");
        assert_eq!(take(&mut s).as_deref(), Some("10.42.0.0/24"));
        assert_eq!(take(&mut s), None);
    }

    #[test]
    fn what_was_never_used_is_given_out_again() {
        let mut s = CidrSet::new(net("10.42.0.0/22"), 24).unwrap();
        let first = s.allocate().unwrap();
        s.undo(&first);
        assert_eq!(s.allocate(), Some(first));
        assert_eq!(take(&mut s).as_deref(), Some("10.42.1.0/24"));
    }

    #[test]
    fn other_ranges() {
        let mut s = CidrSet::new(net("10.42.0.0/16"), 24).unwrap();
        s.occupy(&net("10.0.0.0/8"));
        assert_eq!(take(&mut s), None, "all of it is the service range");
        let mut s = CidrSet::new(net("10.42.0.0/16"), 24).unwrap();
        s.occupy(&net("10.42.0.128/25"));
        s.occupy(&net("192.168.0.0/16"));
        s.occupy(&net("fd00::/64"));
        assert_eq!(take(&mut s).as_deref(), Some("10.42.1.0/24"));
        let mut six = CidrSet::new(net("fd00:1::/56"), 64).unwrap();
        six.occupy(&net("fd00:1::/64"));
        assert_eq!(take(&mut six).as_deref(), Some("fd00:1:0:1::/64"));
        assert!(CidrSet::new(net("10.0.0.0/24"), 16).is_err());
        assert!(CidrSet::new(net("fd00::/32"), 64).is_err());
        assert_eq!(take(&mut CidrSet::new(net("10.0.0.0/24"), 24).unwrap()).as_deref(), Some("10.0.0.0/24"));
    }
}
