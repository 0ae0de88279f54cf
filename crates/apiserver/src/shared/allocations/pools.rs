//! What is in use: addresses of each range, node ports by protocol; and what one write took of them.
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use kelson_meta::tree::items;
use parking_lot::Mutex;
use rand::Rng as _;
use serde_json::Value;

/// Addresses considered of a range; the rest of a larger one is not handed out by itself.
const POOL_MAX: u128 = 1 << 20;
/// Random places tried before the range is searched.
const RANDOM_TRIES: usize = 16;
/// Every address and port in use.
pub(super) struct Used {
    pub pools: Vec<Pool>,
    /// Protocols by node port.
    pub ports: HashMap<u16, HashSet<&'static str>>,
    pub port_range: (u16, u16),
}

/// One range of addresses.
pub(super) struct Pool {
    pub net: IpNet,
    pub taken: HashSet<IpAddr>,
}

/// What a write took; given back when the write does not happen.
#[derive(Default)]
pub struct Reservation {
    pub(super) used: Option<Arc<Mutex<Used>>>,
    pub(super) ips: Vec<IpAddr>,
    pub(super) ports: Vec<(u16, &'static str)>,
    /// Given back when the write did happen.
    pub(super) old_ips: Vec<IpAddr>,
    pub(super) old_ports: Vec<(u16, &'static str)>,
}

impl Reservation {
    /// The write happened.
    pub fn keep(mut self) {
        let (ips, ports) = (std::mem::take(&mut self.old_ips), std::mem::take(&mut self.old_ports));
        (self.ips, self.ports) = (ips, ports);
        // Dropping gives back what the object had and has no more.
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(used) = &self.used {
            used.lock().release(&self.ips, &self.ports);
        }
    }
}

pub(super) fn protocol(port: &Value) -> &'static str {
    match port["protocol"].as_str() {
        Some("UDP") => "UDP",
        Some("SCTP") => "SCTP",
        _ => "TCP",
    }
}

pub(super) fn ips_of(service: &Value) -> Vec<IpAddr> {
    items(&service["spec"]["clusterIPs"]).iter().filter_map(|v| v.as_str()?.parse().ok()).collect()
}

pub(super) fn ports_of(service: &Value) -> Vec<(u16, &'static str)> {
    let port = |v: &Value| v.as_u64().and_then(|p| u16::try_from(p).ok()).filter(|p| *p > 0);
    let mut ports: Vec<_> =
        items(&service["spec"]["ports"]).iter().filter_map(|p| Some((port(&p["nodePort"])?, protocol(p)))).collect();
    ports.extend(port(&service["spec"]["healthCheckNodePort"]).map(|p| (p, "TCP")));
    ports
}
impl Used {
    pub fn release(&mut self, ips: &[IpAddr], ports: &[(u16, &'static str)]) {
        for ip in ips {
            for pool in &mut self.pools {
                pool.taken.remove(ip);
            }
        }
        for (port, protocol) in ports {
            if let Some(protocols) = self.ports.get_mut(port) {
                protocols.remove(protocol);
                if protocols.is_empty() {
                    self.ports.remove(port);
                }
            }
        }
    }

    pub fn any_port(&mut self, protocol: &'static str) -> Option<u16> {
        let (low, high) = self.port_range;
        let mut rng = rand::rng();
        let random = (0..RANDOM_TRIES).map(|_| rng.random_range(low..=high)).find(|p| !self.ports.contains_key(p));
        let number = random.or_else(|| (low..=high).find(|p| !self.ports.contains_key(p)))?;
        self.ports.entry(number).or_default().insert(protocol);
        Some(number)
    }
}

impl Pool {
    /// How many addresses are handed out; network and (IPv4) broadcast address are not.
    fn size(&self) -> u128 {
        let bits = self.net.max_prefix_len() - self.net.prefix_len();
        let all = 1u128.checked_shl(u32::from(bits)).unwrap_or(u128::MAX);
        let reserved = if self.net.addr().is_ipv4() { 2 } else { 1 };
        all.saturating_sub(reserved).min(POOL_MAX)
    }

    pub fn at(&self, offset: u128) -> IpAddr {
        match self.net.network() {
            IpAddr::V4(base) => IpAddr::V4(Ipv4Addr::from(u32::from(base).wrapping_add(offset as u32))),
            IpAddr::V6(base) => IpAddr::V6(Ipv6Addr::from(u128::from(base).wrapping_add(offset))),
        }
    }

    pub fn claim(&mut self, ip: IpAddr) -> Result<(), String> {
        let broadcast = ip.is_ipv4() && ip == self.net.broadcast();
        if !self.net.contains(&ip) || ip == self.net.network() || broadcast {
            return Err(format!(
                "the provided IP ({ip}) is not in the valid range. The range of valid IPs is {}",
                self.net
            ));
        }
        if self.taken.insert(ip) { Ok(()) } else { Err("provided IP is already allocated".into()) }
    }

    /// A free address; those at the beginning are kept for people who choose one.
    pub fn any(&mut self) -> Option<IpAddr> {
        let size = self.size();
        let lower = (size / 16).clamp(16, 256).min(size / 2);
        let mut rng = rand::rng();
        let random = (0..RANDOM_TRIES)
            .filter(|_| lower < size)
            .map(|_| self.at(rng.random_range(lower + 1..=size)))
            .find(|ip| !self.taken.contains(ip));
        let search =
            |range: std::ops::RangeInclusive<u128>| range.map(|o| self.at(o)).find(|ip| !self.taken.contains(ip));
        let ip = random.or_else(|| search(lower + 1..=size)).or_else(|| search(1..=lower))?;
        self.taken.insert(ip);
        Some(ip)
    }
}
