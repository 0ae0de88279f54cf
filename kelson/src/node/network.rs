//! `kelson network explain`: the network policy and rule that decide about a connection.
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use kelson_client::kubeconfig::Config;
use kelson_client::remote::Remote;
use kelson_client::{Client, ListParams, Object};
use kelson_meta::ObjectKey;
use kelson_net::Protocol;
use kelson_network_policy::view::{Namespace, NetworkPolicy, Pod};
use kelson_network_policy::{Cluster, Connection, Direction, PodFacts, Policy, Verdict, decisions};

use crate::token;

/// One end of a connection, as on the command line.
#[derive(Debug, PartialEq)]
enum End {
    Pod(ObjectKey),
    Address(IpAddr),
}

impl End {
    /// Parses `NAMESPACE/POD`, `POD` (in `default`) or an address.
    fn parse(text: &str) -> anyhow::Result<Self> {
        if let Ok(ip) = text.trim_start_matches('[').trim_end_matches(']').parse() {
            return Ok(Self::Address(ip));
        }
        let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
        if namespace.is_empty() || name.is_empty() || name.contains('/') {
            bail!("must be a pod (NAMESPACE/POD) or an IP address, got {text:?}");
        }
        Ok(Self::Pod(ObjectKey::new(namespace, name)))
    }

    fn resolve(&self, cluster: &Cluster) -> anyhow::Result<IpAddr> {
        match self {
            Self::Address(ip) => Ok(*ip),
            Self::Pod(key) => {
                let missing = || {
                    format!(
                        "pod {}/{} does not exist, has terminated, or uses the host network",
                        key.namespace, key.name
                    )
                };
                let pod = cluster.pod(key).with_context(missing)?;
                pod.ips
                    .first()
                    .copied()
                    .with_context(|| format!("pod {}/{} has no address yet", key.namespace, key.name))
            }
        }
    }
}

/// Parses the destination: an end, and the port after its last colon.
fn destination(text: &str) -> anyhow::Result<(End, Option<(Protocol, u16)>)> {
    if text.parse::<IpAddr>().is_ok() {
        return Ok((End::parse(text)?, None));
    }
    let Some((end, port)) = text.rsplit_once(':').filter(|(end, _)| !end.is_empty()) else {
        return Ok((End::parse(text)?, None));
    };
    let (number, protocol) = port.split_once('/').unwrap_or((port, "TCP"));
    let number = number.parse().with_context(|| format!("must be a port such as 80 or 53/UDP, got {port:?}"))?;
    let protocol = match protocol.to_ascii_uppercase().as_str() {
        "TCP" => Protocol::Tcp,
        "UDP" => Protocol::Udp,
        "SCTP" => Protocol::Sctp,
        other => bail!("protocol must be TCP, UDP or SCTP, got {other:?}"),
    };
    Ok((End::parse(end)?, Some((protocol, number))))
}

/// Reads pods, namespaces and policies.
async fn read(client: &Client) -> anyhow::Result<Cluster> {
    async fn all<T: Object>(client: &Client) -> anyhow::Result<Vec<T>> {
        let list = client.list::<T>("", &ListParams::default()).await;
        Ok(list.with_context(|| format!("list {}", T::TYPE.plural))?.items)
    }
    let mut cluster = Cluster::default();
    for namespace in all::<Namespace>(client).await? {
        cluster.set_namespace(&namespace.metadata.name, namespace.metadata.labels.clone());
    }
    for pod in all::<Pod>(client).await?.iter().filter_map(PodFacts::of) {
        cluster.set_pod(pod);
    }
    for policy in all::<NetworkPolicy>(client).await? {
        cluster.set_policy(Arc::new(Policy::new(&policy)));
    }
    Ok(cluster)
}

/// Prints what decides about a connection from `from` to `to`.
pub async fn explain(from: &str, to: &str, data_dir: &Path, kubeconfig: Option<PathBuf>) -> anyhow::Result<()> {
    let from = End::parse(from).context("source")?;
    let (to, port) = destination(to).context("destination")?;
    let client = match kubeconfig {
        Some(file) => Client::new(Arc::new(Remote::new(Config::load(&file)?)?), "network"),
        None => token::admin(data_dir)?,
    };
    let cluster = read(&client).await?;
    let (source, destination) = (from.resolve(&cluster)?, to.resolve(&cluster)?);
    let connection = Connection { source, destination, port };
    let mut text = report(&cluster, &connection);
    for direction in Direction::ALL {
        for policy in named(&cluster.judge(direction, &connection)) {
            if let Some((allowed, denied)) = decisions(data_dir, &policy, direction).await {
                let (namespace, name, direction) = (&policy.namespace, &policy.name, direction.as_str());
                let _ = writeln!(
                    text,
                    "Policy {namespace}/{name}, {direction}, new connections on this node: {allowed} allowed, {denied} denied"
                );
            }
        }
    }
    out!("{text}");
    Ok(())
}

