//! The raw connection of a request that was answered with 101.
use hyper_util::rt::TokioIo;

/// Waits for the client's connection after it was answered with 101; `None` if the upgrade failed.
pub async fn wait_for_upgrade(upgrade: hyper::upgrade::OnUpgrade) -> Option<TokioIo<hyper::upgrade::Upgraded>> {
    match upgrade.await {
        Ok(io) => Some(TokioIo::new(io)),
        Err(error) => {
            tracing::debug!(%error, "upgrading the client's connection failed");
            None
        }
    }
}
