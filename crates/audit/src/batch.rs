//! The queue before an output in batch mode. It is limited by events and by bytes. One task empties it in batches, at
//! the rate of the throttle.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kelson_tasks::{OnPanic, Tasks};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::counters::{Counters, Part};
use crate::options::Batching;
use crate::output::{Entry, Output};

/// The maximum number of bytes in a queue. Events with objects are large, so a limit of the number alone is not
/// enough.
const BYTES_MAX: usize = 64 * 1024 * 1024;

/// Accepts events without waiting.
pub struct Queue {
    to: mpsc::Sender<Entry>,
    bytes: Arc<AtomicUsize>,
}

impl Queue {
    /// Starts a queue and the task that empties it. When `closing` is cancelled, the task writes the queued events and
    /// ends.
    pub fn start(
        output: Arc<dyn Output>,
        part: Part,
        batching: Batching,
        bytes_max: usize,
        counters: Arc<Counters>,
        tasks: &Tasks,
        closing: CancellationToken,
    ) -> Self {
        let (to, from) = mpsc::channel(batching.buffer_size.max(1));
        let bytes = Arc::new(AtomicUsize::new(0));
        let worker = Worker {
            from,
            bytes: Arc::clone(&bytes),
            throttle: batching.throttle.map(|(qps, burst)| Throttle::new(qps, burst)),
            batching,
            bytes_max,
            sending: Arc::new(Semaphore::new(output.width())),
            output,
            part,
            counters,
            tasks: tasks.clone(),
        };
        tasks.spawn_graceful("audit-batches", OnPanic::Contain, worker.run(closing));
        Self { to, bytes }
    }

    /// Adds an event. Returns whether the queue had space.
    pub fn push(&self, entry: Entry) -> bool {
        let size = entry.0.len();
        if self.bytes.fetch_add(size, Ordering::Relaxed).saturating_add(size) > BYTES_MAX {
            self.bytes.fetch_sub(size, Ordering::Relaxed);
            return false;
        }
        let sent = self.to.try_send(entry).is_ok();
        if !sent {
            self.bytes.fetch_sub(size, Ordering::Relaxed);
        }
        sent
    }
}

struct Worker {
    from: mpsc::Receiver<Entry>,
    bytes: Arc<AtomicUsize>,
    batching: Batching,
    throttle: Option<Throttle>,
    bytes_max: usize,
    sending: Arc<Semaphore>,
    output: Arc<dyn Output>,
    part: Part,
    counters: Arc<Counters>,
    tasks: Tasks,
}

impl Worker {
    async fn run(mut self, closing: CancellationToken) {
        while !closing.is_cancelled() {
            let Some(first) = closing.run_until_cancelled(self.from.recv()).await.flatten() else { break };
            let batch = self.collect(first, &closing).await;
            self.write(batch, Some(&closing)).await;
        }
        // Closes the queue, and writes the queued events without waiting for more.
        self.from.close();
        while let Some(first) = self.from.recv().await {
            let mut batch = vec![first];
            while batch.len() < self.batching.batch_max
                && let Ok(entry) = self.from.try_recv()
            {
                batch.push(entry);
            }
            self.write(batch, None).await;
        }
        // Each batch in progress holds a permit.
        let all = u32::try_from(self.output.width()).unwrap_or(1);
        let _ = self.sending.acquire_many(all).await;
    }

    /// Collects a batch until it is full or has waited long enough.
    async fn collect(&mut self, first: Entry, closing: &CancellationToken) -> Vec<Entry> {
        let mut batch = vec![first];
        let until = Instant::now() + self.batching.wait_max;
        while batch.len() < self.batching.batch_max {
            let next = tokio::select! {
                biased;
                next = self.from.recv() => next,
                () = tokio::time::sleep_until(until) => None,
                () = closing.cancelled() => None,
            };
            match next {
                Some(entry) => batch.push(entry),
                None => break,
            }
        }
        batch
    }

    /// Splits a batch by size and writes the parts, as permits and the throttle allow. The throttle does not delay
    /// shutdown.
    async fn write(&mut self, batch: Vec<Entry>, closing: Option<&CancellationToken>) {
        for part in split(batch, self.bytes_max) {
            if let (Some(throttle), Some(closing)) = (&mut self.throttle, closing) {
                closing.run_until_cancelled(throttle.turn()).await;
            }
            let Ok(place) = Arc::clone(&self.sending).acquire_owned().await else { return };
            let (events, bytes) = (part.len(), part.iter().map(|e| e.0.len()).sum());
            let write = self.output.write(part);
            let (waiting, counters, lost) = (Arc::clone(&self.bytes), Arc::clone(&self.counters), self.part);
            let sent = async move {
                if let Err(why) = write.await {
                    counters.lost(lost, events, &why);
                }
                waiting.fetch_sub(bytes, Ordering::Relaxed);
                drop(place);
            };
            if self.output.width() == 1 {
                sent.await;
            } else {
                self.tasks.spawn_graceful("audit-batch", OnPanic::Contain, sent);
            }
        }
    }
}

