//! Other programs of Kubernetes and of containers that run on the machine.
use std::path::Path;

use crate::finding::{Finding, Findings, Level};
use crate::host::{Host, Purpose};

/// Programs that manage the same machine: pods' cgroups, rules, the kubelet's port.
const RIVALS: &[&str] =
    &["k0s", "k3s", "k3s-server", "k3s-agent", "kubelet", "kubelite", "kubesolo", "microshift", "rke2"];
/// Programs of the control plane.
const CONTROL_PLANE: &[&str] = &["kube-apiserver", "kube-controller", "kube-scheduler", "etcd"];
/// Runtimes that can run at the same time as Kelson's.
const RUNTIMES: &[&str] = &["containerd", "crio", "dockerd", "podman"];
/// Programs that write rules of services.
const PROXIES: &[&str] = &["kube-proxy", "cilium-agent", "calico-felix", "flanneld", "kube-router"];

/// A process of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// The process ID.
    pub pid: u32,
    /// Its name, at most 15 bytes.
    pub name: String,
    /// Its words, with spaces between them.
    pub command: String,
}

/// Every process of the machine that has a command line: kernel threads have none.
pub fn read(host: &Host) -> Vec<Running> {
    let pids = host.names("/proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
    let process = |pid: u32| {
        let dir = format!("/proc/{pid}");
        let name = host.text(format!("{dir}/comm")).trim().to_owned();
        let command = host.text(format!("{dir}/cmdline")).replace('\0', " ").trim().to_owned();
        (!command.is_empty()).then_some(Running { pid, name, command })
    };
    pids.filter_map(process).collect()
}

/// The names of all processes.
pub fn names(host: &Host) -> Vec<String> {
    read(host).into_iter().map(|process| process.name).collect()
}

/// Returns findings about conflicting processes.
pub fn find(running: &[Running], purpose: &Purpose) -> Vec<Finding> {
    let mut findings = Findings::of("processes");
    let named = |names: &[&str]| -> Vec<String> {
        let is_one =
            |process: &&Running| names.contains(&process.name.as_str()) && !is_ours(process, &purpose.data_dir);
        running.iter().filter(is_one).map(|process| format!("{} ({})", process.name, process.pid)).collect()
    };
    let rivals = named(RIVALS);
    if purpose.node && !rivals.is_empty() {
        findings.add(
            Level::Warning,
            format!("another node agent is running: {}", rivals.join(", ")),
            "Two of them on one machine have different ports and directories, and count the same memory and CPUs for their pods.",
            "Stop and disable the one that is not needed.",
        );
    }
    let control_plane = named(CONTROL_PLANE);
    if purpose.server && !control_plane.is_empty() {
        let found = format!("parts of another control plane run: {}", control_plane.join(", "));
        findings.add(Level::Info, found, "They continue; ports that they have are named by the probe for ports.", "");
    }
    let proxies = named(PROXIES);
    if purpose.node && !proxies.is_empty() {
        findings.add(
            Level::Warning,
            format!("other programs write rules for pods and services: {}", proxies.join(", ")),
            "Packets pass both sets of rules, and are translated by whichever comes first.",
            "Stop them if they are left over from another cluster.",
        );
    }
    let runtimes = named(RUNTIMES);
    if purpose.node && !runtimes.is_empty() {
        findings.add(
            Level::Info,
            format!("other container runtimes run: {}", runtimes.join(", ")),
            "They are not in the way: Kelson starts another containerd, with other directories. Each takes some 50 MiB. Docker sets the \
             FORWARD policy of iptables to DROP.",
            "Where nothing else uses them, stop them: systemctl disable --now containerd",
        );
    }
    findings.or_ok(|| "no other node agent or container runtime is running".to_owned())
}

/// Whether it is part of the node of this data directory, as its containerd does.
fn is_ours(process: &Running, data_dir: &Path) -> bool {
    let dir = data_dir.display().to_string();
    process.command.contains(&format!("{dir}/")) || process.command.contains(&format!(" {dir} "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{control_plane, levels, machine, purpose};

    fn running() -> Vec<Running> {
        let files = [
            ("/proc/1/comm", "systemd\n"),
            ("/proc/1/cmdline", "/sbin/init\0"),
            ("/proc/2/comm", "kthreadd\n"),
            ("/proc/2/cmdline", ""),
            ("/proc/700/comm", "kubelet\n"),
            ("/proc/700/cmdline", "/usr/bin/kubelet\0--v=2\0"),
            ("/proc/701/comm", "containerd\n"),
            ("/proc/701/cmdline", "/usr/bin/containerd\0--config\0/var/lib/kelson/containerd/config.toml\0"),
            ("/proc/702/comm", "containerd\n"),
            ("/proc/702/cmdline", "/usr/bin/containerd\0"),
            ("/proc/self/comm", "x\n"),
        ];
        let (_dir, host) = machine(&files, &[]);
        read(&host)
    }

    #[test]
    fn another_kubelet_is_named_and_our_own_containerd_is_not() {
        let found = find(&running(), &purpose());
        assert_eq!(levels(&found), [Level::Warning, Level::Info]);
        assert!(found[0].found.ends_with("kubelet (700)"), "{found:?}");
        assert!(found[1].found.ends_with("run: containerd (702)"), "{found:?}");
        assert_eq!(levels(&find(&running(), &control_plane())), [Level::Ok]);
    }
}
