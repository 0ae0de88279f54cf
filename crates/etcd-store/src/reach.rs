//! Waiting until the mirror shows a revision.

use std::convert::Infallible;
use std::time::Duration;

use kelson_store::StoreError;
use tokio::sync::Notify;

use crate::core::Core;

/// Time after which the storage is asked for its progress, and asked again.
const NUDGE_EVERY: Duration = Duration::from_millis(20);
/// Requests for progress without an effect after which a revision is written. Etcd answers the first one within milliseconds.
const NUDGES_MAX: u32 = 15;

/// Resolves when the mirror shows everything up to a revision.
///
/// # Errors
/// It does not within `max`, or the store is closed.
pub(crate) async fn reach(core: &Core, revision: u64, max: Duration) -> Result<(), StoreError> {
    let reached = async {
        tokio::select! {
            done = core.mirror.wait_for(revision) => done,
            never = ask(core, revision) => match never {},
        }
    };
    match tokio::time::timeout(max, reached).await {
        Ok(done) => done,
        Err(_) => Err(StoreError::Elsewhere("etcdserver: request timed out".to_owned())),
    }
}

/// Has the storage report its progress, for as long as it runs.
pub(crate) async fn ask(core: &Core, revision: u64) -> Infallible {
    loop {
        for _ in 0..NUDGES_MAX {
            tokio::time::sleep(NUDGE_EVERY).await;
            core.nudge.iter().for_each(Notify::notify_one);
        }
        if let Err(error) = core.marker.write(&core.connection, revision).await {
            tracing::debug!(%error, revision, "writing a revision to see the progress of etcd failed; retrying");
        }
    }
}
