//! What a cluster tells the nodes that join it, in the ConfigMaps kubeadm uses where it has one: `kube-public/cluster-info`
//! (where the API is, and its CA; signed with each token), `kube-system/kubelet-config` (DNS),
//! `kube-system/kelson-network` (address ranges and overlay), `kube-system/kubelet-serving-ca` (what verifies kubelets) and
//! `kube-system/kelson-authorities` (what running nodes follow).
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::ConfigMap;
use kelson_client::{Client, ClientError, PatchKind, WriteOptions};
use kelson_pki::ClusterPki;
use kelson_pki::kubeconfig::KubeconfigFile;
use kelson_ranges::Ranges;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Where joining nodes find the API and its CA, readable by anybody (KEP-130, upstream `bootstrapapi`).
pub const CLUSTER_INFO: (&str, &str) = ("kube-public", "cluster-info");
/// The kubelets' common settings, as kubeadm stores them.
pub const KUBELET_CONFIG: (&str, &str) = ("kube-system", "kubelet-config");
/// Address ranges and overlay.
pub const NETWORK: (&str, &str) = ("kube-system", "kelson-network");
/// What verifies the serving certificates of kubelets, for those who speak to kubelets themselves, such as a metrics
/// server: the CA in `kube-root-ca.crt` does not.
pub const KUBELET_SERVING_CA: (&str, &str) = ("kube-system", "kubelet-serving-ca");
/// What nodes that run follow: both bundles, as they are replaced.
pub const AUTHORITIES: (&str, &str) = ("kube-system", "kelson-authorities");
/// On a Node: the authorities by which all its certificates are issued, and which it trusts.
pub const REPORT: &str = "certificates.kelson.dev/authorities";
/// Key of the kubeconfig in `cluster-info`.
pub const INFO_KEY: &str = "kubeconfig";
const KUBELET_KEY: &str = "kubelet";
const NETWORK_KEY: &str = "network.json";
const CA_KEY: &str = "ca.crt";
const KUBELET_SERVING_KEY: &str = "kubelet-serving-ca.crt";
/// What an agent knows of its cluster, in its data directory.
const KNOWN_FILE: &str = "cluster.json";

/// Authorities of before that are remembered.
const FORMER_MAX: usize = 16;

/// The authorities that nodes follow while they run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundles {
    /// Verifies the API server and its clients, PEM; the first certificate is the one that signs.
    pub ca: String,
    /// Verifies kubelets, PEM; likewise.
    pub kubelet_serving: String,
}

impl Bundles {
    /// Of a server's authorities.
    pub fn of(pki: &ClusterPki) -> Self {
        Self { ca: pki.ca_bundle(), kubelet_serving: pki.kubelet_serving_bundle() }
    }

    /// Which authorities a node has taken up, as [`REPORT`] says it: the pins of those that sign.
    pub fn report(&self) -> anyhow::Result<String> {
        let pin = |pem: &str| anyhow::Ok(kelson_pki::public_key_pin(&kelson_pki::certificates_from_pem(pem)?[0])?);
        Ok(format!("{},{}", pin(&self.ca)?, pin(&self.kubelet_serving)?))
    }

    /// From the ConfigMap [`AUTHORITIES`]; `None`: it does not hold them.
    pub fn read(data: &BTreeMap<String, String>) -> Option<Self> {
        let get = |key: &str| data.get(key).filter(|pem| kelson_pki::certificates_from_pem(pem).is_ok()).cloned();
        Some(Self { ca: get(CA_KEY)?, kubelet_serving: get(KUBELET_SERVING_KEY)? })
    }
}

/// What every node of a cluster must know alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSettings {
    /// Addresses and overlay.
    #[serde(flatten)]
    pub ranges: Ranges,
    /// Address of cluster DNS.
    #[serde(rename = "clusterDNS")]
    pub dns: IpAddr,
    /// DNS domain of the cluster.
    #[serde(rename = "clusterDomain")]
    pub domain: String,
    /// Whether the nodes enforce network policies.
    #[serde(default = "default_true")]
    pub network_policy: bool,
}

