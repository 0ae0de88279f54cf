//! What is in use: addresses, node ports by protocol; and what one write took of them.
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use kelson_meta::Status;
use kelson_meta::tree::items;
use parking_lot::Mutex;
use rand::Rng as _;
use serde_json::Value;

use super::book::{AddressBook, AddressOwner};

/// Random places tried before the range of ports is searched.
const RANDOM_TRIES: usize = 16;

/// Every address and port in use; where others write services too, those alone that writes under way here have taken.
#[derive(Clone)]
pub(super) struct Used {
    pub ips: HashSet<IpAddr>,
    /// Protocols by node port.
    pub ports: HashMap<u16, HashSet<&'static str>>,
    pub port_range: (u16, u16),
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
    /// The storage says what is in use: the write being in it is enough.
    pub(super) stored: bool,
    /// What was entered for the Service, and where.
    entered: Vec<IpAddr>,
    book: Option<(Arc<dyn AddressBook>, AddressOwner)>,
}

impl Reservation {
    /// Enters the addresses that were taken. Answers one that is somebody else's: then the rest is given back with this.
    pub(super) async fn enter(
        &mut self,
        book: &Arc<dyn AddressBook>,
        owner: AddressOwner,
    ) -> Result<Option<IpAddr>, Status> {
        self.book = Some((Arc::clone(book), owner.clone()));
        for ip in self.ips.clone() {
            if !book.enter(ip, &owner).await? {
                return Ok(Some(ip));
            }
            self.entered.push(ip);
        }
        Ok(None)
    }

    /// The write happened.
    pub async fn keep(mut self) {
        self.entered.clear();
        if let Some((book, owner)) = self.book.take().filter(|_| !self.old_ips.is_empty()) {
            book.strike(&self.old_ips, &owner).await;
        }
        if self.stored {
            return;
        }
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
        if let Some((book, owner)) = self.book.take().filter(|_| !self.entered.is_empty()) {
            book.strike_later(std::mem::take(&mut self.entered), owner);
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

/// The cluster IPs of a Service.
pub fn ips_of(service: &Value) -> Vec<IpAddr> {
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
    /// Adds what a Service has.
    pub fn add(&mut self, service: &Value) {
        self.ips.extend(ips_of(service));
        for (port, protocol) in ports_of(service) {
            self.ports.entry(port).or_default().insert(protocol);
        }
    }

    /// Notes what a write has taken.
    pub fn take(&mut self, ips: &[IpAddr], ports: &[(u16, &'static str)]) {
        self.ips.extend(ips);
        for (port, protocol) in ports {
            self.ports.entry(*port).or_default().insert(*protocol);
        }
    }

    pub fn release(&mut self, ips: &[IpAddr], ports: &[(u16, &'static str)]) {
        for ip in ips {
            self.ips.remove(ip);
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

    /// Takes a port that a Service names, or says why it cannot have it.
    pub fn claim_port(&mut self, number: u16, protocol: &'static str) -> Result<(), String> {
        let (low, high) = self.port_range;
        if number < low || number > high {
            return Err(format!("provided port is not in the valid range. The range of valid ports is {low}-{high}"));
        }
        if self.ports.entry(number).or_default().insert(protocol) {
            Ok(())
        } else {
            Err("provided port is already allocated".to_owned())
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
