//! Requests and renews the serving certificate (`kubernetes.io/kubelet-serving`) and swaps it in under the listener
//! (`serverTLSBootstrap`; upstream `pkg/kubelet/certificate/kubelet.go`). It names what the Node's status names.
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::NodeAddress;
use kelson_client::Client;
use kelson_meta::{Backoff, Clock};
use kelson_pki::{CertInfo, Issued, KUBELET_SERVING, Renewal, San, SwappableCertificate};
use tokio::sync::watch;

use crate::files::{self, Store};
use crate::request::{RequestedCertificate, certificate};
use crate::{CertError, CertificateMetrics, Demand, Demands, demand};

/// The time for which a request waits for approval before it is checked again. The same request is reused, so a cluster
/// that approves none has one request per node.
const WAIT: Duration = Duration::from_secs(15 * 60);
/// The back-off after failures. An undecided request is not a failure. Without a trusted serving certificate, the logs
/// of the node's pods cannot be read.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// The clock is looked at this often while waiting.
const LOOK: Duration = Duration::from_secs(600);

/// The renewal of a node's serving certificate.
#[derive(Clone)]
pub struct ServingCertificate {
    /// The API, which approves and signs.
    pub client: Client,
    /// The clock that renewal is planned by.
    pub clock: Arc<dyn Clock>,
    /// The node's name.
    pub node_name: String,
    /// The directory of the certificates.
    pub cert_dir: PathBuf,
    /// The names of the certificate. While it is empty, none is requested.
    pub names: watch::Receiver<Vec<San>>,
    /// Additional demands on the certificate.
    pub demands: Demands,
    /// The certificate of the listener.
    pub serving: Arc<SwappableCertificate>,
    /// The metrics to update.
    pub metrics: CertificateMetrics,
}

/// The names that a Node's addresses give its certificate, each once.
pub fn names(addresses: &[NodeAddress]) -> Vec<San> {
    let mut sans: Vec<San> = Vec::new();
    for address in addresses {
        let (ip, dns) = (address.address.parse::<IpAddr>().ok().map(San::Ip), San::Dns(address.address.clone()));
        match (address.type_.as_str(), ip) {
            ("Hostname", ip) => sans.push(ip.unwrap_or(dns)),
            ("InternalIP" | "ExternalIP", Some(ip)) => sans.push(ip),
            ("InternalDNS" | "ExternalDNS", _) => sans.push(dns),
            _ => {}
        }
    }
    sans.sort();
    sans.dedup();
    sans
}

impl ServingCertificate {
    /// Runs until the task is ended.
    pub async fn run(mut self) {
        let (mut retry, mut answered) = (RETRY.base, Demand::default());
        loop {
            let files = Store::new("kubelet-server", &self.cert_dir);
            let (wanted, demand) = self.needed(&files, &answered).await;
            let mut names = self.names.clone();
            names.mark_unchanged();
            let outcome = tokio::select! {
                outcome = self.renew(&files, wanted) => outcome,
                // A request with other names is no longer useful.
                changed = names.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => std::future::pending().await,
                },
            };
            match outcome {
                Ok(()) => {
                    tracing::info!("received the serving certificate");
                    (retry, answered) = (RETRY.base, demand);
                }
                Err(e) => {
                    self.metrics.server_failed();
                    tracing::warn!(error = %e, "requesting the serving certificate failed; retrying");
                    tokio::time::sleep(retry).await;
                    retry = RETRY.after(Some(retry));
                }
            }
        }
    }

    /// Waits until another certificate is needed, because the stored one is due or not what is demanded, or the node has other
    /// names; gives these, and the demands that count.
    async fn needed(&mut self, files: &Store, answered: &Demand) -> (Vec<San>, Demand) {
        loop {
            let wanted = self.names.borrow_and_update().clone();
            let demand = self.demands.borrow_and_update().clone();
            let due = self.due(files, &wanted, (&demand, answered)).await;
            let now = self.clock.now();
            let pause = match due {
                _ if wanted.is_empty() => LOOK,
                Some(due) if !due.is_due(now) => due.wait(now).min(LOOK),
                _ => return (wanted, demand),
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = demand::changed(&mut self.demands) => {}
                changed = self.names.changed() => if changed.is_err() {
                    // The sender of names is gone, so the last names are kept.
                    tokio::time::sleep(pause).await;
                },
            }
        }
    }

    /// Returns when the stored certificate must be renewed; `None` means now, because there is none, it names other
    /// addresses or does not satisfy the demand.
    async fn due(&self, files: &Store, wanted: &[San], (demand, answered): (&Demand, &Demand)) -> Option<Renewal> {
        let issued = files.read().await.ok()??;
        let info = files::info(&issued).ok()?;
        self.metrics.server_ends(info.not_after);
        let named = wanted.iter().all(|s| info.sans.contains(s));
        let plan = || Renewal::plan(info.not_before, info.not_after, jitter(&info));
        let good = named && !demand::rejects(demand, answered, &issued.cert_pem, &info);
        (good && info.is_valid_at(self.clock.now())).then(plan)
    }

    async fn renew(&self, files: &Store, sans: Vec<San>) -> Result<(), CertError> {
        let key = files.key_to_ask_with().await?;
        let wanted = RequestedCertificate {
            key: &key,
            common_name: format!("system:node:{}", self.node_name),
            organizations: vec!["system:nodes".into()],
            sans,
            signer: KUBELET_SERVING,
            usage: "server auth",
        };
        let answered = match certificate(&self.client, &wanted, WAIT, &*self.clock).await {
            Err(e) if e.spends_key() => {
                files.forget_key().await;
                return Err(e);
            }
            other => other?,
        };
        let issued = Issued { cert_pem: answered.cert_pem, key: key.clone() };
        let before = stored(files).await;
        files.update(&issued, self.clock.now()).await?;
        files.forget_key().await;
        self.serving.swap(&issued)?;
        if let Some(before) = before {
            let lived = self.clock.now().duration_since(before.not_before);
            self.metrics.server_replaced(Duration::try_from(lived).unwrap_or_default());
        }
        Ok(())
    }
}

async fn stored(files: &Store) -> Option<CertInfo> {
    files::info(&files.read().await.ok()??).ok()
}

/// From 0 to 1, by the certificate: the same point of its life whenever it is looked at.
fn jitter(info: &CertInfo) -> f64 {
    let mut hasher = DefaultHasher::new();
    (info.not_before.as_second(), info.not_after.as_second(), &info.common_name).hash(&mut hasher);
    f64::from((hasher.finish() >> 32) as u32) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_nodes_status() {
        let address = |kind: &str, address: &str| NodeAddress { type_: kind.into(), address: address.into() };
        let given = [
            address("InternalIP", "10.0.0.5"),
            address("InternalIP", "fd00::5"),
            address("ExternalIP", "not an address"),
            address("Hostname", "n1"),
            address("Hostname", "10.0.0.5"),
            address("ExternalDNS", "n1.example.com"),
            address("Other", "x"),
        ];
        let ip = |text: &str| San::Ip(text.parse().expect("ip"));
        let dns = |text: &str| San::Dns(text.into());
        let mut wanted = vec![dns("n1"), dns("n1.example.com"), ip("10.0.0.5"), ip("fd00::5")];
        wanted.sort();
        assert_eq!(names(&given), wanted);
    }
}
