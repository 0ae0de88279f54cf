//! Resolver configuration and host name of a pod (upstream: `pkg/kubelet/network/dns`).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

use std::io::Read as _;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use k8s_openapi::api::core::v1::Pod;
use kelson_cri::proto::DnsConfig;
use kelson_tasks::FILES;
use parking_lot::Mutex;

use crate::pod;

/// Maximum number of name servers that resolvers read.
const NAMESERVERS_MAX: usize = 3;
/// Maximum number of search domains of a pod.
const SEARCHES_MAX: usize = 32;
/// Maximum length of a search domain: some resolvers crash on longer ones.
const SEARCH_MAX: usize = 253;
/// Maximum length of the line of search domains, including blanks.
const SEARCH_LINE_MAX: usize = 2048;
/// Number of search domains that a pod gets from the cluster, besides the host's.
const CLUSTER_SEARCHES: usize = 3;
/// Maximum length of a host name in Linux; longer names are cut.
const HOST_NAME_MAX: usize = 63;

/// DNS settings of the cluster for pods.
#[derive(Clone, Debug, Default)]
pub struct ClusterDns {
    /// Name servers in order of preference.
    pub servers: Vec<IpAddr>,
    /// Domain of the cluster, for example `cluster.local`.
    pub domain: String,
}

/// Maximum size in bytes of a resolver configuration that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The node's resolver configuration. The file is read again only when it changed. Clones share the cache.
#[derive(Clone, Debug)]
pub struct HostDns {
    path: PathBuf,
    read: Arc<Mutex<Option<(FileStamp, DnsConfig)>>>,
}

/// Identifies a version of a file: inode, length, modification time.
type FileStamp = (u64, u64, SystemTime);

impl HostDns {
    /// Uses the file at `path`. The configuration is empty while the file cannot be read.
    pub fn new(path: PathBuf) -> Self {
        Self { path, read: Arc::default() }
    }

    /// Returns the current configuration.
    pub async fn get(&self) -> DnsConfig {
        let own = self.clone();
        FILES.run(move || own.look()).await.unwrap_or_default()
    }

    /// Checks the host's search domains. Returns the message of upstream's event `CheckLimitsForResolvConf`, or `None` if they are valid.
    /// `in_cluster`: whether pods also get the cluster's search domains.
    pub async fn fault(&self, in_cluster: bool) -> Option<String> {
        let (own, path) = (self.clone(), self.path.clone());
        let read = FILES.run(move || std::fs::metadata(&own.path).map(|_| own.look())).await.ok()?;
        match read {
            Ok(dns) => search_fault(&path.display().to_string(), &dns.searches, in_cluster),
            Err(e) => Some(format!("open {}: {e}", path.display())),
        }
    }

    fn look(&self) -> DnsConfig {
        let Ok(stamp) = std::fs::metadata(&self.path).and_then(|m| Ok((m.ino(), m.len(), m.modified()?))) else {
            return DnsConfig::default();
        };
        let mut read = self.read.lock();
        if let Some((_, dns)) = read.as_ref().filter(|(at, _)| *at == stamp) {
            return dns.clone();
        }
        let mut text = Vec::new();
        let file = std::fs::File::open(&self.path).ok();
        let _ = file.and_then(|f| f.take(FILE_BYTES_MAX).read_to_end(&mut text).ok());
        let dns = parse(&String::from_utf8_lossy(&text));
        *read = Some((stamp, dns.clone()));
        dns
    }
}

/// Parses a `resolv.conf` file.
fn parse(text: &str) -> DnsConfig {
    let mut out = DnsConfig::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => out.servers.extend(words.next().map(str::to_owned)),
            // The last `search` or `domain` line applies.
            Some("search" | "domain") => {
                out.searches = words.map(|w| if w == "." { w } else { w.trim_end_matches('.') }.to_owned()).collect();
            }
            Some("options") => out.options = words.map(str::to_owned).collect(),
            _ => {}
        }
    }
    out
}

