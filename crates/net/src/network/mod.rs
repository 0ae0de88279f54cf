//! The host's part of the network, set up or repaired by [`Network::ensure`] at each start and removed by [`cleanup`];
//! and the attachment of one pod, for the CNI executable. Everything blocks; the async functions use a blocking pool.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane of `aside`; as a CNI plugin a process of its own")]
mod guard;
mod host;

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use crate::aside::aside;
use crate::config::{NetworkConfig, mac_of, network_id};
use crate::error::NetError;
use crate::ipam::LockedPool;
use crate::netlink::{Links, VethPair};
use crate::netns::{Netns, block_on};
use crate::overlay::Peer;
use crate::ports::PortMapping;
use crate::{iptables, overlay, ranges, rules, spoofing};

pub use guard::{Damage, HostGuard};
use host::{apply, ensure_host, install_cni};

/// The default directory of cached results in CNI's library; containerd cannot change it.
const CNI_CACHE_DIR: &str = "/var/lib/cni/results";

/// Returns every address of this host, including loopback.
///
/// # Errors
/// The kernel cannot be queried.
pub async fn host_addresses() -> Result<HashSet<IpAddr>, NetError> {
    aside(|| {
        let listed = block_on(async { Links::open()?.addresses().await })?;
        Ok(listed.into_iter().map(|(_, net, _)| net.addr()).collect())
    })
    .await
}

/// A node's pod network.
#[derive(Debug, Clone)]
pub struct Network {
    config: Arc<NetworkConfig>,
}

/// The attachment of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attachment {
    pub ip: IpAddr,
    pub gateway: IpAddr,
    pub host_name: String,
    pub host_mac: String,
    pub pod_mac: String,
}

impl Network {
    /// Creates a handle; nothing is changed yet.
    pub fn new(config: NetworkConfig) -> Self {
        Self { config: Arc::new(config) }
    }

    /// Returns names and ranges.
    pub fn config(&self) -> &NetworkConfig {
        &self.config
    }

    /// Creates or repairs everything on the host: sysctls, the bridge with the gateway's address, the nftables table
    /// with the host ports in use, and a rule in an iptables `FORWARD` chain; then writes the CNI executables (links to
    /// `program`, this binary) and, last, the configuration that makes the runtime start pods.
    ///
    /// # Errors
    /// The first step that failed. Another call continues from there.
    pub async fn ensure(&self, program: &Path) -> Result<(), NetError> {
        let (config, program) = (self.config.clone(), program.to_path_buf());
        aside(move || {
            let config = ensure_host(&config)?;
            install_cni(&config, &program)
        })
        .await
    }

    /// Releases the addresses, ports and interfaces of sandboxes that are not in `live`. For the start of a server,
    /// with the runtime's list, after changes that it missed.
    ///
    /// # Errors
    /// The state cannot be read or written; interfaces that cannot be removed are logged.
    pub async fn gc(&self, live: HashSet<String>) -> Result<usize, NetError> {
        let config = self.config.clone();
        aside(move || collect(&config, |container, _| live.contains(container))).await
    }

    /// Connects the overlay to exactly these other nodes. Must be called after [`ensure`](Self::ensure); without an
    /// overlay it does nothing.
    ///
    /// # Errors
    /// The first step that failed. Another call continues from there.
    pub async fn connect(&self, peers: Vec<Peer>) -> Result<(), NetError> {
        let config = self.config.clone();
        aside(move || block_on(overlay::connect(&config, &peers))).await
    }

    /// Returns addresses in use, by sandbox.
    ///
    /// # Errors
    /// The state cannot be read.
    pub async fn allocations(&self) -> Result<Vec<(IpAddr, crate::Allocation)>, NetError> {
        let dir = self.config.state_dir();
        aside(move || {
            let locked = LockedPool::open(&dir)?;
            Ok(locked.pool.allocations().iter().map(|(ip, a)| (*ip, a.clone())).collect())
        })
        .await
    }
}

/// Connects a pod: address, interfaces, routes, host ports. Reverts everything when a step fails.
pub(crate) fn attach(
    config: &NetworkConfig,
    container: &str,
    ifname: &str,
    netns: &str,
    ports: Vec<PortMapping>,
) -> Result<Attachment, NetError> {
    config.validate()?;
    let netns = Netns::open(netns)?;
    let mut locked = LockedPool::open(&config.state_dir())?;
    let with_ports = !ports.is_empty() || locked.pool.has_ports(container, ifname);
    let ip = locked.pool.allocate(&config.subnet(), container, ifname, ports)?;
    locked.save()?;
    // Host ports are written under the lock, so that the scripts of two pods are ordered.
    let mut done =
        if with_ports { apply(&rules::host_ports_script(config, locked.pool.allocations())) } else { Ok(()) };
    drop(locked);
    if let (Err(_), true) = (&done, with_ports) {
        // Another program flushed the ruleset: create the table again, including host ports.
        done = ensure_host(config).map(|_| ());
    }
    let attached = done.and_then(|()| connect(config, container, ifname, &netns, ip));
    if attached.is_err()
        && let Err(e) = detach(config, container, ifname)
    {
        tracing::warn!(container, error = %e, "rolling back a failed pod network attachment failed");
    }
    attached
}

