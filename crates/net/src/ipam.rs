//! Allocations of addresses and host ports: one small file under a lock, replaced atomically. It survives kill -9 at
//! any point; a reboot empties it, because no pod's network survives one. Independent of links.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane of `aside`; as a CNI plugin a process of its own")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::config::gateway_of;
use crate::error::NetError;
use crate::ports::PortMapping;

/// The maximum size of the state file: a /16 full of pods with a few host ports each stays below.
const STATE_BYTES_MAX: u64 = 64 << 20;

/// An address in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Allocation {
    /// The ID of the sandbox.
    pub container: String,
    /// The name of the interface in the pod.
    pub ifname: String,
    /// Host ports mapped to this address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortMapping>,
}

/// All allocations of a node.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pool {
    /// The boot ID when this was written.
    boot_id: String,
    /// The last allocated address: the search continues after it, so that a released address is not reused soon.
    last: Option<IpAddr>,
    allocations: BTreeMap<IpAddr, Allocation>,
}

impl Pool {
    /// Allocates an address for `container`'s `ifname`: the one it has, or the next free one. The ports replace its
    /// previous ones.
    pub fn allocate(
        &mut self,
        subnet: &IpNet,
        container: &str,
        ifname: &str,
        ports: Vec<PortMapping>,
    ) -> Result<IpAddr, NetError> {
        self.refuse_taken_ports(container, ifname, &ports)?;
        let allocation = Allocation { container: container.to_owned(), ifname: ifname.to_owned(), ports };
        let ip = match self.address_of(container, ifname) {
            Some(ip) if subnet.contains(&ip) => ip,
            _ => self.next_free(subnet)?,
        };
        self.last = Some(ip);
        self.allocations.insert(ip, allocation);
        Ok(ip)
    }

    /// Releases the allocation of `container`'s `ifname` and returns it; `None` when there was none.
    pub fn release(&mut self, container: &str, ifname: &str) -> Option<(IpAddr, Allocation)> {
        let ip = self.address_of(container, ifname)?;
        self.allocations.remove(&ip).map(|allocation| (ip, allocation))
    }

    /// Keeps the allocations for which `live` is true; returns the others.
    pub fn retain(&mut self, live: impl Fn(&Allocation) -> bool) -> Vec<Allocation> {
        let mut gone = Vec::new();
        self.allocations.retain(|_, allocation| {
            let keep = live(allocation);
            if !keep {
                gone.push(allocation.clone());
            }
            keep
        });
        gone
    }

    pub fn address_of(&self, container: &str, ifname: &str) -> Option<IpAddr> {
        let mine = |a: &Allocation| a.container == container && a.ifname == ifname;
        self.allocations.iter().find(|(_, a)| mine(a)).map(|(ip, _)| *ip)
    }

    /// Reports whether `container`'s `ifname` has host ports.
    pub fn has_ports(&self, container: &str, ifname: &str) -> bool {
        self.allocations.values().any(|a| a.container == container && a.ifname == ifname && !a.ports.is_empty())
    }

    pub fn allocations(&self) -> &BTreeMap<IpAddr, Allocation> {
        &self.allocations
    }

    fn refuse_taken_ports(&self, container: &str, ifname: &str, ports: &[PortMapping]) -> Result<(), NetError> {
        let others = self.allocations.values().filter(|a| a.container != container || a.ifname != ifname);
        let taken: Vec<_> = others.flat_map(|a| a.ports.iter().map(move |p| (&a.container, p))).collect();
        for (at, port) in ports.iter().enumerate() {
            let earlier = ports[..at].iter().map(|p| (&*container, p));
            let taken = taken.iter().map(|(c, p)| (c.as_str(), *p)).chain(earlier);
            for (holder, other) in taken {
                if overlaps(port, other) {
                    return Err(NetError::PortInUse {
                        port: port.host_port,
                        protocol: port.protocol,
                        host_ip: port.host_ip,
                        container: holder.to_owned(),
                    });
                }
            }
        }
        Ok(())
    }

