//! Metrics of requests by level and schema, with upstream's names (`apiserver_flowcontrol_*`). Each schema holds its
//! counters, so that a request needs no lookup by label.
use kelson_metrics::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

const LABELS: [&str; 2] = ["priority_level", "flow_schema"];
const LENGTHS: [f64; 8] = [0.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0];
const SECONDS: [f64; 13] = [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];
const SEATS: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0];
const WATCHES: [f64; 6] = [0.0, 1.0, 10.0, 100.0, 1_000.0, 10_000.0];
const REASONS: [&str; 4] = ["queue-full", "concurrency-limit", "time-out", "cancelled"];

/// Metrics of requests by priority level and flow schema.
pub struct Counters {
    rejected: IntCounterVec,
    dispatched: IntCounterVec,
    waiting: IntGaugeVec,
    seats_waiting: IntGaugeVec,
    running: IntGaugeVec,
    seats_running: IntGaugeVec,
    queue_length: HistogramVec,
    wait: HistogramVec,
    execution: HistogramVec,
    watches: HistogramVec,
    seats: HistogramVec,
    held_up: IntCounterVec,
}

/// The metrics of one schema.
pub struct OfSchema {
    pub dispatched: IntCounter,
    pub queue_full: IntCounter,
    pub concurrency_limit: IntCounter,
    pub timed_out: IntCounter,
    pub cancelled: IntCounter,
    pub waiting: IntGauge,
    pub seats_waiting: IntGauge,
    pub running: IntGauge,
    pub seats_running: IntGauge,
    pub queue_length: Histogram,
    pub waited_and_ran: Histogram,
    pub waited_in_vain: Histogram,
    pub ran: Histogram,
    pub watch_ran: Histogram,
    pub watches: Histogram,
    pub seats: Histogram,
    /// The requests that were first in line and needed more seats than were free.
    pub held_up: IntCounter,
}

impl Counters {
    pub fn new(registry: &Registry) -> Self {
        let with = |label| [LABELS[0], LABELS[1], label];
        let name = |name: &str| format!("apiserver_flowcontrol_{name}");
        let counters = |n: &str, help: &str, labels: &[&str]| registry.counters(&name(n), help, labels);
        let gauges = |n: &str, help: &str| registry.gauges(&name(n), help, &LABELS);
        let histograms =
            |n: &str, help: &str, labels: &[&str], bounds: &[f64]| registry.histograms(&name(n), help, labels, bounds);
        Self {
            rejected: counters("rejected_requests_total", "Rejected requests by reason.", &with("reason")),
            dispatched: counters("dispatched_requests_total", "Dispatched requests.", &LABELS),
            waiting: gauges("current_inqueue_requests", "Number of queued requests."),
            seats_waiting: gauges("current_inqueue_seats", "Number of seats requested by queued requests."),
            running: gauges("current_executing_requests", "Number of executing requests."),
            seats_running: gauges("current_executing_seats", "Number of occupied seats."),
            queue_length: histograms(
                "request_queue_length_after_enqueue",
                "Queue length after a request was enqueued.",
                &LABELS,
                &LENGTHS,
            ),
            wait: histograms(
                "request_wait_duration_seconds",
                "Time in seconds in a queue.",
                &with("execute"),
                &SECONDS,
            ),
            execution: histograms(
                "request_execution_seconds",
                "Execution time of requests in seconds.",
                &with("type"),
                &SECONDS,
            ),
            watches: histograms(
                "watch_count_samples",
                "Watchers that receive the event of a write.",
                &LABELS,
                &WATCHES,
            ),
            seats: histograms("work_estimated_seats", "Estimated seats per request.", &LABELS, &SEATS),
            held_up: counters(
                "request_dispatch_no_accommodation_total",
                "Times that the next request required more seats than were free.",
                &LABELS,
            ),
        }
    }

    /// Returns the metrics of a schema and its level, whose names administrators choose.
    pub fn of(&self, level: &str, schema: &str) -> OfSchema {
        let both = [level, schema];
        let [queue_full, concurrency_limit, timed_out, cancelled] =
            REASONS.map(|reason| self.rejected.with_label_values(&[level, schema, reason]));
        let wait = |execute| self.wait.with_label_values(&[level, schema, execute]);
        let ran = |of| self.execution.with_label_values(&[level, schema, of]);
        OfSchema {
            dispatched: self.dispatched.with_label_values(&both),
            queue_full,
            concurrency_limit,
            timed_out,
            cancelled,
            waiting: self.waiting.with_label_values(&both),
            seats_waiting: self.seats_waiting.with_label_values(&both),
            running: self.running.with_label_values(&both),
            seats_running: self.seats_running.with_label_values(&both),
            queue_length: self.queue_length.with_label_values(&both),
            waited_and_ran: wait("true"),
            waited_in_vain: wait("false"),
            ran: ran("regular"),
            watch_ran: ran("watch"),
            watches: self.watches.with_label_values(&both),
            seats: self.seats.with_label_values(&both),
            held_up: self.held_up.with_label_values(&both),
        }
    }

    /// Removes the metrics of a deleted schema.
    pub fn forget(&self, level: &str, schema: &str) {
        let both = [level, schema];
        let with = |third| [level, schema, third];
        // Missing labels need no removal.
        for reason in REASONS {
            let _ = self.rejected.remove_label_values(&with(reason));
        }
        for execute in ["true", "false"] {
            let _ = self.wait.remove_label_values(&with(execute));
        }
        for of in ["regular", "watch"] {
            let _ = self.execution.remove_label_values(&with(of));
        }
        for counters in [&self.dispatched, &self.held_up] {
            let _ = counters.remove_label_values(&both);
        }
        for gauges in [&self.waiting, &self.seats_waiting, &self.running, &self.seats_running] {
            let _ = gauges.remove_label_values(&both);
        }
        for histograms in [&self.queue_length, &self.watches, &self.seats] {
            let _ = histograms.remove_label_values(&both);
        }
    }
}
