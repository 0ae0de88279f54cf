//! Builds the CRI configuration of a pod's sandbox (upstream: `kuberuntime_sandbox.go` generatePodSandboxConfig).
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kelson_cri::proto as cri;

use super::dns::kernel_host_name;
use super::userns::IdRange;
use super::{labels, security};
use crate::config::Config;
use crate::pod::{self, Role};

/// Sysctls that every pod may set (upstream: `pkg/kubelet/sysctl/safe_sysctls.go`).
const SAFE_SYSCTLS: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// Checks the pod's sysctls. Returns the rejection message for the first one that this node does not allow.
pub fn forbidden_sysctl(pod: &Pod, allowed_unsafe: &[String]) -> Option<String> {
    sysctls(pod).find_map(|(name, _)| {
        let allowed = SAFE_SYSCTLS.contains(&&*name)
            || allowed_unsafe.iter().map(|a| with_dots(a)).any(|a| match a.strip_suffix('*') {
                Some(prefix) => name.starts_with(prefix),
                None => a == name,
            });
        (!allowed).then(|| format!("forbidden sysctl: {name:?} not allowlisted"))
    })
}

/// Returns the pod's sysctls, with dots as separators in their names.
fn sysctls(pod: &Pod) -> impl Iterator<Item = (String, &str)> {
    let s = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    s.into_iter().flat_map(|s| s.sysctls.iter().flatten()).map(|s| (with_dots(&s.name), s.value.as_str()))
}

/// Converts the name of a sysctl to dots as separators. If the first separator is a slash, slashes separate and dots belong to the parts,
/// for example in interface names (sysctl.d(5)).
fn with_dots(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(at) if name[at..].starts_with('/') => {
            let turned = |c| match c {
                '/' => '.',
                '.' => '/',
                other => other,
            };
            name.chars().map(turned).collect()
        }
        _ => name.to_owned(),
    }
}

/// Returns the labels of the pod's sandbox and containers.
pub fn pod_labels(pod: &Pod) -> BTreeMap<String, String> {
    let mut out: BTreeMap<String, String> =
        pod.metadata.labels.iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
    out.insert(labels::POD_NAME.into(), pod::name(pod).into());
    out.insert(labels::POD_NAMESPACE.into(), pod::namespace(pod).into());
    out.insert(labels::POD_UID.into(), pod::uid(pod).into());
    out
}

