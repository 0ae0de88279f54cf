//! The data that the handles of a store, its committer and its cursors share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kelson_meta::Clock;
use parking_lot::RwLock;

use crate::at_rest::Writers;
use crate::error::StoreError;
use crate::event::FrameBudget;
use crate::expiry::Expiry;
use crate::health::HealthBoard;
use crate::locked::LockedResources;
use crate::queue::Queue;
use crate::recent::RecentRecords;
use crate::samples::Samples;
use crate::state::State;
use crate::stats::Counters;
use crate::waiting::RevisionWaiters;

/// The state that readers see, the queue to the committer, and what the committer reports.
pub(crate) struct Shared {
    pub state: RwLock<State>,
    pub queue: Queue,
    pub frames: Arc<FrameBudget>,
    pub waiters: RevisionWaiters,
    pub recent: RecentRecords,
    pub samples: Samples,
    pub expiry: Expiry,
    pub writers: Writers,
    pub locked: LockedResources,
    pub counters: Counters,
    pub health: HealthBoard,
    pub clock: Arc<dyn Clock>,
    pub identity: String,
    pub closed: AtomicBool,
}

impl Shared {
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The current time in seconds since the Unix epoch, or zero before it.
    pub fn now_s(&self) -> u64 {
        u64::try_from(self.clock.now().as_second()).unwrap_or(0)
    }

    /// Waits until the state has reached `revision`, and returns the revision that it has then.
    pub async fn wait_for_revision(&self, revision: u64) -> Result<u64, StoreError> {
        loop {
            let mut wait = {
                let state = self.state.read();
                if state.revision >= revision {
                    return Ok(state.revision);
                }
                self.waiters.add(revision)
            };
            // Closing wakes those that wait before it; those that come later see it here.
            if self.is_closed() {
                return Err(StoreError::Closed);
            }
            wait.woken().await;
        }
    }

    /// Rejects further writes and wakes all cursors.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.queue.close();
        self.expiry.first.notify_one();
        let state = self.state.read();
        for (_, slot) in state.slots() {
            slot.announce_to_all();
        }
        self.waiters.reached(u64::MAX);
    }
}
