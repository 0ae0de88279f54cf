//! Runs the crate's blocking work for async callers.

use kelson_tasks::Lane;

use crate::error::NetError;

/// The blocking pool for files, netlink and programs of the host. The state's lock admits one at a time; a few more may
/// wait for it.
static NETWORK: Lane = Lane::new("network", 4);

/// Runs blocking work of the network. The work must not call this function.
pub(crate) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, NetError> + Send + 'static,
) -> Result<T, NetError> {
    match NETWORK.run(work).await {
        Ok(done) => done,
        Err(e) => Err(NetError::io("run network work")(std::io::Error::other(e))),
    }
}