fn connect(
    config: &NetworkConfig,
    container: &str,
    ifname: &str,
    netns: &Netns,
    ip: IpAddr,
) -> Result<Attachment, NetError> {
    let host_name = config.veth(container, ifname);
    let host = block_on(async {
        let links = Links::open()?;
        let bridge = match links.by_name(&config.bridge()).await? {
            Some(bridge) => bridge,
            None => {
                let again = config.clone();
                // The event loop needs a separate thread; this one blocks for one pod anyway.
                let thread = std::thread::Builder::new().name("pod-network".to_owned());
                let started = thread.spawn(move || ensure_host(&again)).map_err(NetError::io("start a thread"))?;
                let made = started.join();
                made.map_err(|_| NetError::Check("setting up the pod network panicked".to_owned()))??;
                let made = links.by_name(&config.bridge()).await?;
                made.ok_or_else(|| NetError::Check(format!("bridge {} is missing", config.bridge())))?
            }
        };
        // A leftover of an attempt that was killed.
        links.delete(&host_name).await?;
        let pair = VethPair {
            host_name: &host_name,
            pod_name: ifname,
            pod_mac: mac_of(ip),
            pod_netns: netns.raw(),
            bridge: bridge.index,
            mtu: config.mtu,
        };
        links.add_veth(pair).await?;
        let host = links.by_name(&host_name).await?;
        let host = host.ok_or_else(|| NetError::Check(format!("{host_name} disappeared after its creation")))?;
        links.set_port(host.index, &mac_of(ip)).await?;
        Ok(host)
    })?;
    let gateway = config.gateway();
    let pod = netns.run(|| {
        block_on(async {
            let links = Links::open()?;
            let pod = links.by_name(ifname).await?;
            let pod = pod.ok_or_else(|| NetError::Check(format!("{ifname} is not in the pod's namespace")))?;
            links.add_address(pod.index, ip, if ip.is_ipv4() { 32 } else { 128 }).await?;
            links.set_up(pod.index).await?;
            links.add_pod_routes(pod.index, gateway).await?;
            Ok(pod)
        })
    })?;
    Ok(Attachment { ip, gateway, host_name, host_mac: mac_text(&host.mac), pod_mac: mac_text(&pod.mac) })
}

/// Disconnects a pod. Succeeds when nothing is left of it; continues after errors and returns the first.
pub(crate) fn detach(config: &NetworkConfig, container: &str, ifname: &str) -> Result<(), NetError> {
    let removed = block_on(async { Links::open()?.delete(&config.veth(container, ifname)).await });
    let mut locked = LockedPool::open(&config.state_dir())?;
    let mut ports = Ok(());
    if let Some((_, gone)) = locked.pool.release(container, ifname) {
        if !gone.ports.is_empty() {
            ports = drop_ports(config, &locked);
        }
        // The address stays allocated while host ports refer to it, or the interface still answers for it.
        if removed.is_ok() && ports.is_ok() {
            locked.save()?;
        }
    }
    removed.map(|_| ())?;
    ports
}

fn drop_ports(config: &NetworkConfig, locked: &LockedPool) -> Result<(), NetError> {
    match apply(&rules::host_ports_script(config, locked.pool.allocations())) {
        Ok(()) => Ok(()),
        // Without the table there is no port to remove: replacing it shows whether nft works at all.
        Err(_) => apply(&rules::table_script(config, locked.pool.allocations())),
    }
}

/// Compares the state of the kernel with what ADD created.
pub(crate) fn check(config: &NetworkConfig, container: &str, ifname: &str, netns: &str) -> Result<(), NetError> {
    let netns = Netns::open(netns)?;
    let ip = LockedPool::open(&config.state_dir())?.pool.address_of(container, ifname);
    let ip = ip.ok_or_else(|| NetError::Check(format!("no address is allocated to {container}/{ifname}")))?;
    block_on(async {
        let links = Links::open()?;
        let bridge = links.by_name(&config.bridge()).await?.map(|b| b.index);
        let host = links.by_name(&config.veth(container, ifname)).await?;
        match host {
            Some(host) if host.up && host.controller.is_some() && host.controller == bridge => Ok(()),
            _ => Err(NetError::Check(format!("the host end of {ifname} is not up on {}", config.bridge()))),
        }
    })?;
    netns.run(|| {
        block_on(async {
            let links = Links::open()?;
            let missing = || NetError::Check(format!("{ifname} does not have {ip}"));
            let pod = links.by_name(ifname).await?.ok_or_else(missing)?;
            let has = links.addresses().await?.iter().any(|(index, net, _)| *index == pod.index && net.addr() == ip);
            if has { Ok(()) } else { Err(missing()) }
        })
    })
}

