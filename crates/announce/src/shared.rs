//! Addresses that one of several servers has on an interface, as that of the API server. The server may have them for a
//! limited time, which a lease extends; the kernel has the same limit, so that an address is gone before another server may
//! take it, also when this process is paused or was killed.
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use kelson_client::{EventRecorder, EventType, ObjectRef};
use kelson_tasks::{FILES, Scoped, scoped};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::answer::{ReceivedFrame, hear};
use crate::error::AnnounceError;
use crate::links::{Link, Links, link_for};
use crate::speaker::{announce, announce_often, probe_free};
use crate::wire::{PacketWire, Wire as _};

/// The file with the addresses that are on an interface, in the data directory.
const RECORD_FILE: &str = "shared-addresses.json";
/// The interval at which the kernel's time limit is extended.
const EXTEND: Duration = Duration::from_secs(2);
/// The address is removed so long before this server's time ends. The kernel counts whole seconds.
const MARGIN: Duration = Duration::from_secs(1);
/// The pause before an address that another machine has is asked for again, and between two reports of such a machine.
const CONFLICT_PAUSE: Duration = Duration::from_secs(10);

/// Returns for how long this machine may have the addresses; zero if it may not.
pub type Tenure = Box<dyn Fn() -> Duration + Send + Sync>;

/// The addresses, and where they belong.
#[derive(Clone, Debug)]
pub struct SharedConfig {
    /// The addresses with the prefix lengths of their networks.
    pub addresses: Vec<IpNet>,
    /// The interface; `None` selects that on whose network the first address is.
    pub interface: Option<String>,
    /// Ranges of pods and services, in which no address may be.
    pub reserved: Vec<IpNet>,
    /// The data directory, where the addresses are recorded while they are on the interface.
    pub data_dir: PathBuf,
}

/// What is on an interface.
#[derive(Serialize, Deserialize)]
struct Record {
    interface: String,
    addresses: Vec<IpNet>,
}

/// Addresses that this machine may have, one term after another.
pub struct SharedAddresses {
    config: SharedConfig,
    links: Links,
    interface: String,
}

/// Checks an address without looking at the machine.
fn check(net: IpNet, reserved: &[IpNet]) -> Result<(), AnnounceError> {
    let ip = net.addr();
    let is_special = match ip {
        IpAddr::V4(v4) => v4.is_broadcast() || v4.is_link_local() || v4.octets()[0] == 0 || v4.octets()[0] >= 240,
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some(),
    };
    // The first and the last address of an IPv4 network are no machine's, except in networks of one or two addresses.
    let is_edge = ip.is_ipv4() && net.prefix_len() < 31 && [net.network(), net.broadcast()].contains(&ip);
    let invalid = |why: String| AnnounceError::Invalid { ip, why };
    if ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_special || is_edge {
        return Err(invalid("must be a unicast address that other machines can reach".to_owned()));
    }
    match reserved.iter().find(|range| range.contains(&ip)) {
        Some(range) => Err(invalid(format!("must not be in {range}, a range of pods or services of the cluster"))),
        None => Ok(()),
    }
}

/// Returns the interface for the addresses, and checks that no interface has one of them.
fn choose<'a>(links: &'a [Link], all: &[(u32, IpNet)], config: &SharedConfig) -> Result<&'a Link, AnnounceError> {
    for ip in config.addresses.iter().map(IpNet::addr) {
        if let Some((index, _)) = all.iter().find(|(_, net)| net.addr() == ip) {
            let name = links.iter().find(|link| link.index == *index).map_or("lo", |link| link.name.as_str());
            let why = format!("must be an address that no interface has, but {name} has it");
            return Err(AnnounceError::Invalid { ip, why });
        }
    }
    let first = config.addresses.first().map(IpNet::addr);
    match (&config.interface, first) {
        (Some(name), _) => {
            let named = links.iter().find(|link| link.name == *name);
            named.ok_or_else(|| AnnounceError::Interface(format!("{name} is no Ethernet interface of this machine")))
        }
        (None, Some(ip)) => link_for(links, ip, None)
            .ok_or_else(|| AnnounceError::Interface(format!("no interface that is up is in the network of {ip}"))),
        (None, None) => Err(AnnounceError::Interface("no address is configured".to_owned())),
    }
}

