//! The host's part of the pod network: the bridge, address ranges without overlap, sysctls, the CNI files.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane of `aside`; as a CNI plugin a process of its own")]

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;

use crate::config::{MTU_DEFAULT, NetworkConfig, VXLAN_OVERHEAD, mac_of};
use crate::error::NetError;
use crate::ipam::LockedPool;
use crate::netlink::{Link, Links};
use crate::netns::block_on;
use crate::{iptables, nft, overlay, rules, spoofing, sysctl};

/// Runs one script as one transaction, and waits for it.
pub(super) fn apply(script: &str) -> Result<(), NetError> {
    block_on(async { Ok(nft::apply(script).await?) })
}

/// Sets up the host; returns the configuration with the MTU filled in.
pub(crate) fn ensure_host(config: &NetworkConfig) -> Result<NetworkConfig, NetError> {
    config.validate()?;
    let config = block_on(ensure_bridge(config))?;
    ensure_sysctls(&config)?;
    let locked = LockedPool::open(&config.state_dir())?;
    locked.save()?;
    apply(&rules::table_script(&config, locked.pool.allocations()))?;
    // On a kernel without netfilter for bridges pods work nevertheless, and a warning is logged.
    if let Err(error) = apply(&spoofing::table_script(&config)) {
        tracing::warn!(%error, "enabling source address checks failed; pods can spoof each other's addresses");
    }
    block_on(lock_ports(&config, &locked))?;
    iptables::allow_forward(&config.bridge())?;
    if config.overlay.is_some() {
        iptables::allow_forward(&config.vxlan())?;
    }
    Ok(config)
}

/// Locks the ports of existing pods, which an earlier version may have created.
async fn lock_ports(config: &NetworkConfig, locked: &LockedPool) -> Result<(), NetError> {
    let links = Links::open()?;
    for (ip, allocation) in locked.pool.allocations() {
        let port = links.by_name(&config.veth(&allocation.container, &allocation.ifname)).await?;
        // A link without a bridge is a leftover.
        if let Some(port) = port.filter(|port| port.controller.is_some()) {
            links.set_port(port.index, &mac_of(*ip)).await?;
        }
    }
    Ok(())
}

pub(super) async fn ensure_bridge(config: &NetworkConfig) -> Result<NetworkConfig, NetError> {
    let mut config = config.clone();
    let links = Links::open()?;
    if config.mtu == 0 {
        config.mtu = node_mtu(&links, &config).await?;
    }
    let (name, gateway, subnet) = (config.bridge(), config.gateway(), config.subnet());
    let existing = links.by_name(&name).await?;
    let all = links.all().await?;
    let own = [name.clone(), config.vxlan()];
    let own: Vec<u32> = all.iter().filter(|l| own.contains(&l.name)).map(|l| l.index).collect();
    let mut addresses = links.addresses().await?;
    refuse_overlap(&all, &addresses, &own, &subnet)?;
    let bridge = match existing {
        Some(link) => link,
        None => {
            // A bridge with an explicit hardware address does not change it when ports come and go.
            links.add_bridge(&name, mac_of(gateway), config.mtu).await?;
            let made = links.by_name(&name).await?;
            made.ok_or_else(|| NetError::Check(format!("bridge {name} disappeared after its creation")))?
        }
    };
    if bridge.mtu != config.mtu {
        links.set_mtu(bridge.index, config.mtu).await?;
    }
    if !bridge.up {
        links.set_up(bridge.index).await?;
    }
    links.add_address(bridge.index, gateway, subnet.prefix_len()).await?;
    // The node may have got another pod CIDR since the last start.
    addresses.retain(|(index, net, _)| *index == bridge.index && net.addr().is_ipv4() && net.addr() != gateway);
    for (_, _, message) in addresses {
        links.delete_address(message).await?;
    }
    overlay::ensure_device(&links, &config).await?;
    Ok(config)
}

/// Returns the MTU of the node's interface, less what the overlay adds.
pub(super) async fn node_mtu(links: &Links, config: &NetworkConfig) -> Result<u32, NetError> {
    let Some(overlay) = config.overlay else { return Ok(links.default_route_mtu().await?.unwrap_or(MTU_DEFAULT)) };
    let node_ip = IpAddr::V4(overlay.node_ip);
    let index = links.addresses().await?.into_iter().find(|(_, net, _)| net.addr() == node_ip).map(|(i, ..)| i);
    let own = links.all().await?.into_iter().find(|l| Some(l.index) == index).map(|l| l.mtu);
    let mtu = match own {
        // The MTU of the loopback interface does not apply to a network.
        Some(mtu) if !node_ip.is_loopback() => mtu,
        _ => links.default_route_mtu().await?.unwrap_or(MTU_DEFAULT),
    };
    Ok(mtu.saturating_sub(VXLAN_OVERHEAD))
}

