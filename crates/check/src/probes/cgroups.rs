//! The control groups that hold pods: which version is mounted, where, with which controllers.
use std::collections::BTreeSet;

use crate::finding::{Finding, Findings, Level};
use crate::host::{Host, Purpose};

/// Controllers without which no pod runs.
const NEEDED: &[&str] = &["cpu", "memory", "pids"];
/// Controllers that features need, and which.
const USED: &[(&str, &str)] = &[
    ("cpuset", "The static CPU and memory policies cannot give containers their own CPUs."),
    ("io", "Use of disks is neither limited nor shown for each container."),
];

/// The mounted cgroup hierarchies.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CgroupFacts {
    /// The mount point of version 2, and whether it is writable.
    pub unified: Option<(String, bool)>,
    /// The mount points of version 1.
    pub legacy: Vec<String>,
    /// Controllers that a pod's cgroup can have.
    pub controllers: BTreeSet<String>,
    /// Controllers that the kernel has, enabled or not.
    pub of_kernel: BTreeSet<String>,
}

/// From the mounts of this process, and the root of the hierarchy.
pub fn read(host: &Host) -> CgroupFacts {
    let mut facts = CgroupFacts::default();
    for line in host.text("/proc/self/mountinfo").lines() {
        let Some((mount, super_block)) = line.split_once(" - ") else { continue };
        let (mount, super_block): (Vec<&str>, Vec<&str>) =
            (mount.split(' ').collect(), super_block.split(' ').collect());
        let (Some(at), Some(options), Some(kind)) = (mount.get(4), mount.get(5), super_block.first()) else { continue };
        let is_writable = options.split(',').any(|option| option == "rw");
        match *kind {
            "cgroup2" if facts.unified.is_none() => facts.unified = Some(((*at).to_owned(), is_writable)),
            "cgroup" => {
                facts.legacy.push((*at).to_owned());
                let options = super_block.get(2).copied().unwrap_or_default();
                let name = |option: &str| if option == "blkio" { "io".to_owned() } else { option.to_owned() };
                let controllers = options.split(',').filter(|o| !["rw", "ro"].contains(o) && !o.contains('='));
                facts.controllers.extend(controllers.map(name));
            }
            _ => {}
        }
    }
    if let (Some((at, _)), true) = (&facts.unified, facts.legacy.is_empty()) {
        let names = host.text(format!("{at}/cgroup.controllers"));
        facts.controllers.extend(names.split_whitespace().map(str::to_owned));
    }
    let lines = host.text("/proc/cgroups");
    let names = lines.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_whitespace().next());
    facts.of_kernel = names.map(|name| if name == "blkio" { "io".to_owned() } else { name.to_owned() }).collect();
    facts
}

/// Returns the findings for a node.
pub fn find(facts: &CgroupFacts, purpose: &Purpose) -> Vec<Finding> {
    let mut findings = Findings::of("cgroups");
    if !purpose.node {
        return findings.or_ok(|| "not needed by a control plane alone".to_owned());
    }
    let version = match (&facts.unified, facts.legacy.is_empty()) {
        (None, true) => {
            none(&mut findings);
            return findings.done();
        }
        (Some((at, false)), true) => {
            read_only(&mut findings, at);
            return findings.done();
        }
        (Some(_), true) => 2,
        (_, false) => 1,
    };
    controllers(&mut findings, facts, version);
    if version == 1 {
        let mixed = if facts.unified.is_some() { ", beside an empty version 2" } else { "" };
        findings.add(
            Level::Warning,
            format!("cgroup version 1 is mounted{mixed}"),
            "Pods run. Memory QoS, pressure (PSI) of pods, limits of swap and the end of whole containers at an OOM need version 2, and \
             runtimes drop version 1.",
            "Boot with systemd.unified_cgroup_hierarchy=1, or a newer distribution.",
        );
    }
    findings.or_ok(|| {
        let names: Vec<&str> = facts.controllers.iter().map(String::as_str).collect();
        format!("cgroup version 2 with {}", names.join(", "))
    })
}