/// Removes the addresses that a process of this data directory left on an interface when it was killed.
///
/// # Errors
/// The record cannot be read, or the kernel rejects it.
#[allow(clippy::disallowed_methods, reason = "blocking: one small file, at the start of a server and by a command")]
pub async fn remove_leftovers(data_dir: &Path) -> Result<(), AnnounceError> {
    let file = data_dir.join(RECORD_FILE);
    let named = || file.display().to_string();
    let text = match std::fs::read(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(AnnounceError::io(named())(error)),
    };
    // A file whose write was interrupted was written before anything was on the interface.
    if let Ok(record) = serde_json::from_slice::<Record>(&text) {
        let links = Links::open()?;
        let mut named = links.all().await?;
        named.retain(|link| link.name == record.interface);
        for link in named {
            for net in &record.addresses {
                if links.remove(link.index, *net).await? {
                    tracing::info!(address = %net, interface = link.name, "removed a shared address of an earlier run");
                }
            }
        }
    }
    std::fs::remove_file(&file).map_err(AnnounceError::io(named()))
}

impl SharedAddresses {
    /// Removes left-overs, checks the addresses and finds their interface, in the network namespace of this thread.
    ///
    /// # Errors
    /// An address is not unicast, is on an interface, or is in a reserved range; there is no interface for it; or this
    /// process may not use packet sockets.
    pub async fn prepare(config: SharedConfig) -> Result<Self, AnnounceError> {
        remove_leftovers(&config.data_dir).await?;
        config.addresses.iter().try_for_each(|net| check(*net, &config.reserved))?;
        let links = Links::open()?;
        let (all, addresses) = (links.all().await?, links.addresses().await?);
        let link = choose(&all, &addresses, &config)?;
        // Fails now rather than at the first fail-over.
        PacketWire::open(link)?;
        let interface = link.name.clone();
        Ok(Self { config, links, interface })
    }

    /// Has the addresses while `tenure` allows it, until `stop` ends; then removes them. Conflicts with other machines are
    /// events of `about`.
    pub async fn hold(
        &self,
        tenure: Tenure,
        (events, about): (EventRecorder, ObjectRef),
        stop: impl Future<Output = ()>,
    ) {
        let mut holding = Holding { shared: self, events, about, held: Vec::new(), reported: None, recorded: false };
        tokio::select! {
            () = stop => {}
            () = holding.keep(tenure) => {}
        }
        holding.remove_all().await;
    }

    async fn link(&self) -> Result<Link, AnnounceError> {
        let all = self.links.all().await?;
        let named = all.into_iter().find(|link| link.name == self.interface);
        named.ok_or_else(|| AnnounceError::Interface(format!("interface {} is gone", self.interface)))
    }

    async fn record(&self) -> Result<(), AnnounceError> {
        let record = Record { interface: self.interface.clone(), addresses: self.config.addresses.clone() };
        let file = self.config.data_dir.join(RECORD_FILE);
        let text = serde_json::to_vec(&record).unwrap_or_default();
        #[allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]
        let written = FILES.run(move || std::fs::write(&file, text)).await;
        let named = || format!("write {RECORD_FILE}");
        written.map_err(|e| AnnounceError::io(named())(std::io::Error::other(e)))?.map_err(AnnounceError::io(named()))
    }
}

/// The addresses of one term, from the probe until their removal.
struct Holding<'a> {
    shared: &'a SharedAddresses,
    events: EventRecorder,
    about: ObjectRef,
    held: Vec<AssignedAddress>,
    /// When a conflict was last reported.
    reported: Option<Instant>,
    recorded: bool,
}

/// An address on the interface.
struct AssignedAddress {
    net: IpNet,
    index: u32,
    /// The task that announces it.
    announcing: Option<Scoped<()>>,
}

