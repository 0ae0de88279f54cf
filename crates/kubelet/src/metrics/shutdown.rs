//! When the node last went down by plan.
use jiff::Timestamp;
use kelson_metrics::{Gauge, Registry};

/// The times of the last graceful shutdown; cheap to clone.
#[derive(Clone, Debug)]
pub struct ShutdownMetrics {
    began: Gauge,
    ended: Gauge,
}

impl ShutdownMetrics {
    /// None yet; shown by `r`, once.
    pub fn new(r: &Registry) -> Self {
        let of =
            |what: &str, help: &str| r.float_gauge(&format!("kubelet_graceful_shutdown_{what}_time_seconds"), help);
        Self {
            began: of(
                "start",
                "When pods last began to end for a shutdown of the node, in seconds of the epoch; 0: never.",
            ),
            ended: of("end", "When they had ended, in seconds of the epoch; 0: they have not."),
        }
    }

    /// Shows these times in place of the ones before.
    pub fn show(&self, began: Option<Timestamp>, ended: Option<Timestamp>) {
        let seconds = |at: Option<Timestamp>| at.map_or(0.0, |t| t.as_millisecond() as f64 / 1e3);
        self.began.set(seconds(began));
        self.ended.set(seconds(ended));
    }
}
