//! An output with its mode and its size limits.
use std::sync::Arc;

use bytes::Bytes;
use kelson_transport::BoxFuture;

use crate::batch::Queue;
use crate::counters::{Counters, Part};
use crate::event::{Event, Level};
use crate::options::{Mode, Truncation};
use crate::output::{Entry, Output};

/// The annotation of an event whose objects were left out (as in upstream).
const TRUNCATED: &str = "audit.k8s.io/truncated";

/// An output, as requests use it.
pub struct Backend {
    pub output: Arc<dyn Output>,
    pub part: Part,
    pub mode: Mode,
    pub truncation: Truncation,
    /// The queue in batch mode.
    pub queue: Option<Queue>,
    pub counters: Arc<Counters>,
}

/// The immediate result for an event.
pub enum AcceptResult {
    /// The event is queued, or lost without an effect on the request.
    Done,
    /// The event is written when the future resolves. The result is whether the request may continue.
    Wait(BoxFuture<bool>),
    /// The event is lost, and the request must be rejected.
    Refused,
}

impl Backend {
    /// Handles an event, whose JSON is `item`.
    pub fn take(&self, event: &Event, item: &Bytes) -> AcceptResult {
        let Some(entry) = self.entry(event, item) else {
            self.counters.lost(Part::Truncate, 1, "event is too large even after truncating");
            return self.failed();
        };
        if let Some(queue) = &self.queue {
            if !queue.push(entry) {
                self.counters.lost(Part::Buffered, 1, "audit buffer queue blocked");
            }
            return AcceptResult::Done;
        }
        let (write, counters, part) = (self.output.write(vec![entry]), Arc::clone(&self.counters), self.part);
        let strict = self.mode == Mode::BlockingStrict;
        AcceptResult::Wait(Box::pin(async move {
            let written = write.await;
            if let Err(why) = &written {
                counters.lost(part, 1, why);
            }
            written.is_ok() || !strict
        }))
    }

    fn failed(&self) -> AcceptResult {
        if self.mode == Mode::BlockingStrict { AcceptResult::Refused } else { AcceptResult::Done }
    }

    /// Returns the entry for an event, or `None` if the event is too large even without its objects.
    fn entry(&self, event: &Event, item: &Bytes) -> Option<Entry> {
        let max = self.truncation.event_bytes_max;
        if !self.truncation.enabled || item.len() <= max {
            return Some(self.output.entry(event, item));
        }
        if event.level < Level::Request {
            return None;
        }
        let mut short = event.clone();
        (short.request_object, short.response_object) = (None, None);
        short.annotations.insert(TRUNCATED.to_owned(), "true".to_owned());
        let item = short.json();
        (item.len() <= max).then(|| self.output.entry(&short, &item))
    }
}
