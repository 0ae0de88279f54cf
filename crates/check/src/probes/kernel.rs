//! The kernel: its version, its modules, its namespaces.
use crate::finding::{Finding, Findings, Level};
use crate::host::{Host, Purpose};

/// Upstream's kubelet needs this one.
const OLDEST: (u32, u32) = (4, 19);
/// From here on nftables has everything that services use, and cgroup version 2 is complete.
const ADVISED: (u32, u32) = (5, 13);
/// Modules with what needs them; a node has no pods without the first ones.
const MODULES: &[(&str, Level, &str)] = &[
    ("overlay", Level::Error, "No container can start, since images are overlayfs layers."),
    ("bridge", Level::Error, "Pods get no network."),
    ("veth", Level::Error, "Pods get no network."),
    ("nf_tables", Level::Error, "Services and network policies do not work: they are rules of nftables."),
    ("nf_nat", Level::Error, "Services have no addresses: they are translations of nftables."),
    ("nf_conntrack", Level::Error, "Services have no addresses: connections cannot be tracked."),
    ("vxlan", Level::Warning, "Pods of different nodes do not reach each other."),
];

/// Whether a module's functions are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It is loaded or built in.
    Here,
    /// The kernel loads it when it is needed.
    Loadable,
    /// There are modules for this kernel, and it is not among them.
    Missing,
    /// The directory of modules cannot be seen, as in a container: it may be built in.
    Unknown,
}

