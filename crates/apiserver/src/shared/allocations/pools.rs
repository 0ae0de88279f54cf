//! What is in use: addresses and node ports; and what one write took of them.
use std::collections::HashSet;
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
    /// Node ports, whatever protocols they are for.
    pub ports: HashSet<u16>,
    pub port_range: (u16, u16),
}

/// What a write took; given back when the write does not happen.
#[derive(Default)]
pub struct Reservation {
    pub(super) used: Option<Arc<Mutex<Used>>>,
    pub(super) ips: Vec<IpAddr>,
    pub(super) ports: Vec<u16>,
    /// Given back when the write did happen.
    pub(super) old_ips: Vec<IpAddr>,
    pub(super) old_ports: Vec<u16>,
    /// Nothing is to be had in the end: a port that is named may lie outside of the range then, upstream as well.
    pub(super) dry_run: bool,
    /// The storage says what is in use: the write being in it is enough.
    pub(super) stored: bool,
    /// What was entered for the Service, and where.
    entered: Vec<IpAddr>,
    entered_ports: Vec<u16>,
    book: Option<(Arc<dyn AddressBook>, AddressOwner)>,
}

/// What turned out to be somebody else's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Elsewhere {
    Address(IpAddr),
    Port(u16),
}

impl Reservation {
    /// Enters what was taken. Answers what is somebody else's: then the rest is given back with this.
    pub(super) async fn enter(
        &mut self,
        book: &Arc<dyn AddressBook>,
        owner: AddressOwner,
    ) -> Result<Option<Elsewhere>, Status> {
        self.book = Some((Arc::clone(book), owner.clone()));
        for ip in self.ips.clone() {
            if !book.enter(ip, &owner).await? {
                return Ok(Some(Elsewhere::Address(ip)));
            }
            self.entered.push(ip);
        }
        if self.stored && !self.ports.is_empty() {
            if let Some(port) = book.take_ports(&self.ports).await? {
                return Ok(Some(Elsewhere::Port(port)));
            }
            self.entered_ports.clone_from(&self.ports);
        }
        Ok(None)
    }

    /// The write happened.
    pub async fn keep(mut self) {
        self.entered.clear();
        self.entered_ports.clear();
        if let Some((book, owner)) = self.book.take() {
            if !self.old_ips.is_empty() {
                book.strike(&self.old_ips, &owner).await;
            }
            if self.stored && !self.old_ports.is_empty() {
                book.give_back_ports(&self.old_ports).await;
            }
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
        let (ips, ports) = (std::mem::take(&mut self.entered), std::mem::take(&mut self.entered_ports));
        if let Some((book, owner)) = self.book.take().filter(|_| !ips.is_empty() || !ports.is_empty()) {
            book.strike_later(ips, ports, owner);
        }
    }
}

/// The cluster IPs of a Service.
pub fn ips_of(service: &Value) -> Vec<IpAddr> {
    items(&service["spec"]["clusterIPs"]).iter().filter_map(|v| v.as_str()?.parse().ok()).collect()
}

/// The node ports of a Service, each once.
pub fn ports_of(service: &Value) -> Vec<u16> {
    let port = |v: &Value| v.as_u64().and_then(|p| u16::try_from(p).ok()).filter(|p| *p > 0);
    let mut ports: Vec<_> = items(&service["spec"]["ports"]).iter().filter_map(|p| port(&p["nodePort"])).collect();
    ports.extend(port(&service["spec"]["healthCheckNodePort"]));
    ports.sort_unstable();
    ports.dedup();
    ports
}

impl Used {
    /// Adds what a Service has.
    pub fn add(&mut self, service: &Value) {
        self.take(&ips_of(service), &ports_of(service));
    }

    /// Notes what a write has taken.
    pub fn take(&mut self, ips: &[IpAddr], ports: &[u16]) {
        self.ips.extend(ips);
        self.ports.extend(ports);
    }

    pub fn release(&mut self, ips: &[IpAddr], ports: &[u16]) {
        for ip in ips {
            self.ips.remove(ip);
        }
        for port in ports {
            self.ports.remove(port);
        }
    }

    /// Takes a port that a Service names, or says why it cannot have it.
    pub fn claim_port(&mut self, number: i64, dry_run: bool) -> Result<Option<u16>, String> {
        let (low, high) = self.port_range;
        if !dry_run && !(i64::from(low)..=i64::from(high)).contains(&number) {
            return Err(format!("provided port is not in the valid range. The range of valid ports is {low}-{high}"));
        }
        // A dry run may ask for a number that no port has.
        let Ok(number) = u16::try_from(number) else { return Ok(None) };
        if self.ports.insert(number) { Ok(Some(number)) } else { Err("provided port is already allocated".to_owned()) }
    }

    /// Takes a free port; those at the beginning of the range are kept for people who choose one (KEP-3668).
    pub fn any_port(&mut self) -> Option<u16> {
        let (low, high) = self.port_range;
        let first = low.saturating_add(kept_for_choice(high.checked_sub(low)?.saturating_add(1)));
        let is_free = |port: &u16| !self.ports.contains(port);
        let mut rng = rand::rng();
        let random = (0..RANDOM_TRIES).map(|_| rng.random_range(first..=high)).find(is_free);
        let number = random.or_else(|| (first..=high).find(is_free)).or_else(|| (low..first).find(is_free))?;
        self.ports.insert(number);
        Some(number)
    }
}

/// How many ports of a range of this size are handed out by themselves only after all others.
fn kept_for_choice(size: u16) -> u16 {
    if size <= 16 { 0 } else { (size / 32).clamp(16, 128) }
}
