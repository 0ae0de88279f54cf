//! The server's CAs while it runs: `kelson certificate` changes their files, and this module reloads them, without a
//! restart and without rejecting a valid certificate at any time. A new CA is trusted everywhere before anything is
//! issued by it.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use jiff::Timestamp;
use kelson_apiserver::{Running, Trusted};
use kelson_client::Client;
use kelson_controllers::Authorities;
use kelson_meta::version;
use kelson_pki::{ClusterPki, PkiOptions};
use kelson_serving::Delegated;
use kelson_tasks::{FILES, Tasks};
use tokio::sync::watch;

use crate::certificates::{self, Certificates, CurrentPki};
use crate::cli::ServerArgs;
use crate::cluster::{self, Bundles, ClusterSettings};

/// The directory of CAs in a server's data directory.
pub const PKI_DIR: &str = "pki";
/// The interval at which the directory is checked.
const LOOK: Duration = Duration::from_secs(2);
/// The pause between attempts to apply a change.
const RETRY: Duration = Duration::from_secs(5);

/// Returns the options for the CAs of this data directory.
pub fn options(data_dir: &Path) -> PkiOptions {
    let clock_min = version::build().date.parse().unwrap_or(Timestamp::MIN);
    PkiOptions { dir: data_dir.join(PKI_DIR), clock_min }
}

/// Writes the administrator's kubeconfig for the server at `url`, also to the path set by flags; returns its path.
///
/// # Errors
/// It cannot be issued or written.
pub fn administrator(args: &ServerArgs, pki: &ClusterPki, url: &str, now: Timestamp) -> anyhow::Result<PathBuf> {
    let admin = args.data_dir.join("admin.kubeconfig");
    pki.ensure_admin_kubeconfig(&admin, url, now)?;
    if let Some(out) = &args.kubeconfig_out {
        let text = std::fs::read(&admin).with_context(|| format!("read {}", admin.display()))?;
        kelson_pki::write_secret(out, &for_clients(text, args, url), false)?;
    }
    Ok(admin)
}

/// Returns a kubeconfig for clients outside of this machine: with the shared address of the servers, if they have one.
fn for_clients(kubeconfig: Vec<u8>, args: &ServerArgs, url: &str) -> Vec<u8> {
    let port = url.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    match (args.vip.addresses().first(), port, String::from_utf8(kubeconfig)) {
        (Some(ip), Some(port), Ok(text)) => {
            text.replace(url, &format!("https://{}", SocketAddr::new(*ip, port))).into_bytes()
        }
        (_, _, Ok(text)) => text.into_bytes(),
        (_, _, Err(other)) => other.into_bytes(),
    }
}

/// Returns the CAs with which controllers sign and which they publish.
pub fn of_controllers(pki: &ClusterPki) -> Authorities {
    Authorities {
        root_ca: pki.ca_bundle(),
        signer: Some(Arc::new(pki.ca.clone())),
        kubelet_serving_signer: Some(Arc::new(pki.kubelet_serving_ca.clone())),
        ..Authorities::default()
    }
}

/// Everything that follows the CAs.
pub struct Follower {
    /// The data directory.
    pub dir: PathBuf,
    /// The current CAs.
    pub pki: CurrentPki,
    /// The API server.
    pub api: Running,
    /// The authentication of the components' ports.
    pub ports: Vec<Arc<Delegated>>,
    /// The CAs with which the controllers sign.
    pub signing: watch::Sender<Authorities>,
    /// The certificates of this process.
    pub certificates: Certificates,
    /// A client of the API as the server itself.
    pub masters: Client,
    /// The URLs of the API for this machine and for others.
    pub urls: (String, String),
    /// The settings for nodes.
    pub cluster: ClusterSettings,
}

impl Follower {
    /// Follows the files until `tasks` ends.
    pub fn start(self, tasks: &Tasks) {
        let follower = Arc::new(self);
        tasks.supervise("authorities", move || Arc::clone(&follower).run());
    }

    async fn run(self: Arc<Self>) {
        let (mut seen, mut unfinished) = (None, false);
        loop {
            let at = self.changed_at().await;
            if at == seen && !unfinished {
                tokio::time::sleep(LOOK).await;
                continue;
            }
            match self.look(unfinished).await {
                Ok(()) => (seen, unfinished) = (at, false),
                Err(error) => {
                    tracing::error!(error = format!("{error:#}"), "loading the new CAs failed; retrying");
                    unfinished = true;
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Applies the CAs on the disk if they differ from the current ones, or if `unfinished`.
    async fn look(&self, unfinished: bool) -> anyhow::Result<()> {
        let (options, now) = (options(&self.dir), Timestamp::now());
        let next = FILES.run(move || ClusterPki::open(&options, now)).await?.context("cluster PKI")?;
        let before = self.pki.get();
        let replaced = unfinished || next.bundles() != before.bundles();
        if replaced {
            self.trust(&next).await?;
        }
        if replaced || next.renew_since != before.renew_since {
            self.renew(next, replaced).await?;
        }
        Ok(())
    }

    /// Makes all components trust these CAs, before certificates of them are used.
    async fn trust(&self, next: &ClusterPki) -> anyhow::Result<()> {
        let [client_ca_pem, request_header_ca_pem, kubelet_ca_pem] = next.bundles();
        self.ports.iter().try_for_each(|port| port.trust(&client_ca_pem))?;
        let peer_ca_pem = client_ca_pem.clone();
        self.api.trust(&Trusted { client_ca_pem, request_header_ca_pem, kubelet_ca_pem, peer_ca_pem }).await?;
        Ok(())
    }

    /// Issues certificates with these CAs, and publishes them in the cluster.
    async fn renew(&self, next: ClusterPki, replaced: bool) -> anyhow::Result<()> {
        let now = Timestamp::now();
        if replaced {
            self.signing.send_replace(of_controllers(&next));
        }
        let bundles = Bundles::of(&next);
        self.pki.replace(next);
        let all = self.certificates.all();
        all.iter().try_for_each(|one| one.renew(now))?;
        certificates::show(&self.dir.join(PKI_DIR).join(certificates::ISSUED_DIR), &all).await;
        let (local, public) = &self.urls;
        if replaced {
            cluster::publish(&self.masters, public, &bundles, &self.cluster).await?;
            tracing::info!("CAs were replaced; using the new ones");
        }
        let (pki, admin, local) = (self.pki.get(), self.dir.join("admin.kubeconfig"), local.clone());
        FILES.run(move || pki.ensure_admin_kubeconfig(&admin, &local, now)).await?.context("admin.kubeconfig")?;
        Ok(())
    }

    /// Returns the time of the last change in the directory.
    async fn changed_at(&self) -> Option<SystemTime> {
        let dir = self.dir.join(PKI_DIR);
        FILES.run(move || std::fs::metadata(dir).and_then(|m| m.modified()).ok()).await.ok().flatten()
    }
}
