//! The raw connection behind a request that was answered with 101.
use hyper_util::rt::TokioIo;

/// The client's side of a connection that was just told 101.
pub async fn upgraded(upgrade: hyper::upgrade::OnUpgrade) -> Option<TokioIo<hyper::upgrade::Upgraded>> {
    match upgrade.await {
        Ok(io) => Some(TokioIo::new(io)),
        Err(error) => {
            tracing::debug!(%error, "the client's connection did not upgrade");
            None
        }
    }
}