fn named(verdict: &Verdict) -> Vec<ObjectKey> {
    match verdict {
        Verdict::NotIsolated => Vec::new(),
        Verdict::Allowed { policy, .. } => vec![policy.clone()],
        Verdict::Denied { policies } => policies.clone(),
    }
}

fn report(cluster: &Cluster, connection: &Connection) -> String {
    let end = |ip: IpAddr| match cluster.pod_at(ip) {
        Some(pod) => format!("pod {}/{} ({ip}) on node {}", pod.namespace, pod.name, pod.node),
        None => format!("{ip} (not a pod's address)"),
    };
    let port = connection.port.map_or_else(String::new, |(protocol, port)| {
        format!(", port {port}/{}", protocol.to_string().to_ascii_uppercase())
    });
    let mut text = format!("From:    {}\nTo:      {}{port}\n", end(connection.source), end(connection.destination));
    let egress = cluster.judge(Direction::Egress, connection);
    let ingress = cluster.judge(Direction::Ingress, connection);
    for (name, verdict, field) in [("Egress", &egress, "egress"), ("Ingress", &ingress, "ingress")] {
        let policies = |keys: &[ObjectKey]| {
            keys.iter().map(|k| format!("{}/{}", k.namespace, k.name)).collect::<Vec<_>>().join(", ")
        };
        let reason = match verdict {
            Verdict::NotIsolated => "allowed: no policy applies".to_owned(),
            Verdict::Allowed { policy, rule } => {
                format!("allowed by policy {}/{}, spec.{field}[{rule}]", policy.namespace, policy.name)
            }
            Verdict::Denied { policies: keys } => format!("denied: no rule allows it in {}", policies(keys)),
        };
        let _ = writeln!(text, "{:<9}{reason}", format!("{name}:"));
    }
    let result = if egress.passes() && ingress.passes() { "allowed" } else { "denied" };
    let _ = writeln!(text, "Result:  {result}; traffic between a pod and its own node is always allowed");
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ends_are_pods_or_addresses_and_ports_have_protocols() {
        let pod = |namespace, name| End::Pod(ObjectKey::new(namespace, name));
        let ip = |text: &str| End::Address(text.parse().unwrap());
        for (text, end, port) in [
            ("web", pod("default", "web"), None),
            ("shop/db:5432", pod("shop", "db"), Some((Protocol::Tcp, 5432))),
            ("10.42.0.5:53/udp", ip("10.42.0.5"), Some((Protocol::Udp, 53))),
            ("[fd00::5]:80", ip("fd00::5"), Some((Protocol::Tcp, 80))),
            ("fd00::5", ip("fd00::5"), None),
        ] {
            assert_eq!(destination(text).unwrap(), (end, port), "{text}");
        }
        for text in ["a/b/c", "/x", "web:http", "web:80/ICMP", "web:70000", ""] {
            assert!(destination(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_report_names_the_policy_and_the_rule() {
        let mut cluster = Cluster::default();
        for (name, ip) in [("web", "10.42.0.5"), ("db", "10.42.0.6")] {
            let labels = serde_json::from_value(json!({"app": name})).unwrap();
            let (namespace, name, node) = ("shop".to_owned(), name.to_owned(), "n".to_owned());
            cluster.set_pod(PodFacts {
                namespace,
                name,
                labels,
                ips: vec![ip.parse().unwrap()],
                ports: Vec::new(),
                node,
            });
        }
        let from = json!([{"podSelector": {"matchLabels": {"app": "web"}}}]);
        let spec = json!({"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [{"from": from, "ports": [{"port": 5432}]}]});
        let object = json!({"metadata": {"name": "db", "namespace": "shop"}, "spec": spec});
        cluster.set_policy(Arc::new(Policy::new(&serde_json::from_value(object).unwrap())));
        let connection = |port| Connection {
            source: "10.42.0.5".parse().unwrap(),
            destination: "10.42.0.6".parse().unwrap(),
            port: Some((Protocol::Tcp, port)),
        };
        let allowed = report(&cluster, &connection(5432));
        let expected = "From:    pod shop/web (10.42.0.5) on node n\nTo:      pod shop/db (10.42.0.6) on node n, port 5432/TCP\n\
            Egress:  allowed: no policy applies\nIngress: allowed by policy shop/db, spec.ingress[0]\nResult:  allowed";
        assert!(allowed.starts_with(expected), "{allowed}");
        let denied = report(&cluster, &connection(80));
        assert!(denied.contains("Ingress: denied: no rule allows it in shop/db\nResult:  denied"), "{denied}");
    }
}
