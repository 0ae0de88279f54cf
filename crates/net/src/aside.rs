//! Where the crate's blocking work is done for async callers.

use kelson_tasks::Lane;

use crate::error::NetError;

/// Files, netlink and programs of the host. The state's lock lets one in at a time; a few more may wait for it.
static NETWORK: Lane = Lane::new("network", 4);

/// Runs blocking work of the network. It must not wait for more of it.
pub(crate) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, NetError> + Send + 'static,
) -> Result<T, NetError> {
    match NETWORK.run(work).await {
        Ok(done) => done,
        Err(e) => Err(NetError::io("run network work")(std::io::Error::other(e))),
    }
}
