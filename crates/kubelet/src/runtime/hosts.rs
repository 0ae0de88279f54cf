//! The `/etc/hosts` file that a pod's containers share (upstream: `kubelet_pods.go` managedHostsFileContent).
use std::fmt::Write as _;

use k8s_openapi::api::core::v1::Pod;

use super::dns;
use crate::pod;

/// Returns the content of the file. On the host network it starts with the host's file.
pub fn content(pod: &Pod, pod_ips: &[String], cluster_domain: &str, host_file: &str) -> String {
    let mut out = String::new();
    if pod::host_network(pod) {
        out.push_str("# Kubernetes-managed hosts file (host network).\n");
        out.push_str(host_file);
    } else {
        out.push_str(
            "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n",
        );
        out.push_str(
            "fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n",
        );
        let (host, domain) = dns::host_and_domain(pod, cluster_domain);
        for ip in pod_ips {
            // Writing to a `String` cannot fail.
            let _ = match domain.is_empty() {
                true => writeln!(out, "{ip}\t{host}"),
                false => writeln!(out, "{ip}\t{host}.{domain}\t{host}"),
            };
        }
    }
    let aliases = pod.spec.as_ref().and_then(|s| s.host_aliases.as_ref()).filter(|a| !a.is_empty());
    if let Some(aliases) = aliases {
        out.push_str("\n# Entries added by HostAliases.\n");
        for a in aliases {
            let names = a.hostnames.iter().flatten().cloned().collect::<Vec<_>>().join("\t");
            let _ = writeln!(out, "{}\t{names}", a.ip);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_and_aliases() {
        let p: Pod = serde_json::from_value(json!({"metadata":{"name":"p","namespace":"n"},"spec":{"containers":[],
            "subdomain":"s","hostAliases":[{"ip":"1.2.3.4","hostnames":["a","b"]}]}}))
        .expect("pod");
        let text = content(&p, &["10.0.0.9".into()], "c.l", "");
        assert!(text.contains("10.0.0.9\tp.s.n.svc.c.l\tp\n") && text.ends_with("1.2.3.4\ta\tb\n"), "{text}");
    }
}