/// Splits a batch into parts of at most `bytes_max` bytes with at least one entry each.
fn split(batch: Vec<Entry>, bytes_max: usize) -> Vec<Vec<Entry>> {
    let (mut parts, mut part, mut bytes) = (Vec::new(), Vec::new(), 0usize);
    for entry in batch {
        let size = entry.0.len();
        if !part.is_empty() && bytes.saturating_add(size) > bytes_max {
            parts.push(std::mem::take(&mut part));
            bytes = 0;
        }
        bytes = bytes.saturating_add(size);
        part.push(entry);
    }
    if !part.is_empty() {
        parts.push(part);
    }
    parts
}

/// A rate limiter: an average number of batches per second, and a burst after a pause.
struct Throttle {
    every: Duration,
    burst: u32,
    /// The time at which all used tokens are restored.
    earned_at: Instant,
}

impl Throttle {
    fn new(qps: f32, burst: usize) -> Self {
        let every = Duration::try_from_secs_f32(1.0 / qps).unwrap_or(Duration::from_secs(1));
        Self { every, burst: u32::try_from(burst).unwrap_or(u32::MAX), earned_at: Instant::now() }
    }

    async fn turn(&mut self) {
        let now = Instant::now();
        self.earned_at = self.earned_at.max(now) + self.every;
        let saved = self.every.saturating_mul(self.burst);
        if let Some(at) = self.earned_at.checked_sub(saved) {
            tokio::time::sleep_until(at).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use bytes::Bytes;
    use kelson_transport::BoxFuture;
    use parking_lot::Mutex;

    /// Records the sizes and times of batches. Each write takes a second.
    #[derive(Default)]
    struct Slow {
        batches: Mutex<Vec<(usize, Instant)>>,
        width: usize,
    }

    #[derive(Clone)]
    struct Shared(Arc<Slow>);

    impl Output for Shared {
        fn name(&self) -> &'static str {
            "log"
        }
        fn entry(&self, event: &Event, item: &Bytes) -> Entry {
            crate::output::logged(crate::options::Format::Json, event, item)
        }
        fn write(&self, batch: Vec<Entry>) -> BoxFuture<Result<(), String>> {
            let slow = Arc::clone(&self.0);
            slow.batches.lock().push((batch.len(), Instant::now()));
            Box::pin(async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(())
            })
        }
        fn width(&self) -> usize {
            self.0.width
        }
    }

    fn entry(bytes: usize) -> Entry {
        Entry(vec![b'x'; bytes].into())
    }

    fn start(batching: Batching, width: usize) -> (Queue, Arc<Slow>, Tasks, CancellationToken) {
        let slow = Arc::new(Slow { width, ..Slow::default() });
        let (tasks, closing) = (Tasks::root("test"), CancellationToken::new());
        let output = Arc::new(Shared(Arc::clone(&slow)));
        let queue = Queue::start(output, Part::Log, batching, 1000, Arc::default(), &tasks, closing.clone());
        (queue, slow, tasks, closing)
    }

    const BATCHING: Batching =
        Batching { buffer_size: 10, batch_max: 4, wait_max: Duration::from_secs(30), throttle: None };

    #[tokio::test(start_paused = true)]
    async fn a_batch_goes_when_it_is_full_or_has_waited() {
        let (queue, slow, _tasks, _closing) = start(BATCHING, 1);
        let begun = Instant::now();
        assert!((0..6).all(|_| queue.push(entry(1))));
        tokio::time::sleep(Duration::from_secs(60)).await;
        let batches: Vec<_> = slow.batches.lock().iter().map(|(n, at)| (*n, (*at - begun).as_secs())).collect();
        assert_eq!(batches, [(4, 0), (2, 31)]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_finds_no_room_is_refused_and_bytes_count() {
        let (queue, _slow, _tasks, _closing) = start(BATCHING, 1);
        assert_eq!((0..20).filter(|_| queue.push(entry(1))).count(), 10, "the worker has not run yet");
        let (queue, ..) = start(Batching { buffer_size: 1000, ..BATCHING }, 1);
        assert_eq!((0..100).filter(|_| queue.push(entry(BYTES_MAX / 10))).count(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_writes_what_waits_and_waits_for_what_is_sent() {
        let (queue, slow, tasks, closing) = start(BATCHING, 2);
        assert!((0..9).all(|_| queue.push(entry(1))));
        tokio::time::sleep(Duration::from_millis(10)).await;
        closing.cancel();
        assert!(tasks.shutdown(Duration::from_secs(10)).await);
        assert_eq!(slow.batches.lock().iter().map(|(n, _)| n).sum::<usize>(), 9);
        assert!(!queue.push(entry(1)), "it is closed");
    }

    #[tokio::test(start_paused = true)]
    async fn the_throttle_lets_a_few_through_at_once() {
        let batching = Batching { batch_max: 1, throttle: Some((2.0, 3)), ..BATCHING };
        let (queue, slow, _tasks, _closing) = start(batching, 16);
        let begun = Instant::now();
        assert!((0..7).all(|_| queue.push(entry(1))));
        tokio::time::sleep(Duration::from_secs(60)).await;
        let at: Vec<_> = slow.batches.lock().iter().map(|(_, at)| (*at - begun).as_millis()).collect();
        assert_eq!(at, [0, 0, 0, 500, 1000, 1500, 2000]);
    }

    #[test]
    fn a_large_batch_is_written_in_parts() {
        let sizes = |parts: Vec<Vec<Entry>>| parts.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(split([400, 500, 200, 2000, 1].map(entry).into(), 1000)), [2, 1, 1, 1]);
    }
}
