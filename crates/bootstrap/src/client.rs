//! The node's client certificate while the node runs: got where there is none, renewed at a jittered 70 to 90 % of its life,
//! and got anew when it has ended all the same. Clients re-read its file: no restart (upstream: client-go
//! `util/certificate/certificate_manager.go`).
use std::time::Duration;

use kelson_meta::Backoff;
use kelson_pki::Renewal;

use crate::files::info;
use crate::node::ClientCertificate;
use crate::{CertError, CertificateMetrics, Demand, demand};

/// Pauses after failures.
const RETRY: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(300));
/// The clock is looked at this often while waiting: it may jump.
const LOOK: Duration = Duration::from_secs(600);

impl ClientCertificate {
    /// Keeps the certificate good until the task is ended.
    pub async fn run(mut self, metrics: CertificateMetrics) {
        let (mut retry, mut answered) = (RETRY.base, Demand::default());
        loop {
            match self.once(&metrics, &mut answered).await {
                Ok(()) => {
                    tracing::info!("client certificate issued");
                    retry = RETRY.base;
                }
                Err(e) => {
                    metrics.client_failed();
                    tracing::warn!(error = %e, "client certificate not renewed");
                    tokio::time::sleep(retry).await;
                    retry = RETRY.after(Some(retry));
                }
            }
        }
    }

    /// Waits until another certificate is needed, and gets it.
    async fn once(&mut self, metrics: &CertificateMetrics, answered: &mut Demand) -> Result<(), CertError> {
        let files = self.paths.files();
        let stored = files.read().await?.and_then(|issued| Some((info(&issued).ok()?, issued.cert_pem)));
        let Some((current, cert_pem)) = stored else {
            if self.paths.bootstrap.is_none() {
                // A kubeconfig with credentials of another kind, which are somebody else's to renew.
                return std::future::pending().await;
            }
            return self.obtain().await;
        };
        metrics.client_ends(current.not_after);
        let renewal = Renewal::random(current.not_before, current.not_after);
        let wanted = loop {
            let wanted = self.demands.borrow_and_update().clone();
            if renewal.is_due(self.clock.now()) || demand::rejects(&wanted, answered, &cert_pem, &current) {
                break wanted;
            }
            tokio::select! {
                () = tokio::time::sleep(renewal.wait(self.clock.now()).min(LOOK)) => {}
                () = demand::changed(&mut self.demands) => {}
            }
        };
        if self.clock.now() > current.not_after {
            return self.obtain().await;
        }
        let client = (self.connect)(&self.own().await?)?;
        let key = files.key_to_ask_with().await?;
        let issued = match self.request(&client, &key).await {
            Err(e) if e.spends_key() => {
                files.forget_key().await;
                return Err(e);
            }
            // It is not believed any more, though it has not ended: the authority has been replaced without this node.
            Err(CertError::Api(e)) if e.status().is_some_and(|status| status.code == 401) => {
                return self.obtain().await;
            }
            other => other?,
        };
        files.update(&issued, self.clock.now()).await?;
        files.forget_key().await;
        *answered = wanted;
        Ok(())
    }
}