    fn next_free(&self, subnet: &IpNet) -> Result<IpAddr, NetError> {
        let (IpNet::V4(v4), IpAddr::V4(gateway)) = (subnet, gateway_of(subnet)) else {
            return Err(NetError::Config(format!("pod CIDR {subnet}: only IPv4 is supported yet")));
        };
        // Pods have the addresses between the gateway and the broadcast address.
        let (first, end) = (u32::from(gateway) + 1, u32::from(v4.broadcast()));
        let start = match self.last {
            Some(IpAddr::V4(last)) if (first..end).contains(&(u32::from(last) + 1)) => u32::from(last) + 1,
            _ => first,
        };
        let mut candidates = (start..end).chain(first..start).map(|n| IpAddr::V4(Ipv4Addr::from(n)));
        let free = candidates.find(|ip| !self.allocations.contains_key(ip));
        free.ok_or(NetError::Exhausted { subnet: *subnet, used: self.allocations.len() })
    }
}

fn overlaps(a: &PortMapping, b: &PortMapping) -> bool {
    a.host_port == b.host_port
        && a.protocol == b.protocol
        && (a.host_ip == b.host_ip || a.host_ip.is_unspecified() || b.host_ip.is_unspecified())
}

/// The pool on disk, with an exclusive lock until it is dropped.
pub(crate) struct LockedPool {
    pub pool: Pool,
    path: PathBuf,
    _lock: File,
}

impl LockedPool {
    /// Waits for the lock and reads the state in `dir`, which is created if missing.
    pub fn open(dir: &Path) -> Result<Self, NetError> {
        Self::open_at_boot(dir, &boot_id()?)
    }

    fn open_at_boot(dir: &Path, boot_id: &str) -> Result<Self, NetError> {
        std::fs::create_dir_all(dir).map_err(NetError::io(dir.display().to_string()))?;
        let lock_path = dir.join("lock");
        let lock = File::options().create(true).truncate(false).write(true).open(&lock_path);
        let lock = lock.map_err(NetError::io(lock_path.display().to_string()))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)
            .map_err(|e| NetError::io(format!("lock {}", lock_path.display()))(e.into()))?;
        let path = dir.join("allocations.json");
        let mut pool = read(&path)?;
        if pool.boot_id != boot_id {
            pool = Pool { boot_id: boot_id.to_owned(), last: pool.last, allocations: BTreeMap::new() };
        }
        Ok(Self { pool, path, _lock: lock })
    }

    /// Replaces the file. No sync, since after a power failure its content does not matter.
    pub fn save(&self) -> Result<(), NetError> {
        let temporary = self.path.with_extension("tmp");
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&temporary)?;
            file.write_all(&serde_json::to_vec(&self.pool)?)?;
            std::fs::rename(&temporary, &self.path)
        };
        write().map_err(NetError::io(format!("write {}", self.path.display())))
    }
}

fn read(path: &Path) -> Result<Pool, NetError> {
    let what = || format!("read {}", path.display());
    match std::fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Pool::default()),
        Err(e) => return Err(NetError::io(what())(e)),
        Ok(meta) if meta.len() > STATE_BYTES_MAX => {
            return Err(NetError::Config(format!("{} is larger than {STATE_BYTES_MAX} bytes", path.display())));
        }
        // A power failure can leave a file that was renamed but not yet written.
        Ok(meta) if meta.len() == 0 => return Ok(Pool::default()),
        Ok(_) => {}
    }
    let bytes = std::fs::read(path).map_err(NetError::io(what()))?;
    // A guess could allocate an address twice, so this is an error.
    serde_json::from_slice(&bytes).map_err(|e| NetError::Config(format!("{}: {e}", path.display())))
}

