//! What this process may do.
use crate::finding::{Finding, Findings, Level};
use crate::host::{Host, Purpose};

/// Bits of `CapEff` that a node needs, and for what.
const NEEDED: &[(u32, &str, &str)] = &[
    (0, "CAP_CHOWN", "files of volumes and containers have various owners"),
    (1, "CAP_DAC_OVERRIDE", "files of containers belong to other users"),
    (5, "CAP_KILL", "processes of containers belong to other users"),
    (12, "CAP_NET_ADMIN", "pods get interfaces, services get rules"),
    (21, "CAP_SYS_ADMIN", "containers are mounts and namespaces"),
];
/// Capabilities with a replacement.
const USED: &[(u32, &str, &str)] = &[
    (24, "CAP_SYS_RESOURCE", "Containers cannot be kept from the OOM killer: all are ended as early as this process."),
    (27, "CAP_MKNOD", "Images with device files cannot be unpacked, and containers get devices by bind mounts."),
];

/// The capabilities of this process from `/proc/self/status`.
#[derive(Debug, PartialEq, Eq)]
pub struct CapabilityFacts {
    /// The effective user.
    pub user: Option<u32>,
    /// Effective capabilities, a bit each.
    pub effective: u64,
}

/// Reads the capabilities of this process.
pub fn read(host: &Host) -> CapabilityFacts {
    let status = host.text("/proc/self/status");
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    CapabilityFacts {
        user: field("Uid:").split_whitespace().nth(1).and_then(|user| user.parse().ok()),
        effective: u64::from_str_radix(field("CapEff:").trim(), 16).unwrap_or(0),
    }
}

/// Returns the findings for a node.
pub fn find(facts: &CapabilityFacts, purpose: &Purpose) -> Vec<Finding> {
    let mut findings = Findings::of("capabilities");
    if !purpose.node {
        return findings.or_ok(|| "a control plane alone needs none".to_owned());
    }
    if facts.user != Some(0) {
        let user = facts.user.map_or_else(|| "an unknown user".to_owned(), |user| format!("user {user}"));
        findings.add(
            Level::Error,
            format!("running as {user}, not as root"),
            "A node mounts file systems and creates namespaces and firewall rules, so it must run as root.",
            "Run as root, or a control plane alone: --disable-agent.",
        );
        return findings.done();
    }
    let lacks = |bit: u32| facts.effective & (1 << bit) == 0;
    for (_, name, what) in NEEDED.iter().filter(|(bit, ..)| lacks(*bit)) {
        findings.add(
            Level::Error,
            format!("root lacks {name}"),
            format!("A node does not work: {what}."),
            "Run in a privileged container, or by a unit whose CapabilityBoundingSet has it.",
        );
    }
    for (_, name, meaning) in USED.iter().filter(|(bit, ..)| lacks(*bit)) {
        findings.add(Level::Info, format!("root lacks {name}"), *meaning, "");
    }
    findings.or_ok(|| "root with all that a node needs".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{control_plane, levels, machine, purpose};

    fn facts(user: &str, effective: &str) -> CapabilityFacts {
        let status = format!("Name:\tkelson\nUid:\t1000\t{user}\t{user}\t{user}\nCapEff:\t{effective}\n");
        let (_dir, host) = machine(&[("/proc/self/status", &status)], &[]);
        read(&host)
    }

    #[test]
    fn who_may_run_a_node() {
        assert_eq!(levels(&find(&facts("0", "000001ffffffffff"), &purpose())), [Level::Ok]);
        assert_eq!(levels(&find(&facts("1000", "0000000000000000"), &purpose())), [Level::Error]);
        assert_eq!(levels(&find(&facts("1000", "0000000000000000"), &control_plane())), [Level::Ok]);
        // Docker's usual set: no CAP_NET_ADMIN, no CAP_SYS_ADMIN, no CAP_SYS_RESOURCE.
        let found = find(&facts("0", "00000000a80425fb"), &purpose());
        assert_eq!(levels(&found), [Level::Error, Level::Error, Level::Info], "{found:?}");
        assert!(found[0].found.contains("CAP_NET_ADMIN") && found[1].found.contains("CAP_SYS_ADMIN"));
    }
}
