//! The book of the host: who has which ranges, in files of `/run/kelson` under one lock.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane of `aside`; as a CNI plugin a process of its own")]

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::config::{NetworkConfig, network_id};
use crate::error::NetError;

/// The address ranges of a cluster, and the number of its overlay network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ranges {
    /// Addresses of pods in the whole cluster; each node gets a part of it.
    #[serde(rename = "clusterCIDR")]
    pub cluster: IpNet,
    /// Addresses of services, which no interface has.
    #[serde(rename = "serviceCIDR")]
    pub service: IpNet,
    /// VXLAN network identifier; clusters on shared machines need different ones.
    pub vni: u32,
}

impl Ranges {
    pub(super) fn overlaps(&self, net: &IpNet) -> bool {
        overlap(&self.cluster, net) || overlap(&self.service, net)
    }
}

/// A node's claim on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Reservation {
    /// Data directory of the server that has the range.
    pub(super) data_dir: PathBuf,
    /// The network namespace: others use other addresses.
    pub(super) netns: u64,
    #[serde(flatten)]
    pub(super) ranges: Ranges,
}

/// The configuration of the node's pods in these ranges.
impl Ranges {
    /// The network of a node with these pod CIDRs; `overlay` is its way to others.
    ///
    /// # Errors
    /// As [`NetworkConfig::new`].
    pub fn network(
        &self,
        data_dir: &Path,
        subnets: Vec<IpNet>,
        node_ip: Option<std::net::Ipv4Addr>,
    ) -> Result<NetworkConfig, NetError> {
        let overlay = node_ip.map(|node_ip| crate::OverlayConfig { vni: self.vni, port: crate::VXLAN_PORT, node_ip });
        Ok(NetworkConfig::new(data_dir, subnets, vec![self.cluster])?.with_overlay(overlay))
    }
}

/// Reservations of this host, one file per data directory. A reboot empties it, as it does the host's network.
pub const RUN_DIR: &str = "/run/kelson";

/// The record of a cluster's ranges in its server's data directory.
pub(super) const FILE: &str = "network.json";

/// Longest record read.
pub(super) const RECORD_BYTES_MAX: u64 = 64 << 10;

/// Most reservations looked at.
pub(super) const RECORDS_MAX: usize = 4096;

/// The reservations, locked until dropped: the directory itself is the lock, so that nothing need be left behind.
pub(super) struct Book {
    pub(super) dir: File,
}

impl Book {
    pub(super) fn open() -> Result<Self, NetError> {
        let failed = |what: &str| NetError::io(format!("{what} {RUN_DIR}"));
        loop {
            std::fs::create_dir_all(RUN_DIR).map_err(failed("create"))?;
            let dir = match File::open(RUN_DIR) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                other => other.map_err(failed("open"))?,
            };
            rustix::fs::flock(&dir, FlockOperation::LockExclusive).map_err(|e| failed("lock")(e.into()))?;
            // Whoever held the lock before may have removed the directory: then this is the lock of nothing.
            let held = dir.metadata().map_err(failed("read"))?.ino();
            if std::fs::metadata(RUN_DIR).is_ok_and(|m| m.ino() == held) {
                return Ok(Self { dir });
            }
        }
    }

    pub(super) fn path(data_dir: &Path) -> PathBuf {
        Path::new(RUN_DIR).join(format!("{}.json", network_id(data_dir)))
    }

    /// The reservations of other data directories in this network namespace. One whose directory is gone is over.
    pub(super) fn others(&self, data_dir: &Path) -> Result<Vec<Reservation>, NetError> {
        let (own, netns) = (Self::path(data_dir), netns_id()?);
        let entries = std::fs::read_dir(RUN_DIR).map_err(NetError::io(RUN_DIR))?;
        let files = entries.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "json"));
        let mut found = Vec::new();
        for path in files.filter(|p| *p != own).take(RECORDS_MAX) {
            match read_record::<Reservation>(&path) {
                Ok(Some(r)) if !r.data_dir.exists() => drop(std::fs::remove_file(&path)),
                Ok(Some(r)) if r.netns == netns => found.push(r),
                Ok(_) => {}
                Err(e) => tracing::warn!(error = %e, "a reservation nobody can read is passed over"),
            }
        }
        Ok(found)
    }

    pub(super) fn write(&self, data_dir: &Path, ranges: Ranges) -> Result<(), NetError> {
        let record = Reservation { data_dir: data_dir.to_owned(), netns: netns_id()?, ranges };
        write_whole(&Self::path(data_dir), &to_json(&record)?, false)
    }

    pub(super) fn remove(self, data_dir: &Path) -> Result<(), NetError> {
        let path = Self::path(data_dir);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(NetError::io(format!("remove {}", path.display()))(e));
            }
            _ => {}
        }
        // Goes with its last reservation; not empty is the usual answer.
        let _ = std::fs::remove_dir(RUN_DIR);
        drop(self.dir);
        Ok(())
    }
}

pub(super) fn netns_id() -> Result<u64, NetError> {
    const SELF: &str = "/proc/self/ns/net";
    Ok(std::fs::metadata(SELF).map_err(NetError::io(SELF))?.ino())
}

pub(super) fn to_json(value: &impl Serialize) -> Result<Vec<u8>, NetError> {
    serde_json::to_vec_pretty(value).map_err(|e| NetError::Config(format!("network record: {e}")))
}

pub(super) fn read_record<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, NetError> {
    use std::io::Read as _;
    let file = match File::open(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(NetError::io(path.display().to_string()))?,
    };
    let mut text = Vec::new();
    file.take(RECORD_BYTES_MAX).read_to_end(&mut text).map_err(NetError::io(path.display().to_string()))?;
    let record = serde_json::from_slice(&text);
    record.map(Some).map_err(|e| NetError::Config(format!("{}: {e}", path.display())))
}

pub(super) fn write_durably(path: &Path, text: &[u8]) -> Result<(), NetError> {
    write_whole(path, text, true)
}

/// Replaces a file at once, so that nobody reads half of it; `sync`: so that a power cut does not take it back.
pub(super) fn write_whole(path: &Path, text: &[u8], sync: bool) -> Result<(), NetError> {
    let temporary = path.with_extension("tmp");
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(text)?;
        if sync {
            file.sync_all()?;
        }
        std::fs::rename(&temporary, path)?;
        if let (true, Some(dir)) = (sync, path.parent()) {
            File::open(dir)?.sync_all()?;
        }
        Ok(())
    };
    write().map_err(NetError::io(format!("write {}", path.display())))
}

pub(super) fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}
