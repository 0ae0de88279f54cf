//! The store's health: whether it accepts writes. The committer reports it, and the health checks of the server read it.

use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::limits::BATCH_TIME_MAX_S;

/// The store's health at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Why the committer has ended, if it has. No write can succeed before the process is restarted.
    pub ended: Option<String>,
    /// The failed sync, if there was one. Nothing is written until the store is opened again.
    pub halted: Option<String>,
    /// The last error of the disk. It is cleared by the next write that succeeds.
    pub disk_fault: Option<String>,
    /// A resource that cannot be decrypted while its key service is not available, and why.
    pub locked: Option<String>,
    /// Seconds that the committer has spent on the batch it holds; 0 when it holds none.
    pub busy_s: u64,
    /// The time since a batch was last answered, in seconds; `None` before the first.
    pub answered_s: Option<u64>,
}

impl Health {
    /// Why the store accepts no writes now, or `None` if it does. For readiness.
    #[must_use]
    pub fn not_ready(&self) -> Option<String> {
        let stuck = || self.is_stuck().then(|| format!("the disk has not responded for {} seconds", self.busy_s));
        self.not_alive().or_else(|| self.disk_fault.clone()).or_else(|| self.locked.clone()).or_else(stuck)
    }

    /// Why only a restart can help, or `None`. A full or slow disk is not a reason, since it may recover. For liveness.
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

/// The health as the committer reports it.
#[derive(Default)]
pub(crate) struct HealthBoard {
    reported: Mutex<Reported>,
    ended: watch::Sender<Option<String>>,
}

impl HealthBoard {
    /// The committer began a batch.
    pub fn begun(&self) {
        self.reported.lock().busy_since = Some(Instant::now());
    }
    /// The committer answered the batch, with success or an error.
    pub fn answered(&self) {
        let mut reported = self.reported.lock();
        reported.busy_since = None;
        reported.answered_at = Some(Instant::now());
    }
    /// The disk took a write (`None`) or failed.
    pub fn disk(&self, fault: Option<String>) {
        self.reported.lock().disk_fault = fault;
    }
    /// Nothing is written any more, for this reason.
    pub fn halted(&self, why: &str) {
        self.reported.lock().halted = Some(why.to_owned());
    }
    /// The committer has ended.
    pub fn ended(&self, why: &str) {
        self.ended.send_replace(Some(why.to_owned()));
    }
    pub fn subscribe(&self) -> watch::Receiver<Option<String>> {
        self.ended.subscribe()
    }
    pub fn read(&self) -> Health {
        let reported = self.reported.lock();
        Health {
            ended: self.ended.borrow().clone(),
            halted: reported.halted.clone(),
            disk_fault: reported.disk_fault.clone(),
            locked: None,
            busy_s: reported.busy_since.map_or(0, |since| since.elapsed().as_secs()),
            answered_s: reported.answered_at.map(|at| at.elapsed().as_secs()),
        }
    }
}
