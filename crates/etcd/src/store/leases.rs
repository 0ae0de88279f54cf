//! Ends leases whose time has come.

use std::sync::Arc;

use super::face::Store;

/// Leases ended in one go.
const AT_ONCE: usize = 256;

/// Runs until the group ends.
pub(super) async fn run(store: Store) {
    let shared = Arc::clone(store.shared());
    loop {
        let next = shared.read(crate::mvcc::State::next_lease_end);
        match next {
            None => shared.granted.notified().await,
            Some(end) => {
                tokio::select! {
                    () = tokio::time::sleep_until(shared.clock.at(end)) => {}
                    () = shared.granted.notified() => continue,
                }
            }
        }
        for id in shared.read(|state| state.ended_leases(shared.clock.now(), AT_ONCE)) {
            if let Err(error) = store.end_lease(id).await {
                tracing::warn!(id, %error, "revoking the expired lease failed");
                // The disk may have room again later; the keys must not outlive that.
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            }
        }
    }
}