/// The content of [`NETWORK`].
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NetworkSettings {
    #[serde(flatten)]
    ranges: Ranges,
    #[serde(default = "default_true")]
    network_policy: bool,
}

fn default_true() -> bool {
    true
}

/// The part of `KubeletConfiguration` that is read.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct KubeletConfiguration {
    #[serde(rename = "clusterDNS")]
    cluster_dns: Vec<IpAddr>,
    cluster_domain: String,
}

/// What a node that has joined keeps, so that it starts again without asking anybody.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Known {
    /// CA of the API server, PEM.
    pub ca: String,
    /// Pins of authorities that the node believed before and the cluster itself has replaced: a pin that it was once told to join by
    /// is still of its cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<String>,
    /// What a node must know of the cluster to join it.
    #[serde(flatten)]
    pub settings: ClusterSettings,
}

impl Known {
    /// What an earlier start kept.
    pub fn load(dir: &Path) -> anyhow::Result<Option<Self>> {
        let file = dir.join(KNOWN_FILE);
        match std::fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text).map(Some).with_context(|| file.display().to_string()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e).with_context(|| file.display().to_string()),
        }
    }

    /// The same after the cluster has replaced its authorities by `ca`.
    pub fn followed_by(mut self, ca: &str) -> anyhow::Result<Self> {
        for certificate in kelson_pki::certificates_from_pem(&self.ca)? {
            let pin = kelson_pki::public_key_pin(&certificate)?;
            self.former.retain(|former| *former != pin);
            self.former.push(pin);
        }
        let too_many = self.former.len().saturating_sub(FORMER_MAX);
        self.former.drain(..too_many);
        Ok(Self { ca: ca.to_owned(), ..self })
    }

    /// Writes it into the data directory, durably.
    pub fn save(&self, dir: &Path) -> anyhow::Result<()> {
        let file = dir.join(KNOWN_FILE);
        Ok(kelson_pki::write_secret(&file, &serde_json::to_vec_pretty(self)?, true)?)
    }
}

/// Publishes everything, as `server` (a URL that other machines reach). What an operator may change, the kubelets'
/// settings, is only made where it is missing.
pub async fn publish(
    client: &Client,
    server: &str,
    bundles: &Bundles,
    settings: &ClusterSettings,
) -> anyhow::Result<()> {
    let info = KubeconfigFile::of_cluster(server, &bundles.ca).to_yaml();
    let network = NetworkSettings { ranges: settings.ranges, network_policy: settings.network_policy };
    let network = serde_json::to_string_pretty(&network)?;
    let kubelet = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nclusterDNS:\n- {}\nclusterDomain: {}\nkind: KubeletConfiguration\n\
         rotateCertificates: true\nserverTLSBootstrap: true\n",
        settings.dns, settings.domain
    );
    let serving = &bundles.kubelet_serving;
    let (info, network, kubelet, serving, of_nodes) = tokio::join!(
        ensure(client, CLUSTER_INFO, INFO_KEY, &info, true),
        ensure(client, NETWORK, NETWORK_KEY, &network, true),
        ensure(client, KUBELET_CONFIG, KUBELET_KEY, &kubelet, false),
        ensure(client, KUBELET_SERVING_CA, CA_KEY, serving, true),
        async {
            ensure(client, AUTHORITIES, CA_KEY, &bundles.ca, true).await?;
            ensure(client, AUTHORITIES, KUBELET_SERVING_KEY, serving, true).await
        },
    );
    let maps = [
        (info, CLUSTER_INFO),
        (network, NETWORK),
        (kubelet, KUBELET_CONFIG),
        (serving, KUBELET_SERVING_CA),
        (of_nodes, AUTHORITIES),
    ];
    for (done, (namespace, name)) in maps {
        done.with_context(|| format!("publish {namespace}/{name}"))?;
    }
    Ok(())
}

