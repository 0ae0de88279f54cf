//! The settings that a cluster publishes for nodes, in the ConfigMaps of kubeadm where it has one:
//! `kube-public/cluster-info` (the URL of the API and its CA; signed with each token), `kube-system/kubelet-config`
//! (DNS), `kube-system/kelson-network` (address ranges and overlay), `kube-system/kubelet-serving-ca` (the CA of
//! kubelets) and `kube-system/kelson-authorities` (the CAs for running nodes).
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

/// The domain of services and pods in DNS.
pub const CLUSTER_DOMAIN: &str = "cluster.local";
/// The URL of the API and its CA for joining nodes, readable by all clients (KEP-130, upstream `bootstrapapi`).
pub const CLUSTER_INFO: (&str, &str) = ("kube-public", "cluster-info");
/// The common settings of kubelets, as kubeadm stores them.
pub const KUBELET_CONFIG: (&str, &str) = ("kube-system", "kubelet-config");
/// The address ranges and the overlay.
pub const NETWORK: (&str, &str) = ("kube-system", "kelson-network");
/// The CA of kubelets' serving certificates, for clients that connect to kubelets, such as a metrics server: the CA in
/// `kube-root-ca.crt` is another one.
pub const KUBELET_SERVING_CA: (&str, &str) = ("kube-system", "kubelet-serving-ca");
/// The CA bundles for running nodes, updated while they are rotated.
pub const AUTHORITIES: (&str, &str) = ("kube-system", "kelson-authorities");
/// The annotation of a Node with the CAs that have issued all its certificates, and which it trusts.
pub const REPORT: &str = "certificates.kelson.dev/authorities";
/// The key of the kubeconfig in `cluster-info`.
pub const INFO_KEY: &str = "kubeconfig";
const KUBELET_KEY: &str = "kubelet";
const NETWORK_KEY: &str = "network.json";
const CA_KEY: &str = "ca.crt";
const KUBELET_SERVING_KEY: &str = "kubelet-serving-ca.crt";
/// The file with the agent's copy of its cluster's settings, in its data directory.
const KNOWN_FILE: &str = "cluster.json";

/// The maximum number of previous CAs to remember.
const FORMER_MAX: usize = 16;

/// The CA bundles that running nodes follow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundles {
    /// The CA bundle of the API server and its clients, PEM; the first certificate signs.
    pub ca: String,
    /// The CA bundle of kubelets, PEM; the first certificate signs.
    pub kubelet_serving: String,
}

impl Bundles {
    /// Returns the bundles of a server's CAs.
    pub fn of(pki: &ClusterPki) -> Self {
        Self { ca: pki.ca_bundle(), kubelet_serving: pki.kubelet_serving_bundle() }
    }

    /// Returns the CAs a node uses, in the format of [`REPORT`]: the pins of the signing certificates.
    pub fn report(&self) -> anyhow::Result<String> {
        let pin = |pem: &str| anyhow::Ok(kelson_pki::public_key_pin(&kelson_pki::certificates_from_pem(pem)?[0])?);
        Ok(format!("{},{}", pin(&self.ca)?, pin(&self.kubelet_serving)?))
    }

    /// Reads the ConfigMap [`AUTHORITIES`]; `None` when it does not contain them.
    pub fn read(data: &BTreeMap<String, String>) -> Option<Self> {
        let get = |key: &str| data.get(key).filter(|pem| kelson_pki::certificates_from_pem(pem).is_ok()).cloned();
        Some(Self { ca: get(CA_KEY)?, kubelet_serving: get(KUBELET_SERVING_KEY)? })
    }
}

/// The settings that all nodes of a cluster share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSettings {
    /// Address ranges and overlay.
    #[serde(flatten)]
    pub ranges: Ranges,
    /// The address of cluster DNS.
    #[serde(rename = "clusterDNS")]
    pub dns: IpAddr,
    /// The DNS domain of the cluster.
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

/// The fields of `KubeletConfiguration` that are read.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct KubeletConfiguration {
    #[serde(rename = "clusterDNS")]
    cluster_dns: Vec<IpAddr>,
    cluster_domain: String,
}

