//! Clears away requests that nobody needs any more. Upstream `pkg/controller/certificates/cleaner`.
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kelson_client::{Change, DeleteOptions, WorkQueue};
use kelson_meta::ObjectKey;

use crate::shared::context::{Context, SyncError};
use crate::views::CsrView;
use crate::views::condition;

/// A decided request is kept for so long.
const DECIDED: Duration = Duration::from_secs(3600);
/// A request nobody decided is kept for so long.
const PENDING: Duration = Duration::from_secs(24 * 3600);

/// When a request goes.
pub fn expires(csr: &CsrView) -> Option<Timestamp> {
    let decided = ["Approved", "Denied", "Failed"].iter().filter_map(|k| {
        let c = condition::find(&csr.status.conditions, k)?;
        c.last_update_time.as_ref().or(c.last_transition_time.as_ref())?.parse::<Timestamp>().ok()
    });
    match decided.min() {
        Some(t) => t.checked_add(DECIDED).ok(),
        None => Some(csr.metadata.creation_timestamp.parse::<Timestamp>().ok()?.checked_add(PENDING).ok()?),
    }
}

/// Starts the cleaner: each request is looked at once, when its time is over.
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
    ctx.run_queue(&queue, 1, move |key| {
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
        for name in ["pending", "done"] {
            let pem = create_request(&Key::generate().unwrap(), name, &[], &[]).unwrap();
            let request = base64::engine::general_purpose::STANDARD.encode(pem);
            let spec = json!({"request": request, "signerName": "example.com/s", "usages": ["client auth"]});
            api.create(kind, json!({"metadata": {"name": name}, "spec": spec})).await;
        }
        let approved = json!({"conditions": [{"type": "Approved", "status": "True", "reason": "R", "message": "m"}]});
        api.patch(kind, "", "done", "approval", json!({"status": approved})).await;
        let hours = |n: u64| tokio::time::sleep(std::time::Duration::from_secs(n * 3600 + 60));
        api.settle().await;
        assert_eq!(api.list(kind).await.len(), 2);
        hours(1).await;
        assert_eq!(api.list(kind).await.len(), 1);
        hours(23).await;
        assert!(api.list(kind).await.is_empty());
    }
}