/// Builds the sandbox's configuration.
pub fn config(
    pod: &Pod,
    config: &Config,
    dns: cri::DnsConfig,
    attempt: u32,
    cgroup: &str,
    (ids, volume_groups): (Option<IdRange>, &[i64]),
) -> cri::PodSandboxConfig {
    let defaults = security::Defaults {
        ids,
        volume_groups,
        seccomp_default: config.seccomp_default,
        seccomp_root: &config.root_dir.join("seccomp"),
    };
    // A pod on the host network also uses the host's UTS namespace and cannot set its host name.
    let hostname = if pod::host_network(pod) { String::new() } else { kernel_host_name(pod, &config.cluster_domain) };
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: pod::name(pod).into(),
            uid: pod::uid(pod).into(),
            namespace: pod::namespace(pod).into(),
            attempt,
        }),
        hostname,
        log_directory: config.dirs().pod_logs(pod::namespace(pod), pod::name(pod), pod::uid(pod)).display().to_string(),
        dns_config: Some(dns),
        port_mappings: port_mappings(pod),
        labels: pod_labels(pod),
        annotations: annotations(pod, config),
        linux: Some(cri::LinuxPodSandboxConfig {
            cgroup_parent: cgroup.to_owned(),
            security_context: Some(security::sandbox(pod, &defaults)),
            sysctls: sysctls(pod).map(|(k, v)| (k, v.to_owned())).collect(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Returns the pod's annotations and the one that names the kubelet's directory.
fn annotations(pod: &Pod, config: &Config) -> BTreeMap<String, String> {
    let mut out: BTreeMap<String, String> =
        pod.metadata.annotations.iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
    out.insert(labels::NODE_DIRECTORY.into(), config.root_dir.display().to_string());
    out
}

/// Returns the host ports of the pod's containers. A port that occurs twice with the same name is mapped once.
fn port_mappings(pod: &Pod) -> Vec<cri::PortMapping> {
    let mut names = std::collections::HashSet::new();
    let mut out = Vec::new();
    if pod::host_network(pod) {
        return out;
    }
    // Like upstream, only ports of ordinary containers are mapped: ports of init containers would stay open.
    for m in pod::members(pod).filter(|m| m.role == Role::App) {
        for p in m.container.ports.iter().flatten() {
            let protocol = p.protocol.as_deref().unwrap_or("TCP");
            let family = if p.host_ip.as_deref().unwrap_or_default().contains(':') { "v6" } else { "v4" };
            let name = match p.name.as_deref().filter(|n| !n.is_empty()) {
                Some(n) => format!("{}-{n}", m.container.name),
                None => {
                    let (ip, host) = (p.host_ip.as_deref().unwrap_or_default(), p.host_port.unwrap_or(0));
                    format!("{}-{family}-{protocol}-{ip}:{}:{host}", m.container.name, p.container_port)
                }
            };
            if !names.insert(name.clone()) {
                tracing::warn!(name, "port name conflicted, it is defined more than once");
                continue;
            }
            let protocol = match protocol {
                "UDP" => cri::Protocol::Udp,
                "SCTP" => cri::Protocol::Sctp,
                _ => cri::Protocol::Tcp,
            };
            out.push(cri::PortMapping {
                protocol: protocol as i32,
                container_port: p.container_port,
                host_port: p.host_port.unwrap_or(0),
                host_ip: p.host_ip.clone().unwrap_or_default(),
            });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_host_keeps_its_name() {
        let name_of = |host_network: bool| {
            let pod = json!({"metadata":{"name":"p","namespace":"n","uid":"u"},
                "spec":{"hostNetwork": host_network, "containers":[{"name":"a"}]}});
            let pod: Pod = serde_json::from_value(pod).expect("pod");
            let node = Config::new("node", std::path::Path::new("/nowhere"));
            config(&pod, &node, cri::DnsConfig::default(), 0, "", (None, &[])).hostname
        };
        assert_eq!((name_of(true).as_str(), name_of(false).as_str()), ("", "p"));
    }

    #[test]
    fn ports_are_mapped_once_per_name_and_sysctls_are_checked() {
        let p: Pod = serde_json::from_value(json!({"metadata":{"name":"p","namespace":"n","uid":"u"},"spec":{
            "securityContext":{"sysctls":[{"name":"kernel.msgmax","value":"1"}]},
            "containers":[{"name":"a","ports":[{"containerPort":80,"hostPort":8080},{"containerPort":80,"hostPort":8080},
              {"name":"dns","containerPort":53,"protocol":"UDP"}]}]}}))
        .expect("pod");
        let ports = port_mappings(&p);
        assert_eq!(ports.iter().map(|p| p.container_port).collect::<Vec<_>>(), [80, 53]);
        assert_eq!(forbidden_sysctl(&p, &[]).as_deref(), Some("forbidden sysctl: \"kernel.msgmax\" not allowlisted"));
        assert_eq!(forbidden_sysctl(&p, &["kernel.msg*".into()]), None);
        assert_eq!(forbidden_sysctl(&p, &["kernel/msg*".into()]), None);
        for (written, meant) in [
            ("kernel/shm_rmid_forced", "kernel.shm_rmid_forced"),
            ("net.ipv4.tcp_syncookies", "net.ipv4.tcp_syncookies"),
            ("net/ipv4/conf/eth0.5/rp_filter", "net.ipv4.conf.eth0/5.rp_filter"),
            ("net.ipv4.conf.eth0/5.rp_filter", "net.ipv4.conf.eth0/5.rp_filter"),
        ] {
            assert_eq!(with_dots(written), meant);
        }
        let slashes: Pod = serde_json::from_value(json!({"spec": {"containers": [],
            "securityContext": {"sysctls": [{"name": "kernel/shm_rmid_forced", "value": "1"}]}}}))
        .expect("pod");
        assert_eq!(forbidden_sysctl(&slashes, &[]), None);
        let node = Config::new("node", std::path::Path::new("/nowhere"));
        let made = config(&slashes, &node, cri::DnsConfig::default(), 0, "", (None, &[]));
        let made: Vec<_> = made.linux.expect("linux").sysctls.into_iter().collect();
        assert_eq!(made, [("kernel.shm_rmid_forced".to_owned(), "1".to_owned())]);
    }
}
