//! Follows the cluster's CAs, and requests for new certificates, while a node runs: its clients and its server reload
//! the CA bundle from a file, its certificates are requested again, and its Node object reports when that is done.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files, or at start")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kelson_bootstrap::files::{Store, info};
use kelson_bootstrap::{CertError, Demand, Demands, Discovery};
use kelson_client::{
    Client, Informer, InformerConfig, InformerHandle, PatchKind, ResourceType, WriteOptions, slim_object,
};
use kelson_meta::{ObjectKey, ObjectMeta};
use kelson_pki::{is_issued_by, rotation, write_secret};
use kelson_platform::files::ensure_private_dir;
use kelson_tasks::{FILES, Tasks};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;

use super::args::AgentArgs;
use super::discovery;
use super::servers::ApiServers;
use crate::certificate::cert_dir;
use crate::cluster::{AUTHORITIES, Bundles, JoinedNode, REPORT};
use crate::token::Token;

/// The interval at which files and the cluster's settings are checked.
const LOOK: Duration = Duration::from_secs(5);
const CA_FILE: &str = "ca.crt";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AuthoritiesMap {
    metadata: ObjectMeta,
    data: BTreeMap<String, String>,
}

slim_object!(AuthoritiesMap, ResourceType::namespaced("", "v1", "configmaps", "ConfigMap"));

/// The CA bundle of a node and the certificates requested of it.
pub struct Trust {
    data_dir: PathBuf,
    client: watch::Sender<Demand>,
    serving: watch::Sender<Demand>,
    /// The last bundle from the cluster. A node that was disconnected during a rotation finds the new one by its token,
    /// and must not go back to this one.
    published: Mutex<String>,
}

impl Trust {
    /// Starts with this bundle, and writes it to [`Trust::ca_file`].
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn begin(data_dir: &Path, ca_pem: &str) -> anyhow::Result<Self> {
        let dir = cert_dir(data_dir);
        // The node's keys will be in it.
        ensure_private_dir(&dir).with_context(|| dir.display().to_string())?;
        let trust = Self {
            data_dir: data_dir.to_owned(),
            client: watch::Sender::new(Demand::default()),
            serving: watch::Sender::new(Demand::default()),
            published: Mutex::default(),
        };
        trust.write(ca_pem)?;
        Ok(trust)
    }

    /// Returns the path of the CA bundle.
    pub fn ca_file(&self) -> PathBuf {
        cert_dir(&self.data_dir).join(CA_FILE)
    }

    /// Returns what the node's client certificate and its serving certificate must satisfy.
    pub fn demands(&self) -> (Demands, Demands) {
        (self.client.subscribe(), self.serving.subscribe())
    }

    fn write(&self, ca_pem: &str) -> anyhow::Result<()> {
        let file = self.ca_file();
        if std::fs::read(&file).is_ok_and(|there| there == ca_pem.as_bytes()) {
            return Ok(());
        }
        Ok(write_secret(&file, ca_pem.as_bytes(), true)?)
    }

    /// Follows the settings, as the node `name`, until `tasks` ends.
    pub fn follow(self, client: Client, name: &str, tasks: &Tasks) {
        let (namespace, map) = AUTHORITIES;
        let config = InformerConfig {
            namespace: namespace.to_owned(),
            fields: format!("metadata.name={map}"),
            ..InformerConfig::default()
        };
        let published = Informer::<AuthoritiesMap>::new(client.clone(), config).start_in(tasks);
        let node = std::sync::Arc::new((self, client, name.to_owned(), published));
        tasks.supervise("node-authorities", move || {
            let node = std::sync::Arc::clone(&node);
            async move {
                let (trust, client, name, published) = &*node;
                trust.run(client, name, published).await;
            }
        });
    }

