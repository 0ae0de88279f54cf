//! Renews the control plane's own certificates while it runs. They are made afresh at each start, but a server may run for
//! longer than a certificate lives, a clock that is set right after the start makes one useless at once, and authorities
//! are replaced. What is in use is shown, without keys, in `DIR/pki/issued`.
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

/// The clock is looked at this often: it may be set at any time, and timers do not notice.
const LOOK: Duration = Duration::from_secs(60);
/// Shown for each certificate: seconds until it ends, less than nothing when it has.
const TTL: &str = "kelson_certificate_ttl_seconds";

/// An authority that expires within this time is named in the log each day: no certificate outlives it.
const SOON: Duration = Duration::from_secs(180 * 24 * 3600);
const WARN_EVERY: Duration = Duration::from_secs(24 * 3600);

/// Where copies of the certificates in use lie, below the directory of the authorities.
pub const ISSUED_DIR: &str = "issued";

/// The authorities in force, which may be replaced at any time.
#[derive(Clone)]
pub struct CurrentPki(Arc<RwLock<Arc<ClusterPki>>>);

impl CurrentPki {
    /// Begins with these.
    pub fn new(pki: ClusterPki) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(pki))))
    }
    /// Those of this moment.
    pub fn get(&self) -> Arc<ClusterPki> {
        Arc::clone(&self.0.read())
    }
    /// The names of the authorities, as of their files, and when they end.
    pub fn ends(&self) -> [(&'static str, Timestamp); 3] {
        let pki = self.get();
        [
            ("ca", pki.ca.info().not_after),
            ("front-proxy-ca", pki.front_proxy_ca.info().not_after),
            ("kubelet-serving-ca", pki.kubelet_serving_ca.info().not_after),
        ]
    }
    /// Others, from now on.
    pub fn replace(&self, pki: ClusterPki) {
        *self.0.write() = Arc::new(pki);
    }
}

type Issue = dyn Fn(Timestamp) -> Result<Issued, PkiError> + Send + Sync;

/// A certificate in use, and how another is made.
#[derive(Clone)]
pub struct Renewed {
    name: &'static str,
    certificate: Arc<SwappableCertificate>,
    issue: Arc<Issue>,
    /// The certificate alone, PEM.
    shown: Arc<RwLock<String>>,
}

impl Renewed {
    /// Issues the first.
    ///
    /// # Errors
    /// When it cannot be issued.
    pub fn new(
        name: &'static str,
        now: Timestamp,
        issue: impl Fn(Timestamp) -> Result<Issued, PkiError> + Send + Sync + 'static,
    ) -> Result<Self, PkiError> {
        let first = issue(now)?;
        let certificate = SwappableCertificate::new(&first)?;
        Ok(Self { name, certificate, issue: Arc::new(issue), shown: Arc::new(RwLock::new(first.cert_pem)) })
    }

    /// What listeners and connections show; always the newest.
    pub fn certificate(&self) -> &Arc<SwappableCertificate> {
        &self.certificate
    }

    /// Gives whether there is another one now.
    fn renew_if_due(&self, now: Timestamp) -> bool {
        if !self.certificate.renewal().is_due(now) {
            return false;
        }
        // What fails is tried again at the next look.
        self.renew(now)
            .inspect_err(
                |e| tracing::error!(certificate = self.name, error = %e, "renewing the certificate failed; retrying"),
            )
            .is_ok()
    }

    /// Makes another one, which new connections are shown.
    ///
    /// # Errors
    /// When it cannot be issued; the present one stays.
    pub fn renew(&self, now: Timestamp) -> Result<(), PkiError> {
        let issued = (self.issue)(now)?;
        self.certificate.swap(&issued)?;
        *self.shown.write() = issued.cert_pem;
        tracing::info!(certificate = self.name, expires = %self.certificate.renewal().expires, "renewed the certificate");
        Ok(())
    }
}

/// Writes copies of the certificates in use, for `kelson certificate list`. That they could not be written harms nobody.
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

/// Logs the authorities that expire soon.
fn warn_of_expiry(pki: &CurrentPki, now: Timestamp) {
    for (authority, end) in pki.ends().into_iter().filter(|(_, end)| *end <= now + SOON) {
        tracing::warn!(authority, %end, "CA certificate expires soon; replace it with `kelson certificate rotate-ca`");
    }
}

/// Keeps certificates good until `tasks` ends, and shows in `registry` how long they and their authorities live, in `dir` what they
/// are.
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

/// The certificates of this process's own.
#[derive(Clone)]
pub struct Certificates {
    /// What the API server and the components' ports show.
    pub serving: Renewed,
    /// What the API server shows to kubelets.
    pub kubelet_client: Renewed,
    /// What the API server shows to other servers that answer for group versions.
    pub front_proxy_client: Renewed,
}

impl Certificates {
    /// Issued by the authorities that are in force then, and each time anew.
    ///
    /// # Errors
    /// When one cannot be issued.
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

    /// All of them.
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
        // What is shown is what is in use, and no key.
        show(&issued, std::slice::from_ref(&one)).await;
        let shown = std::fs::read_to_string(issued.join("client.crt")).unwrap();
        assert_eq!(kelson_pki::CertInfo::from_pem(&shown).unwrap().not_after, one.certificate().renewal().expires);
        assert!(!shown.contains("PRIVATE"));
    }
}