fn boot_id() -> Result<String, NetError> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    std::fs::read_to_string(PATH).map(|id| id.trim().to_owned()).map_err(NetError::io(PATH))
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use rand::rngs::StdRng;
    use rand::{Rng as _, SeedableRng as _};

    use super::*;
    use crate::ports::Protocol;

    fn port(host_ip: &str, host_port: u16) -> PortMapping {
        PortMapping { host_port, container_port: 80, protocol: Protocol::Tcp, host_ip: host_ip.parse().unwrap() }
    }

    /// For any sequence of allocations, releases, repeated allocations and reloads: no address is used twice, none is
    /// outside the pods' part of the range, the same container always gets the same one, and "full" is reported exactly
    /// when it is full.
    #[test]
    fn any_sequence_keeps_addresses_unique() {
        for seed in 0..40_u64 {
            let mut rng = StdRng::seed_from_u64(seed);
            let dir = tempfile::tempdir().unwrap();
            let prefix = rng.random_range(26..=30);
            let subnet: IpNet = format!("10.9.8.0/{prefix}").parse().unwrap();
            let capacity = (1_usize << (32 - prefix)) - 3;
            let mut model: HashMap<String, IpAddr> = HashMap::new();
            let mut locked = LockedPool::open_at_boot(dir.path(), "b").unwrap();
            for _ in 0..300 {
                let name = format!("c{}", rng.random_range(0..capacity * 2));
                match rng.random_range(0..10) {
                    0..6 => match locked.pool.allocate(&subnet, &name, "eth0", vec![]) {
                        Ok(ip) => {
                            let before = model.insert(name.clone(), ip);
                            assert!(before.is_none() || before == Some(ip), "seed {seed}: {name} moved");
                        }
                        Err(e) => {
                            assert!(matches!(e, NetError::Exhausted { .. }), "seed {seed}: {e}");
                            assert_eq!(model.len(), capacity, "seed {seed}: full too early");
                        }
                    },
                    6..9 => {
                        let gone = locked.pool.release(&name, "eth0").map(|(ip, _)| ip);
                        assert_eq!(gone, model.remove(&name), "seed {seed}");
                    }
                    _ => {
                        locked.save().unwrap();
                        drop(locked);
                        locked = LockedPool::open_at_boot(dir.path(), "b").unwrap();
                    }
                }
                let distinct: HashSet<_> = model.values().collect();
                assert_eq!(distinct.len(), model.len(), "seed {seed}: an address twice");
                assert!(model.values().all(|ip| subnet.contains(ip)), "seed {seed}");
                let forbidden = [subnet.network(), gateway_of(&subnet), subnet.broadcast()];
                assert!(!forbidden.iter().any(|ip| distinct.contains(ip)), "seed {seed}");
            }
        }
    }

    #[test]
    fn a_freed_address_rests() {
        let subnet: IpNet = "10.0.0.0/24".parse().unwrap();
        let mut pool = Pool::default();
        let first = pool.allocate(&subnet, "a", "eth0", vec![]).unwrap();
        pool.release("a", "eth0").unwrap();
        assert_ne!(pool.allocate(&subnet, "b", "eth0", vec![]).unwrap(), first);
    }

    #[test]
    fn a_reboot_frees_everything() {
        let (dir, subnet) = (tempfile::tempdir().unwrap(), "10.0.0.0/24".parse().unwrap());
        let mut locked = LockedPool::open_at_boot(dir.path(), "one").unwrap();
        locked.pool.allocate(&subnet, "a", "eth0", vec![]).unwrap();
        locked.save().unwrap();
        drop(locked);
        assert_eq!(LockedPool::open_at_boot(dir.path(), "one").unwrap().pool.allocations().len(), 1);
        assert_eq!(LockedPool::open_at_boot(dir.path(), "two").unwrap().pool.allocations().len(), 0);
    }

    #[test]
    fn a_damaged_file_is_an_error_and_not_an_empty_pool() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("allocations.json"), b"{\"bootId\":").unwrap();
        assert!(matches!(LockedPool::open_at_boot(dir.path(), "b"), Err(NetError::Config(_))));
    }

    #[test]
    fn host_ports_have_one_owner() {
        let subnet: IpNet = "10.0.0.0/24".parse().unwrap();
        let mut pool = Pool::default();
        pool.allocate(&subnet, "a", "eth0", vec![port("0.0.0.0", 8080)]).unwrap();
        let err = pool.allocate(&subnet, "b", "eth0", vec![port("192.0.2.2", 8080)]).expect_err("taken");
        assert_eq!(err.to_string(), "host port 8080/tcp on 192.0.2.2 is in use by container a");
        assert!(pool.address_of("b", "eth0").is_none());
        pool.allocate(&subnet, "b", "eth0", vec![port("192.0.2.2", 8081)]).unwrap();
        pool.allocate(&subnet, "c", "eth0", vec![port("192.0.2.3", 8081)]).unwrap();
        pool.allocate(&subnet, "d", "eth0", vec![port("0.0.0.0", 9), port("0.0.0.0", 9)]).expect_err("its own");
    }
}
