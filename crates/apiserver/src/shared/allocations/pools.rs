//! Addresses and node ports in use, and what one write has taken of them.
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use kelson_meta::Status;
use kelson_meta::tree::items;
use parking_lot::Mutex;
use rand::Rng as _;
use serde_json::Value;

use super::registry::{AddressOwner, AddressRegistry};

/// Random candidates before the range of ports is searched in order.
const RANDOM_TRIES: usize = 16;

/// All addresses and ports in use. With a shared storage, only those of writes in progress on this server.
#[derive(Clone)]
pub(super) struct Used {
    pub ips: HashSet<IpAddr>,
    /// Node ports, for all protocols.
    pub ports: HashSet<u16>,
    pub port_range: (u16, u16),
}

/// The allocations of a write. Dropping this releases them, because the write failed.
#[derive(Default)]
pub struct Reservation {
    pub(super) used: Option<Arc<Mutex<Used>>>,
    pub(super) ips: Vec<IpAddr>,
    pub(super) ports: Vec<u16>,
    /// Released when the write succeeds.
    pub(super) old_ips: Vec<IpAddr>,
    pub(super) old_ports: Vec<u16>,
    /// Nothing is allocated in the end. A requested port may then be outside the range, as in upstream.
    pub(super) dry_run: bool,
    /// The storage is shared: what is in use is read from it, so that nothing stays in memory after the write.
    pub(super) stored: bool,
    /// The addresses registered for the Service, and the registry.
    registered: Vec<IpAddr>,
    registered_ports: Vec<u16>,
    registry: Option<(Arc<dyn AddressRegistry>, AddressOwner)>,
}

/// An address or port that another owner has registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    Address(IpAddr),
    Port(u16),
}

impl Reservation {
    /// Registers what was taken. Returns a conflict with another owner; dropping `self` then releases the rest.
    pub(super) async fn register(
        &mut self,
        registry: &Arc<dyn AddressRegistry>,
        owner: AddressOwner,
    ) -> Result<Option<Conflict>, Status> {
        self.registry = Some((Arc::clone(registry), owner.clone()));
        for ip in self.ips.clone() {
            if !registry.register(ip, &owner).await? {
                return Ok(Some(Conflict::Address(ip)));
            }
            self.registered.push(ip);
        }
        if self.stored && !self.ports.is_empty() {
            if let Some(port) = registry.take_ports(&self.ports).await? {
                return Ok(Some(Conflict::Port(port)));
            }
            self.registered_ports.clone_from(&self.ports);
        }
        Ok(None)
    }

    /// Confirms the allocations after the write succeeded.
    pub async fn confirm(mut self) {
        self.registered.clear();
        self.registered_ports.clear();
        if let Some((registry, owner)) = self.registry.take() {
            if !self.old_ips.is_empty() {
                registry.release(&self.old_ips, &owner).await;
            }
            if self.stored && !self.old_ports.is_empty() {
                registry.give_back_ports(&self.old_ports).await;
            }
        }
        if self.stored {
            return;
        }
        let (ips, ports) = (std::mem::take(&mut self.old_ips), std::mem::take(&mut self.old_ports));
        (self.ips, self.ports) = (ips, ports);
        // Dropping releases what the object had before and no longer has.
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(used) = &self.used {
            used.lock().release(&self.ips, &self.ports);
        }
        let (ips, ports) = (std::mem::take(&mut self.registered), std::mem::take(&mut self.registered_ports));
        if let Some((registry, owner)) = self.registry.take().filter(|_| !ips.is_empty() || !ports.is_empty()) {
            registry.release_later(ips, ports, owner);
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
    /// Adds the addresses and ports of a Service.
    pub fn add(&mut self, service: &Value) {
        self.take(&ips_of(service), &ports_of(service));
    }

    /// Adds what a write has taken.
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

    /// Takes a requested port. The error is the reason why it cannot be taken.
    pub fn claim_port(&mut self, number: i64, dry_run: bool) -> Result<Option<u16>, String> {
        let (low, high) = self.port_range;
        if !dry_run && !(i64::from(low)..=i64::from(high)).contains(&number) {
            return Err(format!("provided port is not in the valid range. The range of valid ports is {low}-{high}"));
        }
        // A dry run may request a number that is not a port.
        let Ok(number) = u16::try_from(number) else { return Ok(None) };
        if self.ports.insert(number) { Ok(Some(number)) } else { Err("provided port is already allocated".to_owned()) }
    }

    /// Takes a free port. The beginning of the range is used last, because it is reserved for static choice (KEP-3668).
    pub fn any_port(&mut self) -> Option<u16> {
        let (low, high) = self.port_range;
        let first = low.saturating_add(reserved_size(high.checked_sub(low)?.saturating_add(1)));
        let is_free = |port: &u16| !self.ports.contains(port);
        let mut rng = rand::rng();
        let random = (0..RANDOM_TRIES).map(|_| rng.random_range(first..=high)).find(is_free);
        let number = random.or_else(|| (first..=high).find(is_free)).or_else(|| (low..first).find(is_free))?;
        self.ports.insert(number);
        Some(number)
    }
}

/// The number of ports of a range of this size that are reserved for static choice.
fn reserved_size(size: u16) -> u16 {
    if size <= 16 { 0 } else { (size / 32).clamp(16, 128) }
}
