//! The bounded queue of ended spans.
use std::sync::Arc;

use kelson_meta::Clock;
use kelson_metrics::IntCounter;
use tokio::sync::mpsc::Sender;

use crate::otlp::SpanData;

/// Accepts ended spans while the queue has space.
pub(crate) struct Sink {
    pub queue: Sender<SpanData>,
    /// The number of spans that were dropped because the queue was full.
    pub dropped: IntCounter,
    /// The clock for the start times of spans.
    pub clock: Arc<dyn Clock>,
}

impl Sink {
    pub fn ended(&self, span: SpanData) {
        if self.queue.try_send(span).is_err() {
            self.dropped.inc();
        }
    }
}
