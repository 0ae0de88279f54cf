//! Counts of running, started and panicked tasks by name, for metrics and for tests of a shutdown.
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;

/// Counts of all tasks of one name since the process started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskStats {
    /// The name of the tasks.
    pub name: &'static str,
    /// The number of running tasks.
    pub running: u64,
    /// The number of started tasks, including the running ones.
    pub started: u64,
    /// The number of tasks that panicked.
    pub panicked: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    running: AtomicU64,
    started: AtomicU64,
    panicked: AtomicU64,
}

/// Names are literals in the code, which limits the size of this map.
static NAMES: LazyLock<Mutex<BTreeMap<&'static str, Arc<Counters>>>> = LazyLock::new(Mutex::default);

/// Returns the counts of every name in the order of names.
pub fn stats() -> Vec<TaskStats> {
    let read = |c: &AtomicU64| c.load(Ordering::Relaxed);
    let of = |(name, c): (&&'static str, &Arc<Counters>)| TaskStats {
        name,
        running: read(&c.running),
        started: read(&c.started),
        panicked: read(&c.panicked),
    };
    NAMES.lock().iter().map(of).collect()
}

/// Counts one task as running until it is dropped. [`Watch::panicked`] records a panic.
pub(crate) struct Watch {
    name: &'static str,
    counters: Arc<Counters>,
}

impl Watch {
    pub(crate) fn start(name: &'static str) -> Self {
        let counters = Arc::clone(NAMES.lock().entry(name).or_default());
        counters.started.fetch_add(1, Ordering::Relaxed);
        counters.running.fetch_add(1, Ordering::Relaxed);
        Self { name, counters }
    }

    /// Counts and logs a panic. Returns its message.
    pub(crate) fn panicked(&self, payload: &(dyn Any + Send)) -> String {
        self.counters.panicked.fetch_add(1, Ordering::Relaxed);
        let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        let text = text.unwrap_or_else(|| "panic without a message".to_owned());
        tracing::error!(task = self.name, panic = text, "task panicked");
        text
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.counters.running.fetch_sub(1, Ordering::Relaxed);
    }
}
