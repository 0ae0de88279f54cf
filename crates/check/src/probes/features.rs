//! Optional features of the kernel: what pods may ask for, and what a node reports.
use std::collections::BTreeSet;

use crate::finding::{Finding, Findings, Level};
use crate::host::{Host, Purpose};

/// Features, what is missing without each, and how to get it.
const FEATURES: &[(&str, &str, &str)] = &[
    (
        "user namespaces",
        "Pods with hostUsers: false wait: their sandbox cannot be created.",
        "sysctl -w user.max_user_namespaces=15000, and a file in /etc/sysctl.d; or a kernel with CONFIG_USER_NS.",
    ),
    (
        "seccomp",
        "Pods with a seccomp profile do not start, and RuntimeDefault has no effect.",
        "Use a kernel with CONFIG_SECCOMP_FILTER.",
    ),
    (
        "PSI",
        "Pressure of node, pods and containers is not reported.",
        "Add psi=1 to the kernel's command line, or use a kernel with CONFIG_PSI.",
    ),
    ("AppArmor or SELinux", "Profiles of pods' securityContext have no effect or are rejected.", ""),
];

/// The features that the kernel has and has switched on.
#[derive(Debug, PartialEq, Eq)]
pub struct FeatureFacts(pub BTreeSet<&'static str>);

/// Reads files of `/proc` and `/sys` that exist with a feature.
pub fn read(host: &Host) -> FeatureFacts {
    let is_set = |path: &str| host.text(path).trim().parse::<u64>().is_ok_and(|n| n > 0);
    let found = [
        host.has("/proc/self/ns/user") && is_set("/proc/sys/user/max_user_namespaces"),
        host.has("/proc/sys/kernel/seccomp/actions_avail"),
        // The file exists and cannot be read where PSI is built in and switched off.
        !host.text("/proc/pressure/memory").is_empty(),
        host.text("/sys/module/apparmor/parameters/enabled").trim() == "Y" || host.has("/sys/fs/selinux/enforce"),
    ];
    let names = FEATURES.iter().map(|(name, ..)| *name);
    FeatureFacts(names.zip(found).filter(|(_, has)| *has).map(|(name, _)| name).collect())
}

/// Returns the findings for a node: it works without each of them.
pub fn find(facts: &FeatureFacts, purpose: &Purpose) -> Vec<Finding> {
    let mut findings = Findings::of("features");
    if !purpose.node {
        return findings.or_ok(|| "a control plane alone needs none".to_owned());
    }
    let there: Vec<&str> = facts.0.iter().copied().collect();
    if !there.is_empty() {
        findings.ok(there.join(", "));
    }
    for (name, meaning, action) in FEATURES.iter().filter(|(name, ..)| !facts.0.contains(name)) {
        findings.add(Level::Info, format!("the kernel has no {name}, or it is switched off"), *meaning, *action);
    }
    findings.done()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{control_plane, levels, machine, purpose};

    #[test]
    fn features_are_there_missing_or_switched_off() {
        let all = [
            ("/proc/self/ns/user", ""),
            ("/proc/sys/user/max_user_namespaces", "15000\n"),
            ("/proc/sys/kernel/seccomp/actions_avail", "kill_process allow\n"),
            ("/proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"),
            ("/sys/module/apparmor/parameters/enabled", "Y\n"),
        ];
        let (_dir, host) = machine(&all, &[]);
        let found = find(&read(&host), &purpose());
        assert_eq!(levels(&found), [Level::Ok], "{found:?}");
        let mut off = all;
        (off[1].1, off[3].1, off[4].1) = ("0\n", "", "N\n");
        let (_dir, host) = machine(&off, &[]);
        let found = find(&read(&host), &purpose());
        assert_eq!(levels(&found), [Level::Ok, Level::Info, Level::Info, Level::Info], "{found:?}");
        assert!(found[1].action.contains("user.max_user_namespaces"), "{found:?}");
        let (_dir, host) = machine(&[], &[]);
        assert_eq!(find(&read(&host), &purpose()).len(), FEATURES.len());
        assert_eq!(levels(&find(&read(&host), &control_plane())), [Level::Ok]);
    }
}