/// Version and modules of the kernel.
#[derive(Debug, PartialEq, Eq)]
pub struct KernelFacts {
    /// The release, as printed by `uname -r`.
    pub release: String,
    /// The modules in the order of [`MODULES`].
    pub modules: Vec<(&'static str, Presence)>,
    /// Kinds of namespaces that this process is in.
    pub namespaces: Vec<String>,
    /// Whether packets between ports of a bridge pass iptables (`bridge-nf-call-iptables`).
    pub bridge_passes_rules: bool,
}

/// Reads the facts from `/proc`, `/sys/module` and the lists of `/lib/modules`.
pub fn read(host: &Host) -> KernelFacts {
    let release = host.text("/proc/sys/kernel/osrelease").trim().to_owned();
    let (loaded, file_systems) = (host.text("/proc/modules"), host.text("/proc/filesystems"));
    let dir = format!("/lib/modules/{release}");
    let (built_in, loadable) = (host.text(format!("{dir}/modules.builtin")), host.text(format!("{dir}/modules.dep")));
    let listed = |list: &str, name: &str| {
        list.lines()
            .filter_map(|line| line.split(':').next()?.rsplit('/').next())
            .any(|file| file.split('.').next().is_some_and(|module| module.replace('-', "_") == name))
    };
    let presence = |name: &str| {
        let is_loaded = loaded.lines().any(|line| line.split(' ').next() == Some(name));
        let is_file_system = file_systems.lines().any(|line| line.split_whitespace().last() == Some(name));
        match () {
            () if is_loaded || is_file_system || host.has(format!("/sys/module/{name}")) => Presence::Here,
            () if listed(&built_in, name) => Presence::Here,
            () if listed(&loadable, name) => Presence::Loadable,
            () if loadable.is_empty() && built_in.is_empty() => Presence::Unknown,
            () => Presence::Missing,
        }
    };
    KernelFacts {
        modules: MODULES.iter().map(|(name, ..)| (*name, presence(name))).collect(),
        namespaces: host.names("/proc/self/ns"),
        bridge_passes_rules: host.text("/proc/sys/net/bridge/bridge-nf-call-iptables").trim() == "1",
        release,
    }
}

/// Returns the findings for a node.
pub fn find(facts: &KernelFacts, purpose: &Purpose) -> Vec<Finding> {
    let mut findings = Findings::of("kernel");
    if !purpose.node {
        return findings.or_ok(|| facts.release.clone());
    }
    version(&mut findings, &facts.release);
    for (name, level, meaning) in MODULES {
        let presence = facts.modules.iter().find(|(module, _)| module == name).map_or(Presence::Unknown, |(_, p)| *p);
        if presence == Presence::Missing {
            let action =
                format!("Install the package of kernel modules (often linux-modules-extra), then: modprobe {name}");
            findings.add(*level, format!("the kernel has no {name}"), *meaning, action);
        }
    }
    let unknown: Vec<&str> =
        facts.modules.iter().filter(|(_, p)| *p == Presence::Unknown).map(|(name, _)| *name).collect();
    if !unknown.is_empty() {
        let what = format!("cannot see whether the kernel has {}", unknown.join(", "));
        findings.add(
            Level::Info,
            what,
            "They may be built in; nothing is listed in /lib/modules, as in a container.",
            "",
        );
    }
    for kind in ["ipc", "mnt", "net", "pid", "uts"].iter().filter(|kind| !facts.namespaces.iter().any(|n| n == **kind))
    {
        findings.add(
            Level::Error,
            format!("the kernel has no {kind} namespaces"),
            "No container starts.",
            "Use a kernel with CONFIG_NAMESPACES and all below it.",
        );
    }
    if facts.bridge_passes_rules {
        let meaning = "Packets between pods of this node pass the rules of iptables as well: a FORWARD policy of DROP there stops them.";
        findings.add(Level::Info, "br_netfilter is loaded, and bridges pass the rules of iptables", meaning, "");
    }
    let modules = facts.modules.len();
    findings.or_ok(|| format!("{} with all {modules} modules", facts.release))
}

fn version(findings: &mut Findings, release: &str) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return };
    let action = format!("Use a kernel of {}.{} or newer.", ADVISED.0, ADVISED.1);
    if (major, minor) < OLDEST {
        findings.add(Level::Error, format!("kernel {release}"), "It is too old for a node of Kubernetes.", action);
    } else if (major, minor) < ADVISED {
        let meaning = "Services need newer parts of nftables on some paths, and cgroup version 2 is incomplete.";
        findings.add(Level::Warning, format!("kernel {release}"), meaning, action);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{levels, machine, purpose};

    const NAMESPACES: &[&str] = &["ipc", "mnt", "net", "pid", "user", "uts"];

    fn found(release: &str, more: &[(&str, &str)]) -> Vec<Finding> {
        let mut files = vec![
            ("/proc/sys/kernel/osrelease", release),
            ("/proc/modules", "veth 40960 0 - Live 0x0\nbridge 417792 1 br_netfilter, Live 0x0\n"),
            ("/proc/filesystems", "nodev\tsysfs\nnodev\toverlay\n\text4\n"),
            ("/sys/module/nf_conntrack/refcnt", "1"),
        ];
        let namespaces: Vec<String> = NAMESPACES.iter().map(|kind| format!("/proc/self/ns/{kind}")).collect();
        files.extend(namespaces.iter().map(|path| (path.as_str(), "")));
        files.extend(more);
        let (_dir, host) = machine(&files, &[]);
        find(&read(&host), &purpose())
    }

    #[test]
    fn modules_are_loaded_built_in_or_loadable() {
        let found = found(
            "6.12.5-amd64\n",
            &[
                ("/lib/modules/6.12.5-amd64/modules.builtin", "kernel/net/netfilter/nf_tables.ko\n"),
                (
                    "/lib/modules/6.12.5-amd64/modules.dep",
                    "kernel/net/nf-nat.ko.xz: kernel/x.ko\nkernel/drivers/net/vxlan/vxlan.ko.zst:\n",
                ),
            ],
        );
        assert_eq!(levels(&found), [Level::Ok], "{found:?}");
    }

    #[test]
    fn what_is_missing_is_named_with_what_it_breaks() {
        let found = found(
            "6.1.0\n",
            &[("/lib/modules/6.1.0/modules.dep", "kernel/net/nf_nat.ko:\nkernel/net/nf_tables.ko:\n")],
        );
        assert_eq!(levels(&found), [Level::Warning]);
        assert!(found[0].found.contains("vxlan"), "{found:?}");
    }

    #[test]
    fn a_container_cannot_see_modules() {
        let found = found("6.1.0\n", &[("/proc/sys/net/bridge/bridge-nf-call-iptables", "1\n")]);
        assert_eq!(levels(&found), [Level::Info, Level::Info], "{found:?}");
        assert!(found[0].found.ends_with("nf_tables, nf_nat, vxlan"), "{found:?}");
    }

    #[test]
    fn old_kernels() {
        let level = |release: &str| {
            let mut findings = Findings::of("kernel");
            version(&mut findings, release);
            findings.done().first().map(|finding| finding.level)
        };
        let rows = [
            ("4.18.0-553.el8", Some(Level::Error)),
            ("5.10.0-28-amd64", Some(Level::Warning)),
            ("5.13.0", None),
            ("6.18.44", None),
            ("unheard of", None),
        ];
        for (release, want) in rows {
            assert_eq!(level(release), want, "{release}");
        }
    }
}
