//! Whether a runtime puts containers below their pods' cgroups. A runtime with another cgroup driver than the kubelet's puts them elsewhere,
//! where the limits of pods and of their QoS classes have no effect; nothing else shows it.
#![allow(clippy::disallowed_methods, reason = "blocking: only kernel files, no disk")]

use std::path::Path;

use super::{Cgroups, Inner};

/// A container outside of its pod's cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignCgroup {
    /// The cgroup of the container's process.
    pub found: String,
    /// The cgroup of the pod.
    pub expected: String,
}

impl Cgroups {
    /// Returns whether the location of a RuntimeClass's containers is not known yet.
    pub fn is_unchecked(&self, class: &str) -> bool {
        self.inner.as_ref().is_some_and(|inner| !inner.checked.contains(class))
    }

    /// Checks that the process `pid` of a container is below the cgroup of the pod `uid`. `proc` is the process file system. A process that
    /// has ended is not checked. Reads kernel files.
    pub fn check_location(&self, proc: &Path, (class, uid, pid): (&str, &str, u32)) -> Option<ForeignCgroup> {
        let inner = self.inner.as_ref()?;
        let text = std::fs::read_to_string(proc.join(pid.to_string()).join("cgroup")).ok()?;
        let found = inner.own_path(&text)?;
        let mut expected = inner.names(uid).map(|name| inner.path(&name)).into_iter();
        // The whole path may be longer: in a container the kubelet's own cgroup precedes it.
        if expected.clone().any(|pod| format!("{found}/").contains(&format!("/{pod}/"))) {
            inner.checked.add(class);
            return None;
        }
        let there = |pod: &String| inner.tree.directories(pod).first().is_some_and(|dir| dir.exists());
        let expected = expected.find(there)?;
        Some(ForeignCgroup { found: found.to_owned(), expected: format!("/{expected}") })
    }
}

impl Inner {
    /// Finds the cgroup in the lines `HIERARCHY:CONTROLLERS:PATH` of a process: that of v2, or of v1's memory controller.
    fn own_path<'a>(&self, lines: &'a str) -> Option<&'a str> {
        let is_it = |controllers: &str| match self.tree.is_unified() {
            true => controllers.is_empty(),
            false => controllers.split(',').any(|c| c == "memory"),
        };
        lines.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            is_it(controllers).then_some(path)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{limited, open, split, unified};
    use super::*;
    use crate::config::cgroups::CgroupDriver;

    /// Checks a container whose process has these lines in its `cgroup` file.
    fn check(cgroups: &Cgroups, lines: &str) -> Option<ForeignCgroup> {
        let proc = tempfile::tempdir().expect("tempdir");
        std::fs::create_dir(proc.path().join("7")).expect("mkdir");
        std::fs::write(proc.path().join("7/cgroup"), lines).expect("write");
        cgroups.check_location(proc.path(), ("", "u-1", 7))
    }

    #[tokio::test]
    async fn a_container_of_another_cgroup_driver_is_found_outside_of_its_pod() {
        let dir = unified();
        let cgroups = open(dir.path(), CgroupDriver::Systemd).await;
        cgroups.ensure(&limited(), false).await.expect("made");
        let own = "k.slice/k-kubepods.slice/k-kubepods-burstable.slice/k-kubepods-burstable-podu_1.slice";
        // What containerd 1.7 does with a slice and without SystemdCgroup.
        let foreign = "0::/system.slice/k-kubepods-burstable-podu_1.slice:cri-containerd:abc\n";
        let found = check(&cgroups, foreign).expect("foreign");
        assert_eq!(found.found, "/system.slice/k-kubepods-burstable-podu_1.slice:cri-containerd:abc");
        assert_eq!(found.expected, format!("/{own}"));
        assert!(cgroups.is_unchecked(""), "each container is checked until one is right");
        assert_eq!(check(&cgroups, ""), None, "a process without a cgroup has ended");
        assert!(cgroups.is_unchecked(""));
        assert_eq!(check(&cgroups, &format!("0::/{own}/cri-containerd-abc.scope\n")), None);
        assert!(!cgroups.is_unchecked("") && cgroups.is_unchecked("kata"));
    }

    #[tokio::test]
    async fn version_1_and_a_cgroup_namespace_are_known() {
        let dir = split();
        let cgroups = open(dir.path(), CgroupDriver::Cgroupfs).await;
        cgroups.ensure(&limited(), false).await.expect("made");
        let lines = |path: &str| format!("12:pids:/x\n5:cpu,memory:{path}\n0::/\n");
        assert!(check(&cgroups, &lines("/system.slice/containerd.service")).is_some());
        assert!(check(&cgroups, &lines("/k/kubepods/burstable/podu-10/abc")).is_some(), "another pod's");
        assert_eq!(check(&cgroups, &lines("/docker/f00/k/kubepods/burstable/podu-1/abc")), None);
        assert!(!Cgroups::none().is_unchecked(""), "without cgroups there is nothing to check");
    }
}