/// The state of a joined node, so that it can start without the server.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinedNode {
    /// The CA of the API server, PEM.
    pub ca: String,
    /// Pins of previous CAs, which the cluster has replaced: a pin from before a rotation still identifies the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<String>,
    /// The settings of the cluster.
    #[serde(flatten)]
    pub settings: ClusterSettings,
}

impl JoinedNode {
    /// Reads the state of an earlier start.
    pub fn load(dir: &Path) -> anyhow::Result<Option<Self>> {
        let file = dir.join(KNOWN_FILE);
        match std::fs::read(&file) {
            Ok(text) => kelson_meta::from_json(&text).map(Some).with_context(|| file.display().to_string()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e).with_context(|| file.display().to_string()),
        }
    }

    /// Returns the state after the cluster has rotated its CA to `ca`.
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

    /// Writes it into the data directory and syncs it.
    pub fn save(&self, dir: &Path) -> anyhow::Result<()> {
        let file = dir.join(KNOWN_FILE);
        Ok(kelson_pki::write_secret(&file, &serde_json::to_vec_pretty(self)?, true)?)
    }
}

/// Publishes everything, as `server` (a URL that other machines can reach). The kubelets' settings, which an operator
/// may change, are only created if missing.
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

/// Writes one key of a ConfigMap; other keys, such as signatures, have other owners.
async fn ensure(
    client: &Client,
    (namespace, name): (&str, &str),
    key: &str,
    text: &str,
    keep: bool,
) -> Result<(), ClientError> {
    loop {
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
        match client.create::<ConfigMap>(namespace, &map).await {
            // Another server that starts was faster.
            Err(e) if e.is_already_exists() => {}
            done => return done.map(drop),
        }
    }
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
    use kelson_auth::{UserInfo, user};

    use super::*;

    #[tokio::test]
    async fn servers_that_start_at_once_publish_the_same() {
        let store = kelson_store::Store::in_memory(kelson_store::StoreOptions::default());
        let api = kelson_apiserver::ApiServer::start(kelson_apiserver::Config::new(store)).await.unwrap();
        api.ready().await;
        let client = || Client::new(api.in_process(UserInfo::new("admin", [user::MASTERS])), "test");
        let bundles = Bundles { ca: "CA".into(), kubelet_serving: "CA".into() };
        let network = r#"{"clusterCIDR":"10.42.0.0/16","serviceCIDR":"10.43.0.0/16","vni":7}"#;
        let set = settings(network, "clusterDNS:\n- 10.43.0.10\nclusterDomain: cluster.local").unwrap();
        let (a, b, c) = (client(), client(), client());
        let of = |one| publish(one, "https://192.0.2.1:6443", &bundles, &set);
        let (first, second, third) = tokio::join!(of(&a), of(&b), of(&c));
        for done in [first, second, third] {
            done.unwrap();
        }
        assert_eq!(read(&a).await.unwrap(), set);
    }

    #[test]
    fn what_is_published_reads_back() {
        let info = KubeconfigFile::of_cluster("https://192.0.2.1:6443", "CA").to_yaml();
        let c = kelson_client::kubeconfig::Config::parse_cluster(info.as_bytes()).unwrap();
        assert_eq!((c.server.as_str(), c.ca_pem.as_slice()), ("https://192.0.2.1:6443", b"CA".as_slice()));
        let network = r#"{"clusterCIDR":"10.42.0.0/16","serviceCIDR":"10.43.0.0/16","vni":7}"#;
        let kubelet = "clusterDNS:\n- 10.43.0.10\nclusterDomain: cluster.local\nkind: KubeletConfiguration\n";
        let s = settings(network, kubelet).unwrap();
        assert_eq!((s.ranges.vni, s.dns.to_string(), s.domain.as_str()), (7, "10.43.0.10".into(), "cluster.local"));
        let known = JoinedNode { ca: "CA".into(), former: Vec::new(), settings: s.clone() };
        let again: JoinedNode = serde_json::from_str(&serde_json::to_string(&known).unwrap()).unwrap();
        assert_eq!(again.settings, s);
        assert!(s.network_policy, "settings of an earlier release do not name it");
        let off = network.replace('}', r#","networkPolicy":false}"#);
        assert!(!settings(&off, kubelet).unwrap().network_policy);
        assert!(settings(network, "clusterDNS: []").unwrap_err().to_string().contains("clusterDNS must not be empty"));
    }
}
