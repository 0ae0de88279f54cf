//! Requests and renews the serving certificate (`kubernetes.io/kubelet-serving`) and swaps it in under the listener.
use std::sync::Arc;
use std::time::Duration;

use kelson_client::Client;
use kelson_meta::{Backoff, Clock};
use kelson_pki::{Issued, KUBELET_SERVING, Key, Renewal, San, SwappableCertificate};

use kelson_tasks::FILES;

use super::CertError;
use super::request::{Wanted, certificate};
use super::store::{self, Store};
use crate::config::Config;

/// How long one request may wait for approval before a new one is filed.
const WAIT: Duration = Duration::from_secs(15 * 60);
/// Pauses after failures.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));
/// The clock is looked at this often while waiting.
const LOOK: Duration = Duration::from_secs(600);

/// The renewal of the kubelet's serving certificate.
#[derive(Clone)]
pub struct ServingCertificate {
    /// The API, which approves and signs.
    pub client: Client,
    /// The clock that renewal is planned by.
    pub clock: Arc<dyn Clock>,
    /// The node's name and addresses, and where certificates are kept.
    pub config: Arc<Config>,
    /// What the listener serves with.
    pub serving: Arc<SwappableCertificate>,
}

impl ServingCertificate {
    /// Runs until the task is ended.
    pub async fn run(self) {
        let files = Store::new("kubelet-server", &self.config.cert_dir);
        let mut retry = RETRY.base;
        loop {
            if let Some(due) = self.due(&files).await {
                while !due.wait(self.clock.now()).is_zero() {
                    tokio::time::sleep(due.wait(self.clock.now()).min(LOOK)).await;
                }
            }
            match self.renew(&files).await {
                Ok(()) => {
                    tracing::info!("serving certificate issued");
                    retry = RETRY.base;
                }
                Err(e) => {
                    tracing::warn!(error = %e, "serving certificate not issued");
                    tokio::time::sleep(retry).await;
                    retry = RETRY.after(Some(retry));
                }
            }
        }
    }

    /// When the stored certificate is due; `None`: now, because there is none or it names other addresses.
    async fn due(&self, files: &Store) -> Option<Renewal> {
        let stored = files.clone();
        let current = FILES.run(move || stored.current()).await.ok()?.ok()??;
        let info = store::info(&current).ok()?;
        let named = self.wanted_sans().iter().all(|s| info.sans.contains(s));
        (named && info.is_valid_at(self.clock.now())).then(|| Renewal::random(info.not_before, info.not_after))
    }

    fn wanted_sans(&self) -> Vec<San> {
        let mut sans = vec![San::Dns(self.config.node_name.clone())];
        sans.extend(self.config.node_ips.iter().map(|ip| San::Ip(*ip)));
        sans
    }

    async fn renew(&self, files: &Store) -> Result<(), CertError> {
        let key = Key::generate()?;
        let wanted = Wanted {
            key: &key,
            common_name: format!("system:node:{}", self.config.node_name),
            organizations: vec!["system:nodes".into()],
            sans: self.wanted_sans(),
            signer: KUBELET_SERVING,
            usage: "server auth",
            name: None,
        };
        let cert_pem = certificate(&self.client, &wanted, WAIT).await?;
        let issued = Issued { cert_pem, key: key.clone() };
        files.update(&issued, self.clock.now()).await?;
        self.serving.swap(&issued)?;
        Ok(())
    }
}
