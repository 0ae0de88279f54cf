//! The controllers' queue: each key at most once, never handed to two workers at once, delayed and backed-off re-adds.
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kelson_meta::Backoff;
use kelson_metrics::{Histogram, IntCounter};
use kelson_tasks::contained;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The maximum delay of a key: a longer one would overflow the clock. A worker that gets a key early checks the time
/// itself.
const DELAY_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// The back-off of a key whose work panics. The cause is in the program, so the next attempt will most likely panic
/// too: the key is not returned before its pause is over, whatever is added meanwhile.
const PANIC_PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));

/// Why work on a key did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure<'a, E> {
    /// It returned this error.
    Error(&'a E),
    /// It panicked. The panic itself is in the log.
    Panic {
        /// Panics on this key with no other outcome in between, this one included.
        in_a_row: u32,
        /// The pause until the next attempt.
        pause: Duration,
    },
}

/// The state of a queue at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct QueueState {
    /// Keys that are ready.
    pub depth: usize,
    /// The sum of the times for which the keys in work have been processed.
    pub unfinished: Duration,
    /// The duration of the longest work in progress.
    pub longest: Duration,
}

/// The metrics of one queue.
#[derive(Debug)]
pub(crate) struct QueueMetrics {
    pub adds: IntCounter,
    pub retries: IntCounter,
    pub waited: Histogram,
    pub worked: Histogram,
}

/// A queue of keys for the workers of a controller, with the rules of client-go's work queue. A key that is added
/// several times before a worker takes it is processed once. A key that is added while a worker processes it is
/// processed again afterwards, never by two workers at a time. Failed keys return after growing delays. A clone is a
/// handle to the same queue.
pub struct WorkQueue<K> {
    shared: Arc<QueueShared<K>>,
}

impl<K> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

struct QueueShared<K> {
    state: Mutex<State<K>>,
    changed: Notify,
    backoff: Backoff,
    metrics: OnceLock<QueueMetrics>,
}

struct State<K> {
    ready: VecDeque<K>,
    /// Queued, or to be queued again when the worker is done; and since when.
    dirty: HashMap<K, Instant>,
    /// In work, and since when.
    processing: HashMap<K, Instant>,
    delayed: BTreeSet<(Instant, u64)>,
    delayed_keys: HashMap<u64, K>,
    delayed_at: HashMap<K, (Instant, u64)>,
    sequence: u64,
    failures: HashMap<K, u32>,
    /// Keys whose last work panicked: the number of consecutive panics, and until when they are held back.
    panics: HashMap<K, (u32, Instant)>,
    closed: bool,
}

impl<K: Clone + Eq + Hash> Default for WorkQueue<K> {
    fn default() -> Self {
        Self::new(Backoff::default())
    }
}

impl<K: Clone + Eq + Hash> WorkQueue<K> {
    /// An empty queue.
    pub fn new(backoff: Backoff) -> Self {
        let state = State {
            ready: VecDeque::new(),
            dirty: HashMap::new(),
            processing: HashMap::new(),
            delayed: BTreeSet::new(),
            delayed_keys: HashMap::new(),
            delayed_at: HashMap::new(),
            sequence: 0,
            failures: HashMap::new(),
            panics: HashMap::new(),
            closed: false,
        };
        Self {
            shared: Arc::new(QueueShared {
                state: Mutex::new(state),
                changed: Notify::new(),
                backoff,
                metrics: OnceLock::new(),
            }),
        }
    }

    /// Queues a key now; a pending delay for it is dropped. A key whose work panicked waits until its pause is over.
    pub fn add(&self, key: K) {
        let mut s = self.shared.state.lock();
        if let Some(until) = s.held_until(&key) {
            s.delay(key, until);
            drop(s);
            self.shared.changed.notify_one();
            return;
        }
        s.forget_delay(&key);
        let added = s.push(key);
        drop(s);
        self.count_adds(usize::from(added));
        self.shared.changed.notify_one();
    }

    fn count_adds(&self, n: usize) {
        if let Some(metrics) = self.shared.metrics.get() {
            metrics.adds.inc_by(n as u64);
        }
    }

