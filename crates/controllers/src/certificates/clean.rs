//! Deletes old certificate signing requests. Upstream `pkg/controller/certificates/cleaner`.
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use jiff::Timestamp;
use kelson_client::{Change, DeleteOptions, WorkQueue};
use kelson_meta::ObjectKey;

use crate::shared::context::{Context, SyncError};
use crate::views::CsrView;
use crate::views::condition;

/// The time for which denied, failed and issued requests are kept.
const DECIDED: Duration = Duration::from_secs(3600);
/// The time for which undecided or unsigned requests are kept.
const PENDING: Duration = Duration::from_secs(24 * 3600);

/// Returns when a request must be deleted.
pub fn expires(csr: &CsrView) -> Option<Timestamp> {
    let at = |kind: &str| {
        let c = condition::find(&csr.status.conditions, kind)?;
        c.last_update_time.as_ref().or(c.last_transition_time.as_ref())?.parse::<Timestamp>().ok()
    };
    let after = |at: Option<Timestamp>, kept: Duration| at?.checked_add(kept).ok();
    let issued = !csr.status.certificate.is_empty();
    let decided =
        ["Denied", "Failed", "Approved"].iter().any(|kind| condition::find(&csr.status.conditions, kind).is_some());
    let created = csr.metadata.creation_timestamp.parse::<Timestamp>().ok().filter(|_| !decided);
    [
        after(at("Denied"), DECIDED),
        after(at("Failed"), DECIDED),
        after(at("Approved"), if issued { DECIDED } else { PENDING }),
        after(created, PENDING),
        ended(&csr.status.certificate),
    ]
    .into_iter()
    .flatten()
    .min()
}

/// Returns the expiry of an issued certificate.
fn ended(certificate: &str) -> Option<Timestamp> {
    let pem = base64::engine::general_purpose::STANDARD.decode(certificate).ok()?;
    let info = kelson_pki::CertInfo::from_pem(std::str::from_utf8(&pem).ok()?).ok()?;
    info.not_after.checked_add(Duration::from_secs(1)).ok()
}

/// Starts the cleaner. Each request is checked once, when it expires.
pub fn start(ctx: &Arc<Context>) {
    let client = ctx.client();
    let csrs = ctx.informers.csrs.reader();
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let q = queue.clone();
    csrs.on_change(move |change| {
        if !matches!(change, Change::Deleted(_)) {
            q.add(ObjectKey::new("", &change.object().metadata.name));
        }
    });
    let (q, clock) = (queue.clone(), Arc::clone(&ctx.clock));
    ctx.run_queue_of(csrs.clone(), &queue, 1, move |key| {
        let (client, csrs, queue, clock) = (client.clone(), csrs.clone(), q.clone(), Arc::clone(&clock));
        async move {
            let Some(csr) = csrs.get(&key) else { return Ok(()) };
            let Some(at) = expires(&csr) else { return Ok(()) };
            let left = clock.now().duration_until(at);
            if left.is_positive() {
                queue.add_after(key, left.unsigned_abs() + Duration::from_secs(1));
                return Ok(());
            }
            let options = DeleteOptions::default().with_uid(&csr.metadata.uid);
            match client.delete::<CsrView>("", &key.name, &options).await {
                Err(e) if !e.is_not_found() => Err(SyncError::from(e)),
                _ => Ok(()),
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use kelson_pki::{Key, create_request};
    use serde_json::json;

    use crate::Config;
    use crate::testing::run;
    use kelson_simulation::Api;

    #[tokio::test(start_paused = true)]
    async fn old_ones_go() {
        let api = Api::start().await;
        let kind = "certificates.k8s.io/v1/certificatesigningrequests";
        let _running = run(&api, &["certificatesigningrequest-cleaner-controller"], Config::default()).await;
        for name in ["pending", "denied", "slow"] {
            let pem = create_request(&Key::generate().unwrap(), name, &[], &[]).unwrap();
            let request = base64::engine::general_purpose::STANDARD.encode(pem);
            let spec = json!({"request": request, "signerName": "example.com/s", "usages": ["client auth"]});
            api.create(kind, json!({"metadata": {"name": name}, "spec": spec})).await;
        }
        for (name, what) in [("denied", "Denied"), ("slow", "Approved")] {
            let status = json!({"conditions": [{"type": what, "status": "True", "reason": "R", "message": "m"}]});
            api.patch(kind, "", name, "approval", json!({"status": status})).await;
        }
        let hours = |n: u64| tokio::time::sleep(std::time::Duration::from_secs(n * 3600 + 60));
        api.settle().await;
        assert_eq!(api.list(kind).await.len(), 3);
        hours(1).await;
        assert_eq!(api.list(kind).await.len(), 2, "the denied one is gone; a signer that is slow has a day");
        hours(23).await;
        assert!(api.list(kind).await.is_empty());
    }

    #[test]
    fn each_request_goes_by_what_became_of_it() {
        let ca = kelson_pki::Authority::create("ca", "2026-01-01T00:00:00Z".parse().unwrap()).unwrap();
        let short = kelson_pki::LeafSpec {
            common_name: "n",
            organizations: &[],
            sans: &[],
            purpose: kelson_pki::Purpose::Client,
            lifetime: std::time::Duration::from_secs(600),
        };
        let short = ca.issue(&short, "2026-01-01T00:00:00Z".parse().unwrap()).unwrap().cert_pem;
        let short = base64::engine::general_purpose::STANDARD.encode(short);
        let when = |kinds: &[&str], certificate: &str| {
            let condition =
                |kind: &&str| json!({"type": kind, "status": "True", "lastUpdateTime": "2026-01-01T00:10:00Z"});
            let conditions: Vec<_> = kinds.iter().map(condition).collect();
            let csr = json!({"metadata": {"name": "r", "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"request": "", "signerName": "s"}, "status": {"conditions": conditions, "certificate": certificate}});
            super::expires(&serde_json::from_value(csr).unwrap()).unwrap().to_string()
        };
        assert_eq!(when(&[], ""), "2026-01-02T00:00:00Z");
        assert_eq!(when(&["Denied"], ""), "2026-01-01T01:10:00Z");
        assert_eq!(when(&["Approved", "Failed"], ""), "2026-01-01T01:10:00Z");
        assert_eq!(when(&["Approved"], ""), "2026-01-02T00:10:00Z");
        assert_eq!(when(&["Approved"], "bm90IGEgY2VydGlmaWNhdGU="), "2026-01-01T01:10:00Z");
        assert!(when(&["Approved"], &short).as_str() < "2026-01-01T00:11:00Z", "with the end of its certificate");
    }
}
