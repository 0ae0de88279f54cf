//! Renews the control plane's own certificates while it runs. They are issued at each start, but a server may run for
//! longer than a certificate is valid, a clock change after the start can make one invalid at once, and CAs are
//! rotated. The certificates in use are written, without keys, to `DIR/pki/issued`.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kelson_meta::Clock;
use kelson_metrics::Registry;
use kelson_pki::{ClusterPki, Component, Issued, PkiError, San, SwappableCertificate};
use kelson_platform::files::make_private_dir;
use kelson_tasks::{FILES, Tasks};
use parking_lot::RwLock;

/// The interval at which the clock is checked: it may be changed at any time, which timers do not notice.
const LOOK: Duration = Duration::from_secs(60);
/// The metric with the seconds until each certificate expires, negative when it has expired.
const TTL: &str = "kelson_certificate_ttl_seconds";

/// A CA that expires within this time is logged each day: no certificate can be valid for longer than its CA.
const SOON: Duration = Duration::from_secs(180 * 24 * 3600);
const WARN_EVERY: Duration = Duration::from_secs(24 * 3600);

/// The directory with copies of the certificates in use, below that of the CAs.
pub const ISSUED_DIR: &str = "issued";

/// The current CAs, which may be replaced at any time.
#[derive(Clone)]
pub struct CurrentPki(Arc<RwLock<Arc<ClusterPki>>>);

impl CurrentPki {
    /// Creates it with these CAs.
    pub fn new(pki: ClusterPki) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(pki))))
    }
    /// Returns the current CAs.
    pub fn get(&self) -> Arc<ClusterPki> {
        Arc::clone(&self.0.read())
    }
    /// Returns the names of the CAs, as in their file names, and their expiry.
    pub fn ends(&self) -> [(&'static str, Timestamp); 3] {
        let pki = self.get();
        [
            ("ca", pki.ca.info().not_after),
            ("front-proxy-ca", pki.front_proxy_ca.info().not_after),
            ("kubelet-serving-ca", pki.kubelet_serving_ca.info().not_after),
        ]
    }
    /// Replaces the CAs.
    pub fn replace(&self, pki: ClusterPki) {
        *self.0.write() = Arc::new(pki);
    }
}

type Issue = dyn Fn(Timestamp) -> Result<Issued, PkiError> + Send + Sync;

/// A certificate in use that can be issued again.
#[derive(Clone)]
pub struct Renewed {
    name: &'static str,
    certificate: Arc<SwappableCertificate>,
    issue: Arc<Issue>,
    /// The certificate without its key, PEM.
    shown: Arc<RwLock<String>>,
}

impl Renewed {
    /// Issues the first certificate.
    ///
    /// # Errors
    /// It cannot be issued.
    pub fn new(
        name: &'static str,
        now: Timestamp,
        issue: impl Fn(Timestamp) -> Result<Issued, PkiError> + Send + Sync + 'static,
    ) -> Result<Self, PkiError> {
        let first = issue(now)?;
        let certificate = SwappableCertificate::new(&first)?;
        Ok(Self { name, certificate, issue: Arc::new(issue), shown: Arc::new(RwLock::new(first.cert_pem)) })
    }

    /// Returns the certificate for listeners and connections; always the newest.
    pub fn certificate(&self) -> &Arc<SwappableCertificate> {
        &self.certificate
    }

    /// Renews the certificate if it is due. Returns whether it was renewed.
    fn renew_if_due(&self, now: Timestamp) -> bool {
        if !self.certificate.renewal().is_due(now) {
            return false;
        }
        // A failure is retried at the next check.
        self.renew(now)
            .inspect_err(
                |e| tracing::error!(certificate = self.name, error = %e, "renewing the certificate failed; retrying"),
            )
            .is_ok()
    }

    /// Issues another certificate, which new connections use.
    ///
    /// # Errors
    /// It cannot be issued; the present one stays in use.
    pub fn renew(&self, now: Timestamp) -> Result<(), PkiError> {
        let issued = (self.issue)(now)?;
        self.certificate.swap(&issued)?;
        *self.shown.write() = issued.cert_pem;
        tracing::info!(certificate = self.name, expires = %self.certificate.renewal().expires, "renewed the certificate");
        Ok(())
    }
}

/// Writes copies of the certificates in use, for `kelson certificate list`. A failure is only logged.
pub async fn show(dir: &Path, all: &[Renewed]) {
    let copies: Vec<(PathBuf, String)> =
        all.iter().map(|one| (dir.join(format!("{}.crt", one.name)), one.shown.read().clone())).collect();
    let dir = dir.to_owned();
    let written = FILES.run(move || {
        make_private_dir(&dir).map_err(|e| e.to_string())?;
        copies.iter().try_for_each(|(file, pem)| {
            kelson_pki::write_secret(file, pem.as_bytes(), false).map_err(|e| e.to_string())
        })
    });
    if let Ok(Err(error)) = written.await {
        tracing::warn!(error, "writing the list of certificates in use failed");
    }
}

/// Logs the CAs that expire soon.
fn warn_of_expiry(pki: &CurrentPki, now: Timestamp) {
    for (authority, end) in pki.ends().into_iter().filter(|(_, end)| *end <= now + SOON) {
        tracing::warn!(authority, %end, "CA certificate expires soon; replace it with `kelson certificate rotate-ca`");
    }
}

