//! The interface of outputs for events.
use bytes::Bytes;
use kelson_transport::BoxFuture;

use crate::event::{Event, alone};
use crate::legacy;
use crate::options::Format;

/// An event in the format of an output.
#[derive(Debug, Clone)]
pub struct Entry(pub Bytes);

/// Writes events in the order of the batch.
pub trait Output: Send + Sync + 'static {
    /// Returns the name in metrics: `log` or `webhook`.
    fn name(&self) -> &'static str;
    /// Converts an event to the format of the output. `item` is the event's JSON as an item of a list.
    fn entry(&self, event: &Event, item: &Bytes) -> Entry;
    /// Writes a batch. Resolves when the batch is written, or has failed with a reason. If the caller drops the
    /// future, the batch may or may not be written.
    fn write(&self, batch: Vec<Entry>) -> BoxFuture<Result<(), String>>;
    /// Returns the maximum number of concurrent batches.
    fn width(&self) -> usize {
        1
    }
    /// Writes buffered events.
    fn flush(&self) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
}

/// Returns the entry for a log.
pub fn logged(format: Format, event: &Event, item: &Bytes) -> Entry {
    Entry(match format {
        Format::Json => alone(item),
        Format::Legacy => legacy::line(event).into(),
    })
}