/// One key of a ConfigMap; the others, such as signatures, are others' business.
async fn ensure(
    client: &Client,
    (namespace, name): (&str, &str),
    key: &str,
    text: &str,
    keep: bool,
) -> Result<(), ClientError> {
    if let Some(map) = client.get_opt::<ConfigMap>(namespace, name).await? {
        let there = map.data.as_ref().and_then(|d| d.get(key));
        if there.is_some_and(|t| t == text) || (there.is_some() && !keep) {
            return Ok(());
        }
        let patch = json!({"data": {key: text}});
        let options = WriteOptions::default();
        return client.patch::<ConfigMap>(namespace, name, "", PatchKind::Merge, &patch, &options).await;
    }
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {key: text},
        "metadata": {"name": name, "namespace": namespace}});
    client.create::<ConfigMap>(namespace, &map).await.map(|_| ())
}

/// Reads what [`publish`] published, as a joining node.
pub async fn read(client: &Client) -> Result<ClusterSettings, ClientError> {
    let get = async |(namespace, name): (&str, &str), key: &str| {
        let map = client.get::<ConfigMap>(namespace, name).await?;
        let text = map.data.unwrap_or_default().remove(key);
        text.ok_or_else(|| ClientError::Decode(format!("ConfigMap {namespace}/{name} has no {key}")))
    };
    let (network, kubelet) = tokio::join!(get(NETWORK, NETWORK_KEY), get(KUBELET_CONFIG, KUBELET_KEY));
    settings(&network?, &kubelet?).map_err(|e| ClientError::Decode(format!("{e:#}")))
}

fn settings(network: &str, kubelet: &str) -> anyhow::Result<ClusterSettings> {
    let network: NetworkSettings =
        serde_json::from_str(network).with_context(|| format!("{}/{}", NETWORK.0, NETWORK.1))?;
    let what = || format!("{}/{}", KUBELET_CONFIG.0, KUBELET_CONFIG.1);
    let (tree, _) = kelson_codec::yaml::to_value(kubelet.as_bytes()).with_context(what)?;
    let kubelet: KubeletConfiguration = serde_json::from_value(tree).with_context(what)?;
    let Some(dns) = kubelet.cluster_dns.first().copied() else { bail!("{}: clusterDNS must not be empty", what()) };
    let NetworkSettings { ranges, network_policy } = network;
    Ok(ClusterSettings { ranges, dns, domain: kubelet.cluster_domain, network_policy })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_published_reads_back() {
        let info = KubeconfigFile::of_cluster("https://192.0.2.1:6443", "CA").to_yaml();
        let c = kelson_client::kubeconfig::Config::parse_cluster(info.as_bytes()).unwrap();
        assert_eq!((c.server.as_str(), c.ca_pem.as_slice()), ("https://192.0.2.1:6443", b"CA".as_slice()));
        let network = r#"{"clusterCIDR":"10.42.0.0/16","serviceCIDR":"10.43.0.0/16","vni":7}"#;
        let kubelet = "clusterDNS:\n- 10.43.0.10\nclusterDomain: cluster.local\nkind: KubeletConfiguration\n";
        let s = settings(network, kubelet).unwrap();
        assert_eq!((s.ranges.vni, s.dns.to_string(), s.domain.as_str()), (7, "10.43.0.10".into(), "cluster.local"));
        let known = Known { ca: "CA".into(), former: Vec::new(), settings: s.clone() };
        let again: Known = serde_json::from_str(&serde_json::to_string(&known).unwrap()).unwrap();
        assert_eq!(again.settings, s);
        assert!(s.network_policy, "settings of an earlier release do not name it");
        let off = network.replace('}', r#","networkPolicy":false}"#);
        assert!(!settings(&off, kubelet).unwrap().network_policy);
        assert!(settings(network, "clusterDNS: []").unwrap_err().to_string().contains("clusterDNS must not be empty"));
    }
}