/// Renews certificates until `tasks` ends; publishes the lifetime of certificates and CAs in `registry`, and copies of
/// them in `dir`.
pub fn keep(
    tasks: &Tasks,
    registry: &Registry,
    clock: Arc<dyn Clock>,
    all: Vec<Renewed>,
    authorities: &CurrentPki,
    dir: PathBuf,
) {
    let (shown, now, pki) = (all.clone(), Arc::clone(&clock), authorities.clone());
    registry.on_scrape(move |families| {
        let mut family = families.gauge(TTL, "Seconds until expiry of each control plane certificate.");
        let leaves = shown.iter().map(|one| (one.name, one.certificate.renewal().expires));
        for (name, end) in leaves.chain(pki.ends()) {
            family.sample(&[("certificate", name)], end.duration_since(now.now()).as_secs() as f64);
        }
    });
    let pki = authorities.clone();
    tasks.supervise("certificate-renewal", move || {
        let (all, clock, dir, pki) = (all.clone(), Arc::clone(&clock), dir.clone(), pki.clone());
        async move {
            show(&dir, &all).await;
            let mut warned: Option<Timestamp> = None;
            loop {
                let now = clock.now();
                if warned.is_none_or(|at| now < at || now >= at + WARN_EVERY) {
                    warn_of_expiry(&pki, now);
                    warned = Some(now);
                }
                let renewed = all.iter().filter(|one| one.renew_if_due(clock.now())).count();
                if renewed > 0 {
                    show(&dir, &all).await;
                }
                tokio::time::sleep(LOOK).await;
            }
        }
    });
}

/// The certificates of this process.
#[derive(Clone)]
pub struct Certificates {
    /// The serving certificate of the API server and of the components' ports.
    pub serving: Renewed,
    /// The API server's client certificate for kubelets.
    pub kubelet_client: Renewed,
    /// The API server's client certificate for aggregated API servers.
    pub front_proxy_client: Renewed,
}

impl Certificates {
    /// Issues the certificates with the current CAs, which also sign their renewals.
    ///
    /// # Errors
    /// One cannot be issued.
    pub fn issue(pki: &CurrentPki, sans: Vec<San>, now: Timestamp) -> Result<Self, PkiError> {
        let (serving, client, front) = (pki.clone(), pki.clone(), pki.clone());
        Ok(Self {
            serving: Renewed::new("apiserver", now, move |now| serving.get().issue_server(&sans, now))?,
            kubelet_client: Renewed::new("apiserver-kubelet-client", now, move |now| {
                client.get().issue_component(Component::KubeletClient, now)
            })?,
            front_proxy_client: Renewed::new("front-proxy-client", now, move |now| {
                front.get().issue_front_proxy_client(now)
            })?,
        })
    }

    /// Returns all of them.
    pub fn all(&self) -> Vec<Renewed> {
        vec![self.serving.clone(), self.kubelet_client.clone(), self.front_proxy_client.clone()]
    }
}

#[cfg(test)]
mod tests {
    use kelson_pki::PkiOptions;
    use parking_lot::Mutex;

    use super::*;

    /// A clock that is set by hand.
    struct SetClock(Mutex<Timestamp>);

    impl Clock for SetClock {
        fn now(&self) -> Timestamp {
            *self.0.lock()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn renewed_when_due_and_when_the_clock_jumps() {
        let start: Timestamp = "2026-05-06T07:08:09Z".parse().unwrap();
        let day = Duration::from_secs(24 * 3600);
        let dir = tempfile::tempdir().unwrap();
        let pki = ClusterPki::open(&PkiOptions::new(dir.path().join("pki")), start).unwrap();
        let authorities = CurrentPki::new(pki.clone());
        let client = move |now| pki.issue_component(Component::KubeletClient, now);
        let one = Renewed::new("client", start, client).unwrap();
        let (tasks, registry) = (Tasks::root("test"), Registry::new());
        let clock = Arc::new(SetClock(Mutex::new(start)));
        let issued = dir.path().join(ISSUED_DIR);
        keep(&tasks, &registry, Arc::clone(&clock) as _, vec![one.clone()], &authorities, issued.clone());
        let after = async |now: Timestamp| {
            *clock.0.lock() = now;
            tokio::time::sleep(LOOK * 2).await;
            one.certificate().renewal().expires
        };
        let first = after(start).await;
        assert_eq!(after(start + 200 * day).await, first, "not due at 55 % of its life");
        let second = after(start + 340 * day).await;
        assert!(second > first, "due at 93 % of its life");
        assert!(registry.text().contains("kelson_certificate_ttl_seconds{certificate=\"client\"} 3"));
        for authority in ["ca", "front-proxy-ca", "kubelet-serving-ca"] {
            let row = format!("kelson_certificate_ttl_seconds{{certificate={authority:?}}} 2");
            assert!(registry.text().contains(&row), "{row} {}", registry.text());
        }
        let third = after(start + 2000 * day).await;
        assert!(third > second, "a clock that was set far ahead");
        let fourth = after(start).await;
        assert!(fourth < third && one.certificate().renewal().begins <= start, "a clock that was set back");
        assert!(tasks.shutdown(Duration::from_secs(1)).await);
        // The copy is the certificate in use, without a key.
        show(&issued, std::slice::from_ref(&one)).await;
        let shown = std::fs::read_to_string(issued.join("client.crt")).unwrap();
        assert_eq!(kelson_pki::CertInfo::from_pem(&shown).unwrap().not_after, one.certificate().renewal().expires);
        assert!(!shown.contains("PRIVATE"));
    }
}