impl Holding<'_> {
    async fn keep(&mut self, tenure: Tenure) {
        let mut retry = Instant::now();
        loop {
            let (wire, link) = match self.shared.link().await.and_then(|link| Ok((PacketWire::open(&link)?, link))) {
                Ok(opened) => opened,
                Err(error) => {
                    self.report(&error);
                    self.remove_all().await;
                    tokio::time::sleep(EXTEND).await;
                    continue;
                }
            };
            // A link that was down may be at another port of the network now.
            self.held.iter_mut().for_each(|held| held.announcing = None);
            if let Err(error) = self.announce_all(&link) {
                self.report(&error);
            }
            let mut extend = interval(EXTEND);
            extend.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let failed = loop {
                tokio::select! {
                    _ = extend.tick() => {
                        let done = self.extend((&wire, &link), &tenure, &mut retry).await;
                        if let Err(error) = done {
                            break error;
                        }
                    }
                    frame = wire.receive() => match frame {
                        Ok(frame) => self.on_frame(&wire, &frame).await,
                        Err(error) => break AnnounceError::io(format!("receive from {}", link.name))(error),
                    },
                }
            };
            self.report(&failed);
            tokio::time::sleep(EXTEND).await;
        }
    }

    /// Extends the kernel's time limit of all addresses, and adds those that are missing.
    async fn extend(
        &mut self,
        (wire, link): (&PacketWire, &Link),
        tenure: &Tenure,
        retry: &mut Instant,
    ) -> Result<(), AnnounceError> {
        if tenure() <= MARGIN * 2 {
            self.remove_all().await;
            return Ok(());
        }
        let held: BTreeSet<IpNet> = self.held.iter().filter(|h| h.index == link.index).map(|h| h.net).collect();
        for net in &held {
            self.shared.links.hold(link.index, *net, tenure().saturating_sub(MARGIN)).await?;
        }
        let missing = self.shared.config.addresses.iter().filter(|net| !held.contains(net));
        for net in missing.copied().collect::<Vec<_>>() {
            if Instant::now() < *retry {
                return Ok(());
            }
            match self.add((wire, link), net, tenure).await {
                Err(conflict @ AnnounceError::Conflict { .. }) => {
                    *retry = Instant::now() + CONFLICT_PAUSE;
                    self.report(&conflict);
                }
                done => done?,
            }
        }
        Ok(())
    }

    async fn add(
        &mut self,
        (wire, link): (&PacketWire, &Link),
        net: IpNet,
        tenure: &Tenure,
    ) -> Result<(), AnnounceError> {
        probe_free(wire, net.addr()).await?;
        if !self.recorded {
            self.shared.record().await?;
            self.recorded = true;
        }
        let left = tenure().saturating_sub(MARGIN);
        if left < MARGIN {
            return Ok(());
        }
        // Before the request: the end of this term may come while it is under way, and then removes the address.
        self.held.push(AssignedAddress { net, index: link.index, announcing: None });
        if let Err(error) = self.shared.links.hold(link.index, net, left).await {
            self.held.pop();
            return Err(error);
        }
        tracing::info!(address = %net, interface = link.name, "this server has the shared address");
        self.announce_all(link)
    }

    /// Announces the held addresses that are not being announced.
    fn announce_all(&mut self, link: &Link) -> Result<(), AnnounceError> {
        for held in self.held.iter_mut().filter(|held| held.announcing.is_none()) {
            let (wire, ip) = (PacketWire::open(link)?, held.net.addr());
            held.announcing = Some(scoped("announce", async move { announce_often(&wire, ip).await }));
        }
        Ok(())
    }

    /// Another machine that uses a held address is reported, and the address is announced again (RFC 5227, section 2.4).
    async fn on_frame(&mut self, wire: &PacketWire, frame: &[u8]) {
        let held = |ip: IpAddr| self.held.iter().any(|held| held.net.addr() == ip);
        if let Some(ReceivedFrame::Conflict { ip, mac }) = hear(frame, wire.mac(), held)
            && self.report(&AnnounceError::Conflict { ip, mac })
        {
            // A failure of the interface is seen by the next read.
            let _ = announce(wire, ip).await;
        }
    }

    /// Reports an error, unless one was reported a moment ago. Returns whether it did.
    fn report(&mut self, error: &AnnounceError) -> bool {
        if self.reported.is_some_and(|at| at.elapsed() < CONFLICT_PAUSE) {
            return false;
        }
        self.reported = Some(Instant::now());
        let interface = &self.shared.interface;
        if let AnnounceError::Conflict { .. } = error {
            tracing::warn!(%error, interface, "another machine has the shared address; remove it there");
            let text = format!("{error}; remove it there");
            self.events.event(&self.about, EventType::Warning, "AddressConflict", text);
        } else {
            tracing::warn!(%error, interface, "the shared address cannot be used; retrying");
        }
        true
    }

    async fn remove_all(&mut self) {
        // One stays in the list until it is removed, since the end of the term may interrupt this.
        while let Some(AssignedAddress { net, index, .. }) = self.held.last() {
            match self.shared.links.remove(*index, *net).await {
                Ok(_) => tracing::info!(address = %net, "this server does not have the shared address any more"),
                Err(error) => {
                    tracing::error!(address = %net, %error, "removing the shared address failed; the kernel removes it in a few seconds");
                }
            }
            self.held.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ethernet::Mac;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn only_unicast_addresses_outside_of_the_cluster_are_valid() {
        let reserved = nets(&["10.42.0.0/16", "10.43.0.0/16", "fd00:42::/56"]);
        for net in nets(&["192.0.2.10/32", "192.0.2.10/24", "192.0.2.0/32", "192.0.2.1/31", "2001:db8::10/128"]) {
            check(net, &reserved).unwrap();
        }
        let special =
            ["0.0.0.0/32", "127.0.0.1/32", "224.0.0.1/32", "255.255.255.255/32", "240.0.0.1/32", "169.254.1.1/32"];
        let special6 = ["::/128", "::1/128", "ff02::1/128", "fe80::1/128", "::ffff:192.0.2.1/128"];
        for net in nets(&[&special[..], &special6, &["192.0.2.255/24", "192.0.2.0/24"]].concat()) {
            assert!(check(net, &reserved).unwrap_err().to_string().contains("must be a unicast address"), "{net}");
        }
        for net in nets(&["10.42.3.4/32", "10.43.0.1/32", "fd00:42::1/128"]) {
            assert!(check(net, &reserved).unwrap_err().to_string().contains("range of pods or services"), "{net}");
        }
    }

    #[test]
    fn the_interface_is_that_of_the_network_or_the_named_one() {
        let link = |index: u32, name: &str, addresses: &[&str]| Link {
            index,
            name: name.into(),
            mac: Mac([2, 0, 0, 0, 0, 1]),
            is_up: true,
            addresses: nets(addresses),
        };
        let links = [link(2, "eth0", &["192.0.2.1/24"]), link(3, "eth1", &["198.51.100.1/24"])];
        let all: Vec<(u32, IpNet)> = vec![
            (1, "127.0.0.1/8".parse().unwrap()),
            (2, "192.0.2.1/24".parse().unwrap()),
            (3, "198.51.100.1/24".parse().unwrap()),
        ];
        let chosen = |ip: &str, interface: Option<&str>| {
            let (addresses, interface) = (nets(&[ip]), interface.map(String::from));
            let config = SharedConfig { addresses, interface, reserved: Vec::new(), data_dir: PathBuf::new() };
            choose(&links, &all, &config).map(|link| link.name.clone()).map_err(|e| e.to_string())
        };
        assert_eq!(chosen("198.51.100.9/32", None), Ok("eth1".into()));
        assert_eq!(chosen("203.0.113.9/32", Some("eth0")), Ok("eth0".into()));
        assert_eq!(
            chosen("203.0.113.9/32", None),
            Err("no interface that is up is in the network of 203.0.113.9".into())
        );
        assert_eq!(chosen("203.0.113.9/32", Some("eth9")), Err("eth9 is no Ethernet interface of this machine".into()));
        let taken = "198.51.100.1: must be an address that no interface has, but eth1 has it";
        assert_eq!(chosen("198.51.100.1/32", Some("eth0")), Err(taken.into()));
    }
}