fn search_fault(path: &str, searches: &[String], in_cluster: bool) -> Option<String> {
    let many = SEARCHES_MAX - if in_cluster { CLUSTER_SEARCHES } else { 0 };
    if searches.len() > many {
        return Some(format!("Resolv.conf file '{path}' contains search line consisting of more than {many} domains!"));
    }
    if searches.iter().any(|s| s.len() > SEARCH_MAX) {
        return Some(format!(
            "Resolv.conf file {path:?} contains a search path which length is more than allowed {SEARCH_MAX} chars!"
        ));
    }
    (line_length(searches) > SEARCH_LINE_MAX).then(|| {
        format!(
            "Resolv.conf file '{path}' contains search line which length is more than allowed {SEARCH_LINE_MAX} chars!"
        )
    })
}

fn line_length(words: &[String]) -> usize {
    words.iter().map(String::len).sum::<usize>() + words.len().saturating_sub(1)
}

/// A pod's resolver configuration, with warnings about omitted or replaced parts.
#[derive(Debug, Default, PartialEq)]
pub struct PodDns {
    /// The configuration for the runtime.
    pub config: DnsConfig,
    /// Warning events about the pod: reason and upstream's message.
    pub warnings: Vec<(&'static str, String)>,
}

/// Removes name servers and search domains beyond the limits.
fn fit(dns: &mut DnsConfig, warnings: &mut Vec<(&'static str, String)>) {
    const REASON: &str = "DNSConfigForming";
    if dns.servers.len() > NAMESERVERS_MAX {
        dns.servers.truncate(NAMESERVERS_MAX);
        let line = dns.servers.join(" ");
        let text =
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is";
        warnings.push((REASON, format!("{text}: {line}")));
    }
    let before = dns.searches.len();
    dns.searches.truncate(SEARCHES_MAX);
    dns.searches.retain(|s| s.len() <= SEARCH_MAX);
    while line_length(&dns.searches) > SEARCH_LINE_MAX {
        dns.searches.pop();
    }
    if dns.searches.len() < before {
        let line = dns.searches.join(" ");
        let text = "Search Line limits were exceeded, some search paths have been omitted, the applied search line is";
        warnings.push((REASON, format!("{text}: {line}")));
    }
}

/// Computes a pod's configuration from the host's and the cluster's.
pub fn pod_dns(pod: &Pod, host: &DnsConfig, cluster: &ClusterDns) -> PodDns {
    let mut warnings = Vec::new();
    let spec = pod.spec.as_ref();
    let policy = spec.and_then(|s| s.dns_policy.as_deref()).unwrap_or("ClusterFirst");
    let in_cluster = match policy {
        "None" => None,
        "ClusterFirstWithHostNet" => Some(true),
        "ClusterFirst" => Some(!pod::host_network(pod)),
        _ => Some(false),
    };
    let mut dns = match in_cluster {
        None => DnsConfig::default(),
        Some(true) if !cluster.servers.is_empty() => {
            let namespace = pod::namespace(pod);
            let d = &cluster.domain;
            let mut searches = vec![format!("{namespace}.svc.{d}"), format!("svc.{d}"), d.clone()];
            searches.extend(host.searches.iter().cloned());
            DnsConfig {
                servers: cluster.servers.iter().map(ToString::to_string).collect(),
                searches,
                options: vec!["ndots:5".into()],
            }
        }
        Some(in_cluster) => {
            if in_cluster {
                let text = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" \
                            policy. Falling back to \"Default\" policy.";
                warnings.push(("MissingClusterDNS", format!("pod: {:?}. {text}", pod::format_pod(pod))));
            }
            host.clone()
        }
    };
    if let Some(extra) = spec.and_then(|s| s.dns_config.as_ref()) {
        dns.servers.extend(extra.nameservers.iter().flatten().cloned());
        dns.searches.extend(extra.searches.iter().flatten().cloned());
        for o in extra.options.iter().flatten() {
            let name = o.name.clone().unwrap_or_default();
            dns.options.retain(|known| known.split(':').next() != Some(&name));
            dns.options.push(match o.value.as_deref().filter(|v| !v.is_empty()) {
                Some(v) => format!("{name}:{v}"),
                None => name,
            });
        }
    }
    let mut seen = std::collections::HashSet::new();
    dns.servers.retain(|s| seen.insert(s.clone()));
    seen.clear();
    dns.searches.retain(|s| seen.insert(s.clone()));
    fit(&mut dns, &mut warnings);
    PodDns { config: dns, warnings }
}

/// Host name and domain of a pod. The domain is empty unless the pod has a subdomain.
pub fn host_and_domain(pod: &Pod, cluster_domain: &str) -> (String, String) {
    let s = pod.spec.as_ref();
    let given = |v: Option<&String>| v.filter(|h| !h.is_empty()).cloned();
    if let Some(whole) = given(s.and_then(|s| s.hostname_override.as_ref())) {
        return (whole, String::new());
    }
    let mut host = given(s.and_then(|s| s.hostname.as_ref())).unwrap_or_else(|| pod::name(pod).to_owned());
    if host.len() > HOST_NAME_MAX {
        host.truncate(HOST_NAME_MAX);
        host = host.trim_end_matches(['-', '.']).to_owned();
    }
    let sub = given(s.and_then(|s| s.subdomain.as_ref()));
    let domain = sub.map(|d| format!("{d}.{}.svc.{cluster_domain}", pod::namespace(pod))).unwrap_or_default();
    (host, domain)
}

/// Host name for the kernel: the fully qualified name if the pod sets `setHostnameAsFQDN`.
pub fn kernel_host_name(pod: &Pod, cluster_domain: &str) -> String {
    let (host, domain) = host_and_domain(pod, cluster_domain);
    let fqdn = pod.spec.as_ref().and_then(|s| s.set_hostname_as_fqdn).unwrap_or(false);
    if fqdn && !domain.is_empty() { format!("{host}.{domain}") } else { host }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        let mut spec = spec;
        spec["containers"] = json!([]);
        serde_json::from_value(json!({"metadata":{"name":"web-0","namespace":"n"},"spec":spec})).expect("pod")
    }

    fn dns(spec: serde_json::Value) -> DnsConfig {
        let host = parse("nameserver 1.1.1.1\nsearch corp.\noptions timeout:1\n");
        let cluster = ClusterDns { servers: vec!["10.43.0.10".parse().expect("ip")], domain: "cluster.local".into() };
        let dns = pod_dns(&pod(spec), &host, &cluster);
        assert_eq!(dns.warnings, []);
        dns.config
    }

    #[test]
    fn name_servers_and_domains_over_the_limits_are_omitted_with_a_warning() {
        let cluster = ClusterDns { servers: vec!["10.43.0.10".parse().expect("ip")], domain: "c.l".into() };
        let resolve = |host: &DnsConfig, cluster: &ClusterDns, spec: serde_json::Value| {
            let dns = pod_dns(&pod(spec), host, cluster);
            (dns.config, dns.warnings)
        };
        let none = DnsConfig::default();
        let servers = json!({"dnsConfig": {"nameservers": ["1.1.1.1", "2.2.2.2", "3.3.3.3", "1.1.1.1"]}});
        let (dns, warnings) = resolve(&none, &cluster, servers);
        assert_eq!(dns.servers, ["10.43.0.10", "1.1.1.1", "2.2.2.2"]);
        let text = "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: \
                    10.43.0.10 1.1.1.1 2.2.2.2";
        assert_eq!(warnings, [("DNSConfigForming", text.to_owned())]);

        let of = |n: usize, length: usize| (0..n).map(|i| format!("{i:0length$}")).collect::<Vec<_>>();
        for (searches, kept) in [
            (of(29, 4), 32),
            (of(30, 4), 32),
            // The cluster's three domains, `n.svc.c.l svc.c.l c.l`, are 21 characters including blanks.
            (vec!["x".repeat(254), "y".repeat(253)], 4),
            (of(8, 252), 3 + 8),
            (of(9, 252), 3 + 8),
        ] {
            let (dns, warnings) =
                resolve(&DnsConfig { searches: searches.clone(), ..none.clone() }, &cluster, json!({}));
            assert_eq!(dns.searches.len(), kept);
            assert!(line_length(&dns.searches) <= SEARCH_LINE_MAX);
            let want: Vec<&str> = if searches.len() + 3 > kept { vec!["DNSConfigForming"] } else { Vec::new() };
            assert_eq!(warnings.iter().map(|w| w.0).collect::<Vec<_>>(), want);
        }

        let (dns, warnings) = resolve(&parse("nameserver 9.9.9.9"), &ClusterDns::default(), json!({}));
        assert_eq!((dns.servers, warnings[0].0), (vec!["9.9.9.9".to_owned()], "MissingClusterDNS"));
        let (_, warnings) = resolve(&none, &ClusterDns::default(), json!({"dnsPolicy": "Default"}));
        assert_eq!(warnings, []);
    }

    #[test]
    fn invalid_search_lines_of_the_host_are_reported() {
        let many = |n: usize| vec!["a".to_owned(); n];
        let fault = |searches: &[String], in_cluster| search_fault("/r", searches, in_cluster);
        assert_eq!((fault(&many(29), true), fault(&many(32), false)), (None, None));
        assert_eq!(
            fault(&many(30), true).as_deref(),
            Some("Resolv.conf file '/r' contains search line consisting of more than 29 domains!")
        );
        assert!(fault(&["x".repeat(254)], true).is_some_and(|t| t.contains("more than allowed 253 chars")));
        assert!(fault(&vec!["x".repeat(250); 9], true).is_some_and(|t| t.contains("more than allowed 2048 chars")));
    }

    #[test]
    fn policies() {
        let d = dns(json!({}));
        assert_eq!(d.servers, ["10.43.0.10"]);
        assert_eq!(d.searches, ["n.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp"]);
        assert_eq!(d.options, ["ndots:5"]);
        assert_eq!(dns(json!({"dnsPolicy":"Default"})).servers, ["1.1.1.1"]);
        assert_eq!(dns(json!({"dnsPolicy":"ClusterFirst","hostNetwork":true})).servers, ["1.1.1.1"]);
        assert_eq!(dns(json!({"dnsPolicy":"ClusterFirstWithHostNet","hostNetwork":true})).servers, ["10.43.0.10"]);
        let d = dns(json!({"dnsPolicy":"None","dnsConfig":{"nameservers":["9.9.9.9"],"searches":["x"],
            "options":[{"name":"ndots","value":"2"},{"name":"edns0"}]}}));
        assert_eq!(
            (d.servers, d.options),
            (vec!["9.9.9.9".to_owned()], vec!["ndots:2".to_owned(), "edns0".to_owned()])
        );
        let d = dns(json!({"dnsConfig":{"options":[{"name":"ndots","value":"2"}]}}));
        assert_eq!(d.options, ["ndots:2"]);
    }

    #[test]
    fn the_hosts_file_is_followed() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("resolv.conf");
        let host = HostDns::new(path.clone());
        assert_eq!(host.look(), DnsConfig::default(), "not there");
        std::fs::write(&path, "nameserver 1.1.1.1\n").expect("write");
        assert_eq!(host.look().servers, ["1.1.1.1"]);
        std::fs::write(dir.path().join("next"), "nameserver 9.9.9.9\n").expect("write");
        std::fs::rename(dir.path().join("next"), &path).expect("rename");
        assert_eq!(host.look().servers, ["9.9.9.9"]);
    }

    #[test]
    fn host_names() {
        assert_eq!(host_and_domain(&pod(json!({})), "c.l"), ("web-0".into(), String::new()));
        let p = pod(json!({"hostname":"h","subdomain":"s","setHostnameAsFQDN":true}));
        assert_eq!(host_and_domain(&p, "c.l"), ("h".into(), "s.n.svc.c.l".into()));
        assert_eq!(kernel_host_name(&p, "c.l"), "h.s.n.svc.c.l");
    }
}