/// Checks whether an ADD could succeed now.
pub(crate) fn status(config: &NetworkConfig) -> Result<(), NetError> {
    config.validate()?;
    block_on(async {
        match Links::open()?.by_name(&config.bridge()).await? {
            Some(_) => Ok(()),
            None => Err(NetError::Check(format!("bridge {} is missing", config.bridge()))),
        }
    })
}

/// Releases everything whose `(container, ifname)` is not live.
pub(crate) fn collect(config: &NetworkConfig, live: impl Fn(&str, &str) -> bool) -> Result<usize, NetError> {
    let mut locked = LockedPool::open(&config.state_dir())?;
    let gone = locked.pool.retain(|a| live(&a.container, &a.ifname));
    if gone.is_empty() {
        return Ok(0);
    }
    block_on(async {
        let links = Links::open()?;
        for allocation in &gone {
            if let Err(e) = links.delete(&config.veth(&allocation.container, &allocation.ifname)).await {
                tracing::warn!(container = allocation.container, error = %e, "removing the interface of a lost pod failed");
            }
        }
        Ok(())
    })?;
    if gone.iter().any(|a| !a.ports.is_empty()) {
        drop_ports(config, &locked)?;
    }
    locked.save()?;
    Ok(gone.len())
}

/// Removes everything that a server with this data directory created in the host's network: interfaces, bridge,
/// nftables table, iptables rules, CNI files. Continues after errors and returns them all; empty means success.
pub async fn cleanup(data_dir: &Path) -> Vec<NetError> {
    let data_dir = data_dir.to_path_buf();
    let work = move || Ok(cleanup_blocking(&data_dir));
    aside(work).await.unwrap_or_else(|e| vec![e])
}

fn cleanup_blocking(data_dir: &Path) -> Vec<NetError> {
    let names = NetworkConfig {
        id: network_id(data_dir),
        data_dir: data_dir.to_path_buf(),
        subnets: Vec::new(),
        cluster_cidrs: Vec::new(),
        mtu: 0,
        overlay: None,
    };
    let mut errors = Vec::new();
    // First, so that the runtime adds no more pods.
    for path in host::cni_files(&names) {
        keep_error(&mut errors, remove(&path, std::fs::remove_file(&path)));
    }
    // Other files in these directories may be from other users of this runtime, so the directories are kept then.
    for dir in [NetworkConfig::cni_conf_dir(data_dir), NetworkConfig::cni_bin_dir(data_dir), data_dir.join("cni")] {
        let _ = std::fs::remove_dir(dir);
    }
    let state = names.state_dir();
    keep_error(&mut errors, remove(&state, std::fs::remove_dir_all(&state)));
    keep_error(&mut errors, block_on(delete_links(&names)));
    match apply(&rules::delete_script(&names.table())) {
        // Without the program no table was created.
        Err(NetError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
        other => keep_error(&mut errors, other),
    }
    // On kernels without such tables there is none, and a remaining one is harmless without the ports it names.
    if let Err(error) = apply(&spoofing::delete_script(&names.table())) {
        tracing::debug!(%error, "updating host port rules failed");
    }
    for device in [names.bridge(), names.vxlan()] {
        keep_error(&mut errors, iptables::disallow_forward(&device));
    }
    keep_error(&mut errors, ranges::give_back(data_dir));
    let prefix = format!("{}-", names.network_name());
    for entry in std::fs::read_dir(CNI_CACHE_DIR).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            keep_error(&mut errors, remove(&entry.path(), std::fs::remove_file(entry.path())));
        }
    }
    errors
}

fn keep_error(errors: &mut Vec<NetError>, result: Result<(), NetError>) {
    errors.extend(result.err());
}

fn remove(path: &Path, result: std::io::Result<()>) -> Result<(), NetError> {
    match result {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(NetError::io(format!("remove {}", path.display()))(e))
        }
        _ => Ok(()),
    }
}

async fn delete_links(names: &NetworkConfig) -> Result<(), NetError> {
    let links = Links::open()?;
    let bridge = links.by_name(&names.bridge()).await?.map(|b| b.index);
    let mut first_error = None;
    for link in links.all().await? {
        let on_bridge = bridge.is_some() && link.controller == bridge;
        // Only without a bridge, since another server's names may have the same prefix.
        let orphan = link.controller.is_none() && !link.is_vxlan() && link.name.starts_with(&names.veth_prefix());
        if (on_bridge || orphan)
            && let Err(e) = links.delete(&link.name).await
        {
            first_error.get_or_insert(e);
        }
    }
    for device in [names.bridge(), names.vxlan()] {
        if let Err(e) = links.delete(&device).await {
            first_error.get_or_insert(e);
        }
    }
    first_error.map_or(Ok(()), Err)
}

fn mac_text(mac: &[u8]) -> String {
    mac.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":")
}
