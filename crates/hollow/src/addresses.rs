//! Addresses of pods: each is one pod's at a time.
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Addresses from a range on.
#[derive(Debug)]
pub struct Addresses {
    range: IpNet,
    taken: HashSet<u128>,
    next: u128,
}

impl Addresses {
    /// Those of a range, from the one at this place on.
    pub fn new(range: IpNet, first: u128) -> Self {
        Self { range, taken: HashSet::new(), next: first }
    }

    fn start(&self) -> u128 {
        match self.range.network() {
            IpAddr::V4(ip) => ip.to_bits().into(),
            IpAddr::V6(ip) => ip.to_bits(),
        }
    }

    fn count(&self) -> u128 {
        let bits = u32::from(self.range.max_prefix_len() - self.range.prefix_len());
        1u128.checked_shl(bits).unwrap_or(u128::MAX)
    }

    /// A free one; `None` when all are taken.
    pub fn take(&mut self) -> Option<IpAddr> {
        let count = self.count();
        if self.taken.len() as u128 >= count {
            return None;
        }
        while !self.taken.insert(self.next) {
            self.next = (self.next + 1) % count;
        }
        let bits = self.start().saturating_add(self.next);
        self.next = (self.next + 1) % count;
        Some(match self.range {
            IpNet::V4(_) => IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(bits).unwrap_or(u32::MAX))),
            IpNet::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(bits)),
        })
    }

    /// The place of an address that this range has.
    fn place(&self, text: &str) -> Option<u128> {
        let ip: IpAddr = text.parse().ok().filter(|ip| self.range.contains(ip))?;
        let bits = match ip {
            IpAddr::V4(ip) => ip.to_bits().into(),
            IpAddr::V6(ip) => ip.to_bits(),
        };
        bits.checked_sub(self.start())
    }

    /// A pod that is there has it.
    pub fn note(&mut self, text: &str) {
        self.taken.extend(self.place(text));
    }

    /// Its pod is gone.
    pub fn give_back(&mut self, text: &str) {
        if let Some(place) = self.place(text) {
            self.taken.remove(&place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_one_pods_at_a_time() {
        let mut a = Addresses::new("100.64.0.0/10".parse().unwrap(), 0);
        a.note("100.64.0.1");
        a.note("10.0.0.1");
        let got: Vec<_> = (0..3).map(|_| a.take().unwrap().to_string()).collect();
        assert_eq!(got, ["100.64.0.0", "100.64.0.2", "100.64.0.3"]);
        a.give_back("100.64.0.2");
        a.next = 0;
        assert_eq!(a.take().unwrap().to_string(), "100.64.0.2");
    }

    #[test]
    fn a_range_ends() {
        let mut a = Addresses::new("fd00::/126".parse().unwrap(), 1);
        a.note("fd00::2");
        let got: Vec<_> = std::iter::from_fn(|| a.take()).map(|ip| ip.to_string()).collect();
        assert_eq!(got, ["fd00::1", "fd00::3", "fd00::"]);
        a.give_back("fd00::3");
        assert_eq!(a.take().map(|ip| ip.to_string()).as_deref(), Some("fd00::3"));
    }
}