pub(super) fn refuse_overlap<T>(
    links: &[Link],
    addresses: &[(u32, IpNet, T)],
    own: &[u32],
    subnet: &IpNet,
) -> Result<(), NetError> {
    for (index, net, _) in addresses.iter().filter(|(index, ..)| !own.contains(index)) {
        if net.contains(&subnet.network()) || subnet.contains(&net.addr()) {
            let name = links.iter().find(|l| l.index == *index).map_or("?", |l| l.name.as_str());
            return Err(NetError::Config(format!(
                "pod CIDR {subnet} overlaps {net} of interface {name}; choose another with --cluster-cidr"
            )));
        }
    }
    Ok(())
}

/// Returns the kernel parameters that the network needs, with their values.
fn sysctls(config: &NetworkConfig) -> Vec<(String, &'static str)> {
    let of = |device: &str, key: &str| format!("net/ipv4/conf/{device}/{key}");
    let bridge = config.bridge();
    let mut all = vec![
        ("net/ipv4/ip_forward".to_owned(), "1"),
        // Loose mode, so that answers of pods to addresses routed by another interface are not dropped.
        (of(&bridge, "rp_filter"), "2"),
        // A host port is reachable on the host's 127.0.0.1; the table's guard chain excludes pods from that range.
        (of(&bridge, "route_localnet"), "1"),
        (of(&bridge, "send_redirects"), "0"),
    ];
    all.extend(config.overlay.map(|_| (of(&config.vxlan(), "rp_filter"), "2")));
    all
}

pub(super) fn ensure_sysctls(config: &NetworkConfig) -> Result<(), NetError> {
    for (key, value) in sysctls(config) {
        sysctl::ensure(&key, value).map_err(NetError::io(format!("set {}={value}", key.replace('/', "."))))?;
    }
    Ok(())
}

/// Returns the parameters that have another value.
pub(super) fn wrong_sysctls(config: &NetworkConfig) -> Vec<String> {
    sysctls(config).into_iter().filter(|(key, value)| !sysctl::has_value(key, value)).map(|(key, _)| key).collect()
}

/// Returns the files of [`install_cni`], including temporary ones.
pub(super) fn cni_files(config: &NetworkConfig) -> Vec<PathBuf> {
    let bin = NetworkConfig::cni_bin_dir(&config.data_dir);
    let conflist = config.conflist_path();
    let names = ["kelson", "loopback", ".kelson.tmp", ".loopback.tmp"].map(|name| bin.join(name));
    names.into_iter().chain([conflist.with_extension("tmp"), conflist]).collect()
}

/// Reports whether [`install_cni`] would change nothing. The MTU is not compared, since it is determined when the
/// network is set up.
pub(super) fn is_cni_installed(config: &NetworkConfig, program: &Path) -> bool {
    let bin = NetworkConfig::cni_bin_dir(&config.data_dir);
    let links =
        ["kelson", "loopback"].iter().all(|name| std::fs::read_link(bin.join(name)).is_ok_and(|to| to == program));
    links && config.conflist_path().is_file()
}

pub(super) fn install_cni(config: &NetworkConfig, program: &Path) -> Result<(), NetError> {
    let bin = NetworkConfig::cni_bin_dir(&config.data_dir);
    let conf = NetworkConfig::cni_conf_dir(&config.data_dir);
    for dir in [&bin, &conf] {
        std::fs::create_dir_all(dir).map_err(NetError::io(dir.display().to_string()))?;
    }
    for name in ["kelson", "loopback"] {
        let link = bin.join(name);
        if std::fs::read_link(&link).is_ok_and(|to| to == program) {
            continue;
        }
        let temporary = bin.join(format!(".{name}.tmp"));
        let _ = std::fs::remove_file(&temporary);
        std::os::unix::fs::symlink(program, &temporary)
            .and_then(|()| std::fs::rename(&temporary, &link))
            .map_err(NetError::io(format!("link {}", link.display())))?;
    }
    let path = config.conflist_path();
    let wanted = serde_json::to_vec_pretty(&config.conflist())
        .map_err(|e| NetError::Config(format!("CNI configuration: {e}")))?;
    if std::fs::read(&path).is_ok_and(|now| now == wanted) {
        return Ok(());
    }
    // The runtime watches the directory and reads files that end in .conflist, so the file is written under another
    // name and renamed.
    let temporary = path.with_extension("tmp");
    std::fs::write(&temporary, wanted)
        .and_then(|()| std::fs::rename(&temporary, &path))
        .map_err(NetError::io(format!("write {}", path.display())))
}
