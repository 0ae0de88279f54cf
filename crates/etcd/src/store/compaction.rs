//! Automatic compaction.

use std::collections::VecDeque;
use std::time::Duration;

use super::face::Store;
use super::retention::AutoCompaction;
use crate::error::Error;

/// The interval of compaction by number of revisions.
const BY_REVISION_EVERY: Duration = Duration::from_secs(300);
/// The maximum interval of compaction by time.
const BY_TIME_EVERY_MAX: Duration = Duration::from_secs(3600);
/// Compaction by time runs in steps of this fraction of the retention.
const STEPS: u32 = 10;

/// Runs until the group ends.
pub(super) async fn run(store: Store, keep: AutoCompaction) {
    match keep {
        AutoCompaction::Revisions(revisions) => loop {
            tokio::time::sleep(BY_REVISION_EVERY).await;
            compact(&store, store.revision().saturating_sub(revisions)).await;
        },
        AutoCompaction::Time(time) => {
            let step = (time / STEPS).max(Duration::from_millis(100));
            let steps = usize::try_from(time.as_nanos().div_ceil(step.as_nanos())).unwrap_or(STEPS as usize);
            let every = time.min(BY_TIME_EVERY_MAX);
            let mut past = VecDeque::with_capacity(steps + 1);
            let mut since = Duration::ZERO;
            loop {
                past.push_back(store.revision());
                tokio::time::sleep(step).await;
                since += step;
                if past.len() > steps {
                    past.pop_front();
                }
                if past.len() == steps && since >= every {
                    since = Duration::ZERO;
                    compact(&store, past[0]).await;
                }
            }
        }
    }
}

async fn compact(store: &Store, main: i64) {
    match store.compact(main, false).await {
        Ok(_) => tracing::info!(revision = main, "automatic compaction finished"),
        // Nothing was written since.
        Err(Error::Compacted) => {}
        Err(error) => tracing::warn!(revision = main, %error, "automatic compaction failed"),
    }
}
