//! The address at which other API servers on the same storage reach this one (feature gate `UnknownVersionInteroperabilityProxy`), for
//! servers of upstream: they read it from a lease in the storage (KEP-4020, `apiserver/pkg/reconcilers`), while Kelson's read the
//! annotation of the identity Lease, which upstream's write as well.
use std::sync::Arc;
use std::time::Duration;

use crate::config::PEER_GATE;
use crate::extend::identity_lease;
use crate::shared::Server;

/// Interval of renewals, as upstream's.
const EVERY: Duration = Duration::from_secs(10);
/// The time for which the address is stored after a renewal, as upstream's.
const LIFE: Duration = Duration::from_secs(15);
/// The time for which a stopping server waits for its address to be removed.
const LEAVE_MAX: Duration = Duration::from_secs(1);

/// The identity under which this server announces its address; `None` if it does not.
fn id(server: &Server) -> Option<String> {
    let config = &server.config;
    let is_on = server.store.is_mirror() && config.feature_gates.enabled(PEER_GATE);
    identity_lease::id(config).filter(|_| is_on)
}

/// Renews the lease until the server stops.
pub async fn announce(server: Arc<Server>) {
    let Some(id) = id(&server) else { return };
    let address = identity_lease::address(&server.config, server.port());
    while !server.health.is_stopping() {
        if let Err(error) = server.store.announce_peer(&id, address, LIFE).await {
            tracing::warn!(%error, "failed to renew the lease with the address for other API servers; retrying");
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Removes the lease when the server stops.
pub async fn leave(server: &Server) {
    let Some(id) = id(server) else { return };
    let left = tokio::time::timeout(LEAVE_MAX, server.store.withdraw_peer(&id)).await;
    if !matches!(left, Ok(Ok(_))) {
        tracing::debug!("the lease with the address for other API servers was not removed; it will expire");
    }
}
