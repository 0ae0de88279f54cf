//! Whether writes are taken: told by the committer, read by the checks of whoever serves the store.

use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::limits::BATCH_TIME_MAX_S;

/// What the store says of itself at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Why the committer has ended, if it has: no write can succeed before the process is started anew.
    pub ended: Option<String>,
    /// The failed sync after which nothing is written until the store is opened anew.
    pub halted: Option<String>,
    /// The last fault of the disk, gone with the next write that succeeds.
    pub disk_fault: Option<String>,
    /// A resource that cannot be decrypted while its key service is not available, and why.
    pub locked: Option<String>,
    /// Seconds that the committer has spent on the batch it holds; 0 when it holds none.
    pub busy_s: u64,
    /// Seconds since a batch was last answered; `None` before the first.
    pub answered_s: Option<u64>,
}

impl Health {
    /// Why writes are not taken now; `None` when they are. For readiness.
    #[must_use]
    pub fn not_ready(&self) -> Option<String> {
        let stuck = || self.is_stuck().then(|| format!("the disk has not responded for {} seconds", self.busy_s));
        self.not_alive().or_else(|| self.disk_fault.clone()).or_else(|| self.locked.clone()).or_else(stuck)
    }

    /// Why only a restart can help; `None` while time may. A full or slow disk is not among the reasons. For liveness.
    #[must_use]
    pub fn not_alive(&self) -> Option<String> {
        self.ended.clone().or_else(|| self.halted.clone())
    }

    fn is_stuck(&self) -> bool {
        self.busy_s >= BATCH_TIME_MAX_S
    }
}

#[derive(Default)]
struct Reported {
    halted: Option<String>,
    disk_fault: Option<String>,
    busy_since: Option<Instant>,
    answered_at: Option<Instant>,
}

/// Where the committer says how it fares.
#[derive(Default)]
pub(crate) struct HealthBoard {
    told: Mutex<Reported>,
    ended: watch::Sender<Option<String>>,
}

impl HealthBoard {
    /// A batch is begun.
    pub fn begun(&self) {
        self.told.lock().busy_since = Some(Instant::now());
    }
    /// The batch was answered, one way or the other.
    pub fn answered(&self) {
        let mut told = self.told.lock();
        told.busy_since = None;
        told.answered_at = Some(Instant::now());
    }
    /// The disk took a write, or did not.
    pub fn disk(&self, fault: Option<String>) {
        self.told.lock().disk_fault = fault;
    }
    /// Nothing is written any more, for this reason.
    pub fn halted(&self, why: &str) {
        self.told.lock().halted = Some(why.to_owned());
    }
    /// The committer is no more.
    pub fn ended(&self, why: &str) {
        self.ended.send_replace(Some(why.to_owned()));
    }
    pub fn subscribe(&self) -> watch::Receiver<Option<String>> {
        self.ended.subscribe()
    }
    pub fn read(&self) -> Health {
        let told = self.told.lock();
        Health {
            ended: self.ended.borrow().clone(),
            halted: told.halted.clone(),
            disk_fault: told.disk_fault.clone(),
            locked: None,
            busy_s: told.busy_since.map_or(0, |since| since.elapsed().as_secs()),
            answered_s: told.answered_at.map(|at| at.elapsed().as_secs()),
        }
    }
}
