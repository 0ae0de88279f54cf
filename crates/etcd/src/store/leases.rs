//! Ends leases whose time has passed.

use std::sync::Arc;

use super::face::Store;

/// The maximum number of leases ended at once.
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
                // The disk may have room again later, and the keys must be deleted then.
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            }
        }
    }
}
