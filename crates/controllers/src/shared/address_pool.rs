//! Ranges of addresses for services of type LoadBalancer.
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

/// A range of addresses: `192.0.2.10-192.0.2.50`, `192.0.2.0/28` with all its addresses, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressPool {
    first: IpAddr,
    /// The last address, which belongs to the range. Of the family of the first, and not before it.
    last: IpAddr,
}

impl AddressPool {
    /// Returns whether the range contains an address.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.first.is_ipv4() == ip.is_ipv4() && (self.first..=self.last).contains(&ip)
    }

    /// Returns whether the range and a network have an address in common.
    pub fn overlaps(&self, net: &IpNet) -> bool {
        let is_before = |a: IpAddr, b: IpAddr| a <= b;
        self.first.is_ipv4() == net.addr().is_ipv4()
            && is_before(self.first, net.broadcast())
            && is_before(net.network(), self.last)
    }

    /// Returns whether its addresses are IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.first.is_ipv4()
    }

    /// Returns its addresses in order, of which a network of IPv6 has more than can be listed.
    pub fn addresses(&self) -> Box<dyn Iterator<Item = IpAddr>> {
        match (self.first, self.last) {
            (IpAddr::V4(a), IpAddr::V4(b)) => Box::new((a.to_bits()..=b.to_bits()).map(|bits| IpAddr::V4(bits.into()))),
            (IpAddr::V6(a), IpAddr::V6(b)) => Box::new((a.to_bits()..=b.to_bits()).map(|bits| IpAddr::V6(bits.into()))),
            _ => Box::new(std::iter::empty()),
        }
    }
}

impl fmt::Display for AddressPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

/// A text that is no range of addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be FIRST-LAST, a CIDR or an address of unicast addresses, got {0:?}")]
pub struct AddressPoolError(String);

impl FromStr for AddressPool {
    type Err = AddressPoolError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let address = |text: &str| text.trim().parse::<IpAddr>().ok();
        let ends = match text.split_once('-') {
            Some((first, last)) => address(first).zip(address(last)),
            None => match text.trim().parse::<IpNet>() {
                Ok(net) => Some((net.network(), net.broadcast())),
                Err(_) => address(text).map(|ip| (ip, ip)),
            },
        };
        let is_unicast = |ip: IpAddr| {
            let is_reserved = matches!(ip, IpAddr::V4(v4) if v4.octets()[0] == 0 || v4.octets()[0] >= 240);
            !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_reserved)
        };
        ends.map(|(first, last)| Self { first, last })
            .filter(|pool| pool.first.is_ipv4() == pool.last.is_ipv4() && pool.first <= pool.last)
            .filter(|pool| is_unicast(pool.first) && is_unicast(pool.last))
            .ok_or_else(|| AddressPoolError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(text: &str) -> AddressPool {
        text.parse().unwrap()
    }

    #[test]
    fn forms_of_a_range() {
        for (text, shown, count) in [
            ("192.0.2.10-192.0.2.50", "192.0.2.10-192.0.2.50", 41),
            ("192.0.2.0/30", "192.0.2.0-192.0.2.3", 4),
            ("192.0.2.7", "192.0.2.7", 1),
            ("2001:db8::10-2001:db8::12", "2001:db8::10-2001:db8::12", 3),
            ("2001:db8::/126", "2001:db8::-2001:db8::3", 4),
        ] {
            assert_eq!(pool(text).to_string(), shown);
            let all: Vec<IpAddr> = pool(text).addresses().collect();
            assert_eq!(all.len(), count, "{text}");
            assert!(all.iter().all(|ip| pool(text).contains(*ip)), "{text}");
        }
        assert_eq!(pool("2001:db8::/32").addresses().next(), "2001:db8::".parse().ok(), "not listed as a whole");
        assert!(!pool("192.0.2.0/24").contains("::c000:201".parse().unwrap()));
    }

    #[test]
    fn what_is_no_range_is_rejected() {
        let texts = [
            "",
            "x",
            "192.0.2.1-",
            "192.0.2.9-192.0.2.1",
            "192.0.2.1-2001:db8::1",
            "224.0.0.0/8",
            "127.0.0.1",
            "0.0.0.0/0",
            "192.0.2.0/33",
            "::1",
            "ff02::/16",
            "240.0.0.1",
        ];
        for text in texts {
            assert_eq!(text.parse::<AddressPool>(), Err(AddressPoolError(text.into())), "{text}");
        }
    }

    #[test]
    fn a_range_that_shares_an_address_with_a_network_overlaps_it() {
        let overlaps = |text: &str, net: &str| pool(text).overlaps(&net.parse().unwrap());
        assert!(overlaps("10.42.0.0/24", "10.42.0.0/16") && overlaps("10.0.0.0/8", "10.42.0.0/16"));
        assert!(overlaps("10.41.255.255-10.42.0.0", "10.42.0.0/16"));
        assert!(!overlaps("10.41.0.0-10.41.255.255", "10.42.0.0/16") && !overlaps("10.43.0.0/16", "10.42.0.0/16"));
        assert!(!overlaps("2001:db8::/32", "0.0.0.0/0"));
    }
}