    /// Queues a key after a delay; the earliest of several delays counts.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let at = Instant::now() + delay.min(DELAY_MAX);
        let mut s = self.shared.state.lock();
        let at = s.held_until(&key).map_or(at, |until| at.max(until));
        s.delay(key, at);
        drop(s);
        self.shared.changed.notify_one();
    }

    /// Notes a panic of the work on a key and queues it again after a pause that grows with panics in a row.
    fn retry_after_panic(&self, key: K) -> (u32, Duration) {
        let (in_a_row, pause) = {
            let mut s = self.shared.state.lock();
            let before = s.panics.get(&key).map_or(0, |(n, _)| *n);
            let pause = PANIC_PAUSES.delay(before);
            let in_a_row = before.saturating_add(1);
            s.panics.insert(key.clone(), (in_a_row, Instant::now() + pause));
            (in_a_row, pause)
        };
        if let Some(metrics) = self.shared.metrics.get() {
            metrics.retries.inc();
        }
        self.add_after(key, pause);
        (in_a_row, pause)
    }

    /// Queues a key after its back-off, which grows with every call until [`forget`](Self::forget).
    pub fn retry(&self, key: K) {
        if let Some(metrics) = self.shared.metrics.get() {
            metrics.retries.inc();
        }
        let failures = {
            let mut s = self.shared.state.lock();
            let n = s.failures.entry(key.clone()).or_insert(0);
            let failures = *n;
            *n = n.saturating_add(1);
            failures
        };
        self.add_after(key, self.shared.backoff.delay(failures));
    }

    /// Resets a key's back-off.
    pub fn forget(&self, key: &K) {
        let mut s = self.shared.state.lock();
        s.failures.remove(key);
        s.panics.remove(key);
    }

    /// Returns how many times a key was retried since it was last forgotten.
    pub fn failures(&self, key: &K) -> u32 {
        self.shared.state.lock().failures.get(key).copied().unwrap_or(0)
    }

    /// The next key to work on, held as processing until [`done`](Self::done); `None` once closed and empty.
    pub async fn next(&self) -> Option<K> {
        loop {
            let notified = self.shared.changed.notified();
            let wake = {
                let mut s = self.shared.state.lock();
                let now = Instant::now();
                self.count_adds(s.release_due(now));
                if let Some(key) = s.ready.pop_front() {
                    if let (Some(since), Some(metrics)) = (s.dirty.remove(&key), self.shared.metrics.get()) {
                        metrics.waited.observe((now - since).as_secs_f64());
                    }
                    s.processing.insert(key.clone(), now);
                    if !s.ready.is_empty() {
                        self.shared.changed.notify_one();
                    }
                    return Some(key);
                }
                if s.closed {
                    self.shared.changed.notify_one();
                    return None;
                }
                s.delayed.first().map(|&(at, _)| at)
            };
            match wake {
                Some(at) => tokio::select! { () = notified => {}, () = tokio::time::sleep_until(at) => {} },
                None => notified.await,
            }
        }
    }

    /// Ends work on a key; it is queued again if it was added meanwhile.
    pub fn done(&self, key: &K) {
        let mut s = self.shared.state.lock();
        if let (Some(since), Some(metrics)) = (s.processing.remove(key), self.shared.metrics.get()) {
            metrics.worked.observe(since.elapsed().as_secs_f64());
        }
        if s.dirty.contains_key(key) {
            match s.held_until(key) {
                Some(until) => {
                    s.dirty.remove(key);
                    s.delay(key.clone(), until);
                }
                None => s.ready.push_back(key.clone()),
            }
            drop(s);
            self.shared.changed.notify_one();
        }
    }

    /// Works on the keys one after the other until the queue is closed: a key whose `sync` fails goes to `failed` and is
    /// tried again after its back-off. A panic is a failure too: it is counted under `name`
    /// (`kelson_task_panics_total`), the key is held back for one second to five minutes, and the worker continues with the
    /// next key. Several workers may run on one queue.
    pub async fn work<F, R, E>(&self, name: &'static str, sync: F, failed: impl Fn(&K, &E))
    where
        K: std::fmt::Display + Send + Sync,
        F: Fn(K) -> R,
        R: Future<Output = Result<(), E>> + Send,
    {
        let errors = |key: &K, why: Failure<'_, E>| {
            if let Failure::Error(error) = why {
                failed(key, error);
            }
        };
        self.work_and_report(name, sync, errors).await;
    }

    /// As [`work`](Self::work), where `failed` hears of panics too.
    pub async fn work_and_report<F, R, E>(&self, name: &'static str, sync: F, failed: impl Fn(&K, Failure<'_, E>))
    where
        K: std::fmt::Display + Send + Sync,
        F: Fn(K) -> R,
        R: Future<Output = Result<(), E>> + Send,
    {
        while let Some(key) = self.next().await {
            // The guard gives the key back even when this worker is ended in the middle.
            let held = Processing { queue: self, key: &key };
            match contained(name, sync(key.clone())).await {
                Some(Ok(())) => self.forget(&key),
                Some(Err(error)) => {
                    self.shared.state.lock().panics.remove(&key);
                    failed(&key, Failure::Error(&error));
                    self.retry(key.clone());
                }
                None => {
                    let (in_a_row, pause) = self.retry_after_panic(key.clone());
                    tracing::error!(queue = name, %key, in_a_row, ?pause, "processing this key panicked; retrying");
                    failed(&key, Failure::Panic { in_a_row, pause });
                }
            }
            drop(held);
        }
    }

    /// Counts into `metrics` from now on, and gives how the queue can be looked at while it lasts; `None` where it counts
    /// somewhere already.
    pub(crate) fn measure(&self, metrics: QueueMetrics) -> Option<impl Fn() -> Option<QueueState> + use<K>> {
        self.shared.metrics.set(metrics).ok()?;
        let shared = Arc::downgrade(&self.shared);
        Some(move || {
            let shared = shared.upgrade()?;
            let state = shared.state.lock();
            let now = Instant::now();
            let since = || state.processing.values().map(|since| now - *since);
            Some(QueueState {
                depth: state.ready.len(),
                unfinished: since().sum(),
                longest: since().max().unwrap_or_default(),
            })
        })
    }

    /// Returns the number of ready keys.
    pub fn len(&self) -> usize {
        self.shared.state.lock().ready.len()
    }

    /// Whether none is ready.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends the queue: what is ready is still handed out, delays are dropped.
    pub fn close(&self) {
        self.shared.state.lock().closed = true;
        self.shared.changed.notify_waiters();
        self.shared.changed.notify_one();
    }
}

