//! The node's client certificate while the node runs. It is requested if there is none, renewed at a jittered 70 to 90
//! % of its lifetime, and requested again if it expired or the API server no longer accepts it. Clients reload its file
//! without a restart (upstream: client-go `util/certificate/certificate_manager.go`, which ends the process with an
//! expired certificate and continues with a rejected one).
use std::time::Duration;

use kelson_meta::Backoff;
use kelson_pki::Renewal;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::connection::Standing;
use crate::files::info;
use crate::node::ClientCertificate;
use crate::{CertError, CertificateMetrics, Demand, demand};

/// Pauses after failures.
const RETRY: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(300));
/// The clock is looked at this often while waiting: it may jump.
const LOOK: Duration = Duration::from_secs(600);
/// The number of rejections, at this interval, after which a rejection counts. A starting server, or a proxy in front
/// of it, may reject once.
const REFUSALS: usize = 3;
const REFUSAL_PAUSE: Duration = Duration::from_secs(5);
/// The interval between checks of unconfirmed rejections, and between requests after rejections, as one of several API
/// servers may be outdated.
const DOUBT_PAUSE: Duration = Duration::from_secs(10);
const AGAIN: Backoff = Backoff::new(Duration::from_secs(60), Duration::from_secs(3600));
/// The timeout for finding the cluster's CA.
const DISCOVERY_LIMIT: Duration = Duration::from_secs(120);

/// The state of [`ClientCertificate::run`] between two certificates.
struct Progress {
    /// The demands of the last request.
    answered: Demand,
    /// Answers that give cause to doubt that the API knows the node.
    doubts: watch::Receiver<u64>,
    /// Doubts are not looked at before.
    rests: Instant,
    /// When a certificate was last requested because the previous one was rejected, and the pause after that.
    anew: Option<(Instant, Duration)>,
}

/// The result of a wait.
enum Waited {
    /// A certificate is due with this demand.
    Due(Demand),
    /// An answer gave cause to doubt.
    Doubtful,
}

impl ClientCertificate {
    /// Keeps the certificate good until the task is ended.
    pub async fn run(mut self, metrics: CertificateMetrics) {
        let mut retry = RETRY.base;
        let doubts = self.connections.doubts();
        let mut progress = Progress { answered: Demand::default(), doubts, rests: Instant::now(), anew: None };
        loop {
            match self.once(&metrics, &mut progress).await {
                Ok(issued) => {
                    if issued {
                        tracing::info!("received the client certificate");
                    }
                    retry = RETRY.base;
                }
                Err(e) => {
                    metrics.client_failed();
                    tracing::warn!(error = %e, "renewing the client certificate failed; retrying");
                    if Standing::of_failure(&e) == Standing::Unverified
                        && let Err(e) = self.discover().await
                    {
                        tracing::warn!(error = %e, "looking up the cluster's CA failed");
                    }
                    tokio::time::sleep(retry).await;
                    retry = RETRY.after(Some(retry));
                }
            }
        }
    }

    /// Waits until another certificate is needed and obtains it. Returns whether it did, as a suspicion may be
    /// unfounded.
    async fn once(&mut self, metrics: &CertificateMetrics, progress: &mut Progress) -> Result<bool, CertError> {
        let files = self.paths.files();
        let stored = files.read().await?.and_then(|issued| Some((info(&issued).ok()?, issued.cert_pem)));
        let Some((current, cert_pem)) = stored else {
            if self.paths.bootstrap.is_none() {
                // The kubeconfig has other credentials, which are not renewed here.
                return std::future::pending().await;
            }
            self.obtain().await?;
            return Ok(true);
        };
        metrics.client_ends(current.not_after);
        let renewal = Renewal::random(current.not_before, current.not_after);
        let waited = loop {
            let wanted = self.demands.borrow_and_update().clone();
            if renewal.is_due(self.clock.now()) || demand::rejects(&wanted, &progress.answered, &cert_pem, &current) {
                break Waited::Due(wanted);
            }
            tokio::select! {
                () = tokio::time::sleep(renewal.wait(self.clock.now()).min(LOOK)) => {}
                () = demand::changed(&mut self.demands) => {}
                () = progress.doubted() => break Waited::Doubtful,
            }
        };
        let wanted = match waited {
            Waited::Doubtful => return self.look_into(progress).await,
            Waited::Due(wanted) => wanted,
        };
        if self.clock.now() > current.not_after {
            self.obtain().await?;
            return Ok(true);
        }
        let client = self.client(&self.shown().await?)?;
        let key = files.key_to_ask_with().await?;
        let issued = match self.request(&client, &key).await {
            Err(e) if e.spends_key() => {
                files.forget_key().await;
                return Err(e);
            }
            // It is no longer trusted although it has not expired: the CA was rotated without this node.
            Err(e) if matches!(Standing::of_failure(&e), Standing::Refused | Standing::Unverified) => {
                return if self.look_into(progress).await? { Ok(true) } else { Err(e) };
            }
            other => other?.0,
        };
        files.update(&issued, self.clock.now()).await?;
        files.forget_key().await;
        progress.answered = wanted;
        Ok(true)
    }

    /// Checks whether the API still accepts this node, and the node the API. If not, finds the CA of the cluster and
    /// requests a certificate with the bootstrap credentials. Returns whether it got one.
    async fn look_into(&self, progress: &mut Progress) -> Result<bool, CertError> {
        progress.rests = Instant::now() + DOUBT_PAUSE;
        let mut standing = self.standing().await?;
        if standing == Standing::Unverified && self.discovery.is_some() {
            self.discover().await?;
            standing = self.standing().await?;
        }
        for _ in 1..REFUSALS {
            if standing == Standing::Refused {
                tokio::time::sleep(REFUSAL_PAUSE).await;
                standing = self.standing().await?;
            }
        }
        if matches!(standing, Standing::Known | Standing::Untold) {
            return Ok(false);
        }
        // If the node does not trust the API server's CA either, the bootstrap kubeconfig may have the right one.
        self.obtain_again().await?;
        let last = progress.anew.filter(|(at, pause)| at.elapsed() < 2 * *pause).map(|(_, pause)| pause);
        let pause = AGAIN.after(last);
        (progress.anew, progress.rests) = (Some((Instant::now(), pause)), Instant::now() + pause);
        Ok(true)
    }

    async fn standing(&self) -> Result<Standing, CertError> {
        Ok(Standing::ask(&self.client(&self.shown().await?)?).await)
    }

    /// Finds the CA of the cluster, if discovery is configured.
    async fn discover(&self) -> Result<(), CertError> {
        let Some(discovery) = &self.discovery else { return Ok(()) };
        tracing::warn!("the API server's certificate is not trusted; looking up the cluster's CA again");
        let found = tokio::time::timeout(DISCOVERY_LIMIT, discovery()).await;
        found.unwrap_or_else(|_| Err(CertError::Unverified("timed out looking up its CA".into())))?;
        self.reconnect().await
    }
}

impl Progress {
    /// Waits for an answer that gives cause to doubt.
    async fn doubted(&mut self) {
        tokio::time::sleep_until(self.rests).await;
        if self.doubts.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
