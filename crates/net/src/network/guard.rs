//! Guards what [`Network::ensure`] created on the host: nftables tables and rules in `FORWARD` by the kernel's events;
//! links, addresses, kernel parameters and CNI files by polling.
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

/// The interval at which links, kernel parameters and files are checked.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The table in which iptables has its rules for forwarded packets.
const FILTER: &str = "filter";

/// The damage by another program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// Masquerading, host ports or the rules against spoofing.
    Tables,
    /// The rule for pods' packets in an iptables chain.
    Forward,
    /// The bridge or the overlay's device, or their addresses.
    Links,
    /// Kernel parameters of the network.
    Sysctls,
    /// The CNI configuration or plugins.
    Cni,
}

impl Damage {
    /// All kinds of damage.
    pub const ALL: [Self; 5] = [Self::Tables, Self::Forward, Self::Links, Self::Sysctls, Self::Cni];

    /// Returns the name in metrics.
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
    /// Damage that was found and not returned yet.
    found: Vec<(Damage, String)>,
}

impl Network {
    /// Guards what [`Network::ensure`] created with the same `program`; it must have been called before.
    ///
    /// # Errors
    /// The tables cannot be listed.
    pub async fn guard(&self, program: &std::path::Path) -> Result<HostGuard, NetError> {
        let changing = rules::CHANGING.map(str::to_owned).to_vec();
        let of = |family: &str, changing| GuardedTable { table: format!("{family} {}", self.config.table()), changing };
        let mut guarded = vec![of("ip", changing)];
        // Kernels without netfilter for bridges do not have this table.
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
    /// Waits until something is missing or changed; returns each part with a description. Dropping the future loses
    /// nothing. [`Network::ensure`] repairs it, and a new guard must be created after that.
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

/// Returns the devices whose traffic a `FORWARD` chain blocks.
fn closed(config: &NetworkConfig) -> Result<Vec<(Damage, String)>, NetError> {
    let mut found = Vec::new();
    for device in [Some(config.bridge()), config.overlay.map(|_| config.vxlan())].into_iter().flatten() {
        if !iptables::is_forward_allowed(&device)? {
            found.push((Damage::Forward, format!("rules of {device} in iptables FORWARD")));
        }
    }
    Ok(found)
}

/// Returns links, addresses, and kernel parameters that are wrong.
fn faults(config: &NetworkConfig) -> Result<Vec<(Damage, String)>, NetError> {
    let mut found = Vec::new();
    let missing = block_on(missing_links(config))?;
    if !missing.is_empty() {
        found.extend(missing.into_iter().map(|link| (Damage::Links, link)));
        // Parameters of missing links are missing as well.
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
