//! Watches over what [`Network::ensure`] made on the host: nftables tables and ways through `FORWARD` as the kernel tells of
//! their changes; links, addresses, kernel parameters and CNI files by looking.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane of `aside`")]

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;

use crate::aside::aside;
use crate::config::NetworkConfig;
use crate::error::NetError;
use crate::guard::{GuardedTable, TableGuard};
use crate::iptables;
use crate::netlink::Links;
use crate::netns::block_on;
use crate::rules;

use super::Network;
use super::host::{is_cni_installed, wrong_sysctls};

/// How often links, kernel parameters and files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The table in which iptables keeps its rules for forwarded packets.
const FILTER: &str = "filter";

/// What another program took away or changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// Masquerading, host ports or the rules against false senders.
    Tables,
    /// The way of pods' packets through an iptables chain.
    Forward,
    /// The bridge or the overlay's device, or their addresses.
    Links,
    /// Parameters of the kernel's network.
    Sysctls,
    /// The CNI configuration or plugins.
    Cni,
}

impl Damage {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Tables, Self::Forward, Self::Links, Self::Sysctls, Self::Cni];

    /// As metrics name it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tables => "nftables",
            Self::Forward => "forward",
            Self::Links => "links",
            Self::Sysctls => "sysctls",
            Self::Cni => "cni",
        }
    }
}

/// Waits for damage to a node's pod network.
pub struct HostGuard {
    network: Network,
    program: PathBuf,
    tables: TableGuard,
    look_at: Instant,
    /// What was found and is not told yet.
    found: Vec<(Damage, String)>,
}

impl Network {
    /// Guards what [`Network::ensure`] made with the same `program`, which must have been called.
    ///
    /// # Errors
    /// The tables cannot be listed.
    pub async fn guard(&self, program: &std::path::Path) -> Result<HostGuard, NetError> {
        let changing = rules::CHANGING.map(str::to_owned).to_vec();
        let of = |family: &str, changing| GuardedTable { table: format!("{family} {}", self.config.table()), changing };
        let mut guarded = vec![of("ip", changing)];
        // Kernels without netfilter for bridges have no such table.
        let bridge = of("bridge", Vec::new());
        if crate::nft::list_table(&bridge.table).await.is_ok() {
            guarded.push(bridge);
        }
        let mut tables = TableGuard::new(guarded, vec![FILTER.to_owned()]);
        tables.remember().await?;
        let (network, program) = (self.clone(), program.to_path_buf());
        Ok(HostGuard { network, program, tables, look_at: Instant::now() + LOOK_EVERY, found: Vec::new() })
    }
}

impl HostGuard {
    /// Waits until something is missing or changed; gives each part with what is wrong with it. Dropping the future loses
    /// nothing. [`Network::ensure`] puts it right, and a new guard watches over that.
    pub async fn damaged(&mut self) -> Vec<(Damage, String)> {
        loop {
            if !self.found.is_empty() {
                return std::mem::take(&mut self.found);
            }
            tokio::select! {
                damage = self.tables.damaged() => {
                    self.found.extend(damage.tables.into_iter().map(|t| (Damage::Tables, format!("nftables table {t}"))));
                    if damage.others {
                        self.look_at = Instant::now();
                        self.look(true).await;
                    }
                }
                () = tokio::time::sleep_until(self.look_at) => self.look(false).await,
            }
        }
    }

    async fn look(&mut self, at_forward: bool) {
        let (config, program) = (self.network.config.clone(), self.program.clone());
        let look = move || {
            let mut found = faults(&config)?;
            if !is_cni_installed(&config, &program) {
                found.push((Damage::Cni, "CNI files".to_owned()));
            }
            if at_forward {
                found.extend(closed(&config)?);
            }
            Ok(found)
        };
        match aside(look).await {
            Ok(found) => self.found.extend(found),
            Err(error) => tracing::debug!(%error, "checking the pod network on the host failed"),
        }
        self.look_at = Instant::now() + LOOK_EVERY;
    }
}

/// The devices whose way through a `FORWARD` chain is closed.
fn closed(config: &NetworkConfig) -> Result<Vec<(Damage, String)>, NetError> {
    let mut found = Vec::new();
    for device in [Some(config.bridge()), config.overlay.map(|_| config.vxlan())].into_iter().flatten() {
        if !iptables::is_forward_allowed(&device)? {
            found.push((Damage::Forward, format!("rules of {device} in iptables FORWARD")));
        }
    }
    Ok(found)
}

/// Links, their addresses, and kernel parameters that are not as they should be.
fn faults(config: &NetworkConfig) -> Result<Vec<(Damage, String)>, NetError> {
    let mut found = Vec::new();
    let missing = block_on(missing_links(config))?;
    if !missing.is_empty() {
        found.extend(missing.into_iter().map(|link| (Damage::Links, link)));
        // Parameters of links that are not there are not there either.
        return Ok(found);
    }
    found.extend(wrong_sysctls(config).into_iter().map(|key| (Damage::Sysctls, key.replace('/', "."))));
    Ok(found)
}

async fn missing_links(config: &NetworkConfig) -> Result<Vec<String>, NetError> {
    let links = Links::open()?;
    let mut missing = Vec::new();
    for device in [Some(config.bridge()), config.overlay.map(|_| config.vxlan())].into_iter().flatten() {
        match links.by_name(&device).await? {
            Some(link) if link.up => {}
            Some(_) => missing.push(format!("interface {device} is down")),
            None => missing.push(format!("interface {device}")),
        }
    }
    if let Some(bridge) = links.by_name(&config.bridge()).await? {
        let gateway = config.gateway();
        let has = links.addresses().await?.iter().any(|(i, net, _)| *i == bridge.index && net.addr() == gateway);
        if !has {
            missing.push(format!("address {gateway} of {}", config.bridge()));
        }
    }
    Ok(missing)
}
