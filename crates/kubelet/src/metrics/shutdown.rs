//! Metrics of graceful node shutdown.
use jiff::Timestamp;
use kelson_metrics::{Gauge, Registry};

/// Start and end of the last graceful shutdown. Clones share the gauges.
#[derive(Clone, Debug)]
pub struct ShutdownMetrics {
    began: Gauge,
    ended: Gauge,
}

impl ShutdownMetrics {
    /// Registers the metrics in `r`.
    pub fn new(r: &Registry) -> Self {
        let of =
            |what: &str, help: &str| r.float_gauge(&format!("kubelet_graceful_shutdown_{what}_time_seconds"), help);
        Self {
            began: of("start", "Start of the last graceful shutdown in seconds since the epoch; 0 if there was none."),
            ended: of(
                "end",
                "End of the last graceful shutdown in seconds since the epoch; 0 if it has not completed.",
            ),
        }
    }

    /// Sets the times.
    pub fn show(&self, began: Option<Timestamp>, ended: Option<Timestamp>) {
        let seconds = |at: Option<Timestamp>| at.map_or(0.0, |t| t.as_millisecond() as f64 / 1e3);
        self.began.set(seconds(began));
        self.ended.set(seconds(ended));
    }
}
