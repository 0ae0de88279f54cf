//! Everything that is measured of one cgroup, for metrics of containers, pods, QoS classes and all pods together.
#![allow(clippy::disallowed_methods, reason = "blocking: only kernel files, no disk")]

use std::path::Path;

use super::io::{self, DeviceIo};
use super::pressure::ResourcePressures;
use super::usage::CgroupUsage;
use super::{CLASSES, CgroupName, Cgroups, Inner};

/// The kernel's directory of block devices by number.
const DEVICES: &str = "/sys/dev/block";

/// Measurements of one cgroup.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CgroupReading {
    /// Path of the cgroup.
    pub id: String,
    /// Usage of CPU, memory and threads.
    pub usage: CgroupUsage,
    /// Pressure; empty on cgroup v1.
    pub pressure: ResourcePressures,
    /// I/O by device.
    pub io: Vec<DeviceIo>,
    /// Number of processes, including those of the cgroups below.
    pub processes: Option<u64>,
}

impl Cgroups {
    /// Reads the cgroups above those of pods: of all pods, and of the QoS classes.
    pub fn above_pods(&self) -> Vec<CgroupReading> {
        let Some(inner) = &self.inner else { return Vec::new() };
        let classes = CLASSES.iter().map(|class| inner.pods.join(*class));
        std::iter::once(inner.pods.clone()).chain(classes).map(|name| inner.reading(&name)).collect()
    }

    /// Reads the root cgroup, for which the kernel has fewer files. Its processes are not counted.
    pub fn of_machine(&self) -> CgroupReading {
        let pressure = self.machine_pressure();
        let of = |inner: &Inner| (CgroupUsage::read(&inner.tree, ""), io::read(&inner.tree, "", Path::new(DEVICES)));
        let (usage, io) = self.inner.as_ref().map(|inner| of(inner)).unwrap_or_default();
        CgroupReading { id: "/".to_owned(), usage, pressure, io, processes: None }
    }

    /// Reads the cgroup of a pod, in whichever QoS class it is.
    pub fn of_pod(&self, uid: &str) -> Option<CgroupReading> {
        let inner = self.inner.as_ref()?;
        let is_there = |name: &CgroupName| inner.tree.directories(&inner.path(name)).iter().any(|dir| dir.exists());
        inner.names(uid).iter().find(|name| is_there(name)).map(|name| inner.reading(name))
    }

    /// Reads the I/O and the number of processes of a container's cgroup.
    pub fn of_container(&self, uid: &str, id: &str) -> (Vec<DeviceIo>, Option<u64>) {
        let Some(inner) = &self.inner else { return (Vec::new(), None) };
        let named = self.container_directory(uid, id);
        let name = named.as_deref().and_then(Path::file_name).map_or(id.into(), |n| n.to_string_lossy());
        let paths = inner.names(uid).map(|pod| format!("{}/{name}", inner.path(&pod)));
        let found = paths.iter().find(|path| inner.tree.directories(path).iter().any(|dir| dir.exists()));
        found.map(|path| (io::read(&inner.tree, path, Path::new(DEVICES)), inner.members(path))).unwrap_or_default()
    }
}

impl Inner {
    fn reading(&self, name: &CgroupName) -> CgroupReading {
        let path = self.path(name);
        let unified = self.tree.directories(&path).into_iter().next().filter(|_| self.tree.is_unified());
        CgroupReading {
            usage: CgroupUsage::read(&self.tree, &path),
            pressure: unified.map(|dir| ResourcePressures::read(&dir)).unwrap_or_default(),
            io: io::read(&self.tree, &path, Path::new(DEVICES)),
            processes: self.members(&path),
            id: format!("/{path}"),
        }
    }

    /// Counts the processes of a cgroup and of those below it.
    fn members(&self, path: &str) -> Option<u64> {
        let list = self.tree.file(path, "pids", "cgroup.procs");
        count(list.parent()?)
    }
}

fn count(dir: &Path) -> Option<u64> {
    let own = std::fs::read_to_string(dir.join("cgroup.procs")).ok()?.lines().count() as u64;
    let below = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let below = below.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).filter_map(|e| count(&e.path()));
    Some(own + below.sum::<u64>())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{limited, open, split, unified};
    use super::*;
    use crate::config::cgroups::CgroupDriver;

    #[tokio::test]
    async fn containers_pods_and_classes_are_read() {
        for (dir, mount) in [(unified(), ""), (split(), "pids/")] {
            let cgroups = open(dir.path(), CgroupDriver::Cgroupfs).await;
            cgroups.ensure(&limited(), false).await.expect("made");
            let pods = dir.path().join(format!("{mount}k/kubepods"));
            let pod = pods.join("burstable/podu-1");
            std::fs::create_dir_all(pod.join("c")).expect("mkdir");
            for (at, text) in [(&pods, ""), (&pods.join("burstable"), ""), (&pod, ""), (&pod.join("c"), "7\n8\n")] {
                std::fs::write(at.join("cgroup.procs"), text).expect("write");
            }
            std::fs::write(pod.join("pids.current"), "5\n").expect("write");
            std::fs::write(dir.path().join("cpu.stat"), "user_usec 2\nsystem_usec 3\n").expect("write");
            let machine = cgroups.of_machine();
            let modes = mount.is_empty().then_some([2000, 3000]);
            assert_eq!((machine.id.as_str(), machine.usage.cpu_modes_nanos), ("/", modes));
            let above = cgroups.above_pods();
            let ids: Vec<&str> = above.iter().map(|r| r.id.as_str()).collect();
            assert_eq!(ids, ["/k/kubepods", "/k/kubepods/burstable", "/k/kubepods/besteffort"]);
            assert_eq!((above[0].processes, above[1].processes), (Some(2), Some(2)));
            let of_pod = cgroups.of_pod("u-1").expect("there");
            assert_eq!((of_pod.id.as_str(), of_pod.processes), ("/k/kubepods/burstable/podu-1", Some(2)));
            assert_eq!(of_pod.usage.threads.0, Some(5));
            assert_eq!(cgroups.of_container("u-1", "c").1, Some(2));
            assert_eq!((cgroups.of_pod("other"), cgroups.of_container("u-1", "d")), (None, (Vec::new(), None)));
        }
        assert_eq!(Cgroups::none().above_pods(), []);
        assert_eq!(Cgroups::none().of_machine().io, []);
    }
}