    async fn run(&self, client: &Client, name: &str, published: &InformerHandle<AuthoritiesMap>) {
        let mut reported = String::new();
        let key = ObjectKey::new(AUTHORITIES.0, AUTHORITIES.1);
        loop {
            let bundles = published.get(&key).and_then(|map| Bundles::read(&map.data));
            if let Err(error) = self.look(bundles.as_ref()).await {
                tracing::error!(error = format!("{error:#}"), "applying the cluster's new CAs failed; retrying");
            } else if let Some(wanted) = bundles.as_ref().and_then(|bundles| bundles.report().ok())
                && wanted != reported
                && self.is_renewed().await
            {
                let patch = json!({"metadata": {"annotations": {REPORT: wanted}}});
                let options = WriteOptions::default();
                match client.patch::<Node>("", name, "", PatchKind::Merge, &patch, &options).await {
                    Ok(()) => reported = wanted,
                    // The Node may not exist yet.
                    Err(error) => tracing::debug!(%error, "reporting the node's CAs failed; retrying"),
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Applies the cluster's bundle, and requests certificates that the cluster or the operator wants.
    async fn look(&self, bundles: Option<&Bundles>) -> anyhow::Result<()> {
        let (dir, data_dir, file) = (cert_dir(&self.data_dir), self.data_dir.clone(), self.ca_file());
        let ca = bundles.map(|bundles| bundles.ca.clone()).filter(|ca| *ca != *self.published.lock());
        let news = ca.clone();
        let since = FILES.run(move || {
            if let Some(ca) = news
                && std::fs::read(&file).ok().as_deref() != Some(ca.as_bytes())
            {
                believe(&data_dir, &file, &ca)?;
            }
            anyhow::Ok(rotation::renew_since(&dir)?)
        });
        let since = since.await??;
        if let Some(ca) = ca {
            *self.published.lock() = ca;
        }
        let [client, serving] = bundles.map_or_else(Default::default, |b| [b.ca.clone(), b.kubelet_serving.clone()]);
        for (demands, issuer_pem) in [(&self.client, client), (&self.serving, serving)] {
            let demand = Demand { issuer_pem, since };
            demands.send_if_modified(|before| {
                let other = *before != demand;
                *before = demand;
                other
            });
        }
        Ok(())
    }

    /// Reports whether both certificates are as required.
    async fn is_renewed(&self) -> bool {
        let (dir, demands) = (cert_dir(&self.data_dir), [self.client.borrow().clone(), self.serving.borrow().clone()]);
        let renewed = FILES.run(move || {
            ["kubelet-client", "kubelet-server"].iter().zip(demands).all(|(name, demand)| {
                let stored = Store::new(name, &dir).current().ok().flatten();
                stored.is_some_and(|issued| is_issued_by(&issued.cert_pem, &demand.issuer_pem))
            })
        });
        renewed.await.unwrap_or(false)
    }
}

/// Makes the node trust this bundle, now and after its next start.
fn believe(data_dir: &Path, file: &Path, ca: &str) -> anyhow::Result<()> {
    // The state for the next start comes first, since a restart may happen at any time.
    if let Some(known) = JoinedNode::load(data_dir)? {
        known.followed_by(ca)?.save(data_dir)?;
    }
    write_secret(file, ca.as_bytes(), true)?;
    tracing::info!("the cluster's CAs were replaced; using the new ones");
    Ok(())
}

/// Returns how a running node finds the cluster's CA after missing its rotation: by its token, as when it joined.
pub fn discovery(args: AgentArgs, servers: ApiServers, token: Token) -> Discovery {
    let given = std::sync::Arc::new((args, servers, token));
    std::sync::Arc::new(move || {
        let given = std::sync::Arc::clone(&given);
        Box::pin(async move {
            let (args, servers, token) = &*given;
            let found = async {
                let data_dir = args.data_dir.clone();
                let known =
                    FILES.run(move || JoinedNode::load(&data_dir)).await??.context("the node has not joined yet")?;
                let ca = discovery::again_while_running(args, servers, token, &known).await?;
                let (data_dir, file) = (args.data_dir.clone(), cert_dir(&args.data_dir).join(CA_FILE));
                FILES.run(move || believe(&data_dir, &file, &ca)).await?
            };
            found.await.map_err(|e| CertError::Unverified(format!("{e:#}")))
        })
    })
}

/// Removes credentials that the cluster no longer accepts, because its CAs were rotated while this node was off: the
/// node joins again with its token.
///
/// # Errors
/// The file cannot be removed.
pub fn forget_foreign(data_dir: &Path, ca_pem: &str, now: Timestamp) -> anyhow::Result<()> {
    let Ok(Some(issued)) = Store::new("kubelet-client", &cert_dir(data_dir)).current() else { return Ok(()) };
    let known = kelson_pki::certificates_from_pem(ca_pem)?
        .iter()
        .any(|ca| is_issued_by(&issued.cert_pem, &kelson_pki::pem_block("CERTIFICATE", ca)));
    if known || info(&issued).is_ok_and(|info| info.not_after < now) {
        return Ok(());
    }
    tracing::warn!("the node's certificate is signed by a replaced CA; joining the cluster again");
    match std::fs::remove_file(data_dir.join("kubelet").join("kubeconfig")) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use kelson_pki::{Authority, LeafSpec, Purpose};

    use super::*;

    fn now() -> Timestamp {
        "2026-05-06T07:08:09Z".parse().unwrap()
    }

    #[tokio::test]
    async fn what_the_cluster_says_is_believed_and_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let old = Authority::create("kubernetes", now()).unwrap();
        let new = old.successor(now()).unwrap();
        let settings = serde_json::from_value(json!({"clusterCIDR": "10.42.0.0/16", "serviceCIDR": "10.43.0.0/16",
            "vni": 7, "clusterDNS": "10.43.0.10", "clusterDomain": "cluster.local"}));
        JoinedNode { ca: old.cert_pem().into(), former: Vec::new(), settings: settings.unwrap() }
            .save(dir.path())
            .unwrap();
        let trust = Trust::begin(dir.path(), old.cert_pem()).unwrap();
        let (client, serving) = trust.demands();
        trust.look(None).await.unwrap();
        assert_eq!(*client.borrow(), Demand::default(), "nothing is known");

        let both = format!("{}{}", new.cert_pem(), old.cert_pem());
        let bundles = Bundles { ca: both.clone(), kubelet_serving: old.cert_pem().into() };
        trust.look(Some(&bundles)).await.unwrap();
        // A bundle found by the token while the node was disconnected is newer than the one from the cluster before.
        believe(dir.path(), &trust.ca_file(), new.cert_pem()).unwrap();
        trust.look(Some(&bundles)).await.unwrap();
        assert_eq!(std::fs::read_to_string(trust.ca_file()).unwrap(), new.cert_pem());
        let known = JoinedNode::load(dir.path()).unwrap().unwrap();
        assert_eq!(known.ca, new.cert_pem());
        let pin = |authority: &Authority| kelson_pki::public_key_pin(authority.cert()).unwrap();
        assert!(known.former.contains(&pin(&old)), "the pin that it joined by is still of its cluster");
        let next = Bundles { ca: new.cert_pem().into(), ..bundles.clone() };
        trust.look(Some(&next)).await.unwrap();
        trust.look(Some(&bundles)).await.unwrap();
        assert_eq!(std::fs::read_to_string(trust.ca_file()).unwrap(), both);
        assert_eq!(JoinedNode::load(dir.path()).unwrap().unwrap().ca, both, "for the next start");
        assert_eq!(client.borrow().issuer_pem, both);
        assert_eq!(serving.borrow().issuer_pem, old.cert_pem());
        assert!(!trust.is_renewed().await, "there is no certificate yet");

        let store = |name: &str| Store::new(name, &cert_dir(dir.path()));
        let spec = LeafSpec {
            common_name: "system:node:n1",
            organizations: &[],
            sans: &[],
            purpose: Purpose::Both,
            lifetime: Duration::from_secs(3600),
        };
        let of = |authority: &Authority| authority.issue(&spec, now()).unwrap();
        store("kubelet-client").update(&of(&old), now()).await.unwrap();
        store("kubelet-server").update(&of(&old), now()).await.unwrap();
        assert!(!trust.is_renewed().await, "the client certificate is of the old one");
        store("kubelet-client").update(&of(&new), now() + Duration::from_secs(1)).await.unwrap();
        assert!(trust.is_renewed().await);

        rotation::ask_to_renew(&cert_dir(dir.path()), now()).unwrap();
        trust.look(Some(&bundles)).await.unwrap();
        assert_eq!((client.borrow().since, serving.borrow().since), (now(), now()));
    }

    #[tokio::test]
    async fn only_untrusted_cas_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let old = Authority::create("kubernetes", now()).unwrap();
        let new = old.successor(now()).unwrap();
        let kubeconfig = dir.path().join("kubelet").join("kubeconfig");
        let spec = LeafSpec {
            common_name: "system:node:n1",
            organizations: &[],
            sans: &[],
            purpose: Purpose::Client,
            lifetime: Duration::from_secs(3600),
        };
        std::fs::create_dir_all(cert_dir(dir.path())).unwrap();
        let issued = old.issue(&spec, now()).unwrap();
        Store::new("kubelet-client", &cert_dir(dir.path())).update(&issued, now()).await.unwrap();
        std::fs::write(&kubeconfig, "x").unwrap();
        let both = format!("{}{}", new.cert_pem(), old.cert_pem());
        forget_foreign(dir.path(), &both, now()).unwrap();
        assert!(kubeconfig.exists(), "both are trusted");
        forget_foreign(dir.path(), new.cert_pem(), now() + Duration::from_secs(7200)).unwrap();
        assert!(kubeconfig.exists(), "one that has ended has its own way back");
        forget_foreign(dir.path(), new.cert_pem(), now()).unwrap();
        assert!(!kubeconfig.exists());
    }
}
