//! Renews the control plane's own certificates while it runs. They are made afresh at each start, but a server may run for
//! longer than a certificate lives, and a clock that is set right after the start makes one useless at once.
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kelson_meta::Clock;
use kelson_metrics::Registry;
use kelson_pki::{Issued, PkiError, SwappableCertificate};
use kelson_tasks::Tasks;

/// The clock is looked at this often: it may be set at any time, and timers do not notice.
const LOOK: Duration = Duration::from_secs(60);
/// Shown for each certificate: seconds until it ends, less than nothing when it has.
const TTL: &str = "kelson_certificate_ttl_seconds";

type Issue = dyn Fn(Timestamp) -> Result<Issued, PkiError> + Send + Sync;

/// A certificate in use, and how another is made.
#[derive(Clone)]
pub struct Renewed {
    name: &'static str,
    certificate: Arc<SwappableCertificate>,
    issue: Arc<Issue>,
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
        let certificate = SwappableCertificate::new(&issue(now)?)?;
        Ok(Self { name, certificate, issue: Arc::new(issue) })
    }

    /// What listeners and connections show; always the newest.
    pub fn certificate(&self) -> &Arc<SwappableCertificate> {
        &self.certificate
    }

    fn renew_if_due(&self, now: Timestamp) {
        if !self.certificate.renewal().is_due(now) {
            return;
        }
        let renewed = (self.issue)(now).and_then(|issued| self.certificate.swap(&issued));
        match renewed {
            Ok(()) => tracing::info!(certificate = self.name, expires = %self.certificate.renewal().expires, "renewed"),
            // It is tried again at the next look.
            Err(e) => tracing::error!(certificate = self.name, error = %e, "not renewed"),
        }
    }
}

/// Keeps certificates good until `tasks` ends, and shows in `registry` how long they live.
pub fn keep(tasks: &Tasks, registry: &Registry, clock: Arc<dyn Clock>, all: Vec<Renewed>) {
    let (shown, now) = (all.clone(), Arc::clone(&clock));
    registry.on_scrape(move |families| {
        let mut family = families.gauge(TTL, "Seconds until a certificate of the control plane ends.");
        for one in &shown {
            let left = one.certificate.renewal().expires.duration_since(now.now());
            family.sample(&[("certificate", one.name)], left.as_secs() as f64);
        }
    });
    tasks.supervise("certificate-renewal", move || {
        let (all, clock) = (all.clone(), Arc::clone(&clock));
        async move {
            loop {
                all.iter().for_each(|one| one.renew_if_due(clock.now()));
                tokio::time::sleep(LOOK).await;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use kelson_pki::{ClusterPki, Component, PkiOptions};
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
        let client = move |now| pki.issue_component(Component::KubeletClient, now);
        let one = Renewed::new("client", start, client).unwrap();
        let (tasks, registry) = (Tasks::root("test"), Registry::new());
        let clock = Arc::new(SetClock(Mutex::new(start)));
        keep(&tasks, &registry, Arc::clone(&clock) as _, vec![one.clone()]);
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
        let third = after(start + 2000 * day).await;
        assert!(third > second, "a clock that was set far ahead");
        let fourth = after(start).await;
        assert!(fourth < third && one.certificate().renewal().begins <= start, "a clock that was set back");
        assert!(tasks.shutdown(Duration::from_secs(1)).await);
    }
}