/// A key that is being worked on; dropping this lets the queue hand it out again.
struct Processing<'a, K: Clone + Eq + Hash> {
    queue: &'a WorkQueue<K>,
    key: &'a K,
}

impl<K: Clone + Eq + Hash> Drop for Processing<'_, K> {
    fn drop(&mut self) {
        self.queue.done(self.key);
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    /// Gives whether the key was not queued already.
    fn push(&mut self, key: K) -> bool {
        if self.closed || self.dirty.contains_key(&key) {
            return false;
        }
        self.dirty.insert(key.clone(), Instant::now());
        if !self.processing.contains_key(&key) {
            self.ready.push_back(key);
        }
        true
    }

    /// Returns until when a key is held back because its work panicked.
    fn held_until(&self, key: &K) -> Option<Instant> {
        if self.panics.is_empty() {
            return None;
        }
        self.panics.get(key).map(|(_, until)| *until).filter(|until| *until > Instant::now())
    }

    /// Queues a key at a time; the earliest of several times counts.
    fn delay(&mut self, key: K, at: Instant) {
        if self.delayed_at.get(&key).is_some_and(|&(t, _)| t <= at) {
            return;
        }
        self.forget_delay(&key);
        self.sequence += 1;
        let id = self.sequence;
        self.delayed.insert((at, id));
        self.delayed_keys.insert(id, key.clone());
        self.delayed_at.insert(key, (at, id));
    }

    fn forget_delay(&mut self, key: &K) {
        if let Some(at) = self.delayed_at.remove(key) {
            self.delayed.remove(&at);
            self.delayed_keys.remove(&at.1);
        }
    }

    /// Gives how many keys were queued.
    fn release_due(&mut self, now: Instant) -> usize {
        let mut added = 0;
        while let Some(&(at, id)) = self.delayed.first() {
            if at > now {
                break;
            }
            self.delayed.pop_first();
            if let Some(key) = self.delayed_keys.remove(&id) {
                self.delayed_at.remove(&key);
                added += usize::from(self.push(key));
            }
        }
        added
    }
}

#[cfg(test)]
mod tests;
