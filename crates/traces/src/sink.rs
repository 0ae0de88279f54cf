//! Where spans go that have ended: a bounded queue.
use std::sync::Arc;

use kelson_meta::Clock;
use kelson_metrics::IntCounter;
use tokio::sync::mpsc::Sender;

use crate::otlp::SpanData;

/// Takes spans that have ended, as long as there is room for them.
pub(crate) struct Sink {
    pub queue: Sender<SpanData>,
    /// Spans that found no room.
    pub dropped: IntCounter,
    /// Tells when spans begin.
    pub clock: Arc<dyn Clock>,
}

impl Sink {
    pub fn ended(&self, span: SpanData) {
        if self.queue.try_send(span).is_err() {
            self.dropped.inc();
        }
    }
}