fn none(findings: &mut Findings) {
    findings.add(
        Level::Error,
        "no cgroup file system is mounted for this process",
        "No container starts: the runtime says \"no cgroup mount found in mountinfo\". A new mount of /sys, as `ip netns exec` makes \
         it, hides the cgroups that the machine has.",
        "mount -t cgroup2 none /sys/fs/cgroup; with version 1, bind-mount the machine's /sys/fs/cgroup instead.",
    );
}

fn read_only(findings: &mut Findings, at: &str) {
    findings.add(
        Level::Error,
        format!("{at} is mounted read-only"),
        "No cgroup of a pod can be made. Containers that are not privileged see it this way.",
        "Run in a privileged container with a private cgroup namespace (docker run --privileged --cgroupns=private), or on the host.",
    );
}

fn controllers(findings: &mut Findings, facts: &CgroupFacts, version: u8) {
    for name in NEEDED.iter().filter(|name| !facts.controllers.contains(**name)) {
        let action = match (*name, facts.of_kernel.contains(*name)) {
            ("memory", _) => {
                "Add cgroup_enable=memory cgroup_memory=1 to the kernel's command line (boards with Raspberry Pi OS: \
                              /boot/firmware/cmdline.txt), and reboot."
                    .to_owned()
            }
            (_, true) if version == 2 => {
                format!(
                    "Let the parent cgroup have it: echo +{name} > …/cgroup.subtree_control, or Delegate=yes in the unit."
                )
            }
            (_, true) => format!("mount -t cgroup -o {name} none /sys/fs/cgroup/{name}"),
            (_, false) => "Use a kernel that has it (CONFIG_CGROUPS and below).".to_owned(),
        };
        findings.add(
            Level::Error,
            format!("the cgroup controller {name} is missing"),
            format!("No pod starts: its limits of {name} cannot be set."),
            action,
        );
    }
    for (name, meaning) in USED.iter().filter(|(name, _)| !facts.controllers.contains(*name)) {
        let action = "Use a kernel, or a parent cgroup, that has it, where you need this.";
        findings.add(Level::Warning, format!("the cgroup controller {name} is missing"), *meaning, action);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{control_plane, levels, machine, purpose};

    const UNIFIED: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
    const LEGACY: &str = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                          35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                          39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids,blkio\n\
                          40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n";

    fn found(mounts: &str, controllers: &str) -> Vec<Finding> {
        let files = [
            ("/proc/self/mountinfo", mounts),
            ("/sys/fs/cgroup/cgroup.controllers", controllers),
            ("/proc/cgroups", "#subsys_name\n"),
        ];
        let (_dir, host) = machine(&files, &[]);
        find(&read(&host), &purpose())
    }

    #[test]
    fn version_2_with_all_controllers_is_as_it_should_be() {
        let found = found(UNIFIED, "cpuset cpu io memory hugetlb pids\n");
        assert_eq!(levels(&found), [Level::Ok], "{found:?}");
    }

    #[test]
    fn no_mount_is_named_as_the_runtime_will() {
        let found = found("22 1 0:21 / /sys rw - sysfs sysfs rw\n", "");
        assert_eq!(levels(&found), [Level::Error]);
        assert!(found[0].meaning.contains("no cgroup mount found in mountinfo"));
        assert_eq!(levels(&find(&CgroupFacts::default(), &control_plane())), [Level::Ok]);
    }

    #[test]
    fn version_1_works_and_is_named() {
        let found = found(LEGACY, "");
        assert_eq!(levels(&found), [Level::Warning, Level::Warning], "cpuset, and the version: {found:?}");
    }

    #[test]
    fn a_board_without_the_memory_controller_hears_what_to_boot_with() {
        let found = found(UNIFIED, "cpuset cpu io pids\n");
        assert_eq!(levels(&found), [Level::Error]);
        assert!(found[0].action.contains("cgroup_enable=memory"), "{found:?}");
    }

    #[test]
    fn a_container_sees_it_read_only() {
        let found = found(&UNIFIED.replace("cgroup rw", "cgroup ro"), "cpu");
        assert_eq!(levels(&found), [Level::Error]);
        assert!(found[0].found.contains("read-only"));
    }
}
