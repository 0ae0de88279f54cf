//! What a component shows of its work queues, under the names that client-go's queues have.
use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use kelson_metrics::{HistogramVec, IntCounterVec, Registry, exponential_buckets};
use parking_lot::Mutex;

use crate::queue::{QueueMetrics, QueueState, WorkQueue};

type Look = Box<dyn Fn() -> Option<QueueState> + Send + Sync>;

/// The metrics of all work queues of a component.
#[derive(Clone)]
pub struct WorkQueueMetrics {
    adds: IntCounterVec,
    retries: IntCounterVec,
    waited: HistogramVec,
    worked: HistogramVec,
    queues: Arc<Mutex<Vec<(&'static str, Look)>>>,
}

impl WorkQueueMetrics {
    /// Registers them; a registry takes them once.
    pub fn new(registry: &Registry) -> Self {
        // 10 ns to 10 s, ten times each, as upstream's.
        let bounds = exponential_buckets(1e-8, 10.0, 10).unwrap_or_default();
        let counters = |name: &str, help: &str| registry.counters(name, help, &["name"]);
        let histograms = |name: &str, help: &str| registry.histograms(name, help, &["name"], &bounds);
        let queues: Arc<Mutex<Vec<(&'static str, Look)>>> = Arc::default();
        let shown = Arc::clone(&queues);
        registry.on_scrape(move |families| {
            let now = states(&shown.lock());
            let mut gauge = |name: &str, help: &str, value: fn(&QueueState) -> f64| {
                let mut family = families.gauge(name, help);
                for (queue, state) in &now {
                    family.sample(&[("name", queue)], value(state));
                }
            };
            gauge("workqueue_depth", "Number of queued keys.", |s| s.depth as f64);
            let help = "Seconds of unfinished work, summed over all keys in processing.";
            gauge("workqueue_unfinished_work_seconds", help, |s| s.unfinished.as_secs_f64());
            let help = "Seconds that the longest running processor has been running.";
            gauge("workqueue_longest_running_processor_seconds", help, |s| s.longest.as_secs_f64());
        });
        Self {
            adds: counters("workqueue_adds_total", "Added keys."),
            retries: counters("workqueue_retries_total", "Keys queued again after a failure."),
            waited: histograms("workqueue_queue_duration_seconds", "Time in seconds that keys wait in the queue."),
            worked: histograms("workqueue_work_duration_seconds", "Time in seconds to process a key."),
            queues,
        }
    }

    /// Shows a queue under a name; queues of one name are shown together. The first name of a queue counts.
    pub fn watch<K: Clone + Eq + Hash + Send + 'static>(&self, name: &'static str, queue: &WorkQueue<K>) {
        let metrics = QueueMetrics {
            adds: self.adds.with_label_values(&[name]),
            retries: self.retries.with_label_values(&[name]),
            waited: self.waited.with_label_values(&[name]),
            worked: self.worked.with_label_values(&[name]),
        };
        if let Some(look) = queue.measure(metrics) {
            self.queues.lock().push((name, Box::new(look)));
        }
    }
}

/// The states of queues by name.
fn states(queues: &[(&'static str, Look)]) -> BTreeMap<&'static str, QueueState> {
    let mut out: BTreeMap<&'static str, QueueState> = BTreeMap::new();
    for (name, look) in queues {
        let state = look().unwrap_or_default();
        let sum = out.entry(name).or_default();
        sum.depth += state.depth;
        sum.unfinished += state.unfinished;
        sum.longest = sum.longest.max(state.longest);
    }
    out
}

impl fmt::Debug for WorkQueueMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueueMetrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_is_counted_from_its_add_to_its_end() {
        let registry = Registry::new();
        let metrics = WorkQueueMetrics::new(&registry);
        let (queue, other) = (WorkQueue::default(), WorkQueue::default());
        metrics.watch("job", &queue);
        metrics.watch("job", &other);
        let line = |wanted: &str| {
            let text = registry.text();
            assert!(text.lines().any(|l| l == wanted), "{wanted} in\n{text}");
        };
        queue.add(1);
        queue.add(1);
        queue.add(2);
        other.add(3);
        line("workqueue_depth{name=\"job\"} 3");
        line("workqueue_adds_total{name=\"job\"} 3");
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(queue.next().await, Some(1));
        line("workqueue_queue_duration_seconds_sum{name=\"job\"} 5");
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(queue.next().await, Some(2));
        tokio::time::sleep(Duration::from_secs(1)).await;
        line("workqueue_unfinished_work_seconds{name=\"job\"} 4");
        line("workqueue_longest_running_processor_seconds{name=\"job\"} 3");
        queue.add(1);
        queue.done(&1);
        line("workqueue_work_duration_seconds_sum{name=\"job\"} 3");
        line("workqueue_depth{name=\"job\"} 2");
        queue.retry(2);
        line("workqueue_retries_total{name=\"job\"} 1");
        line("workqueue_adds_total{name=\"job\"} 4");
        drop(queue);
        line("workqueue_depth{name=\"job\"} 1");
    }
}
