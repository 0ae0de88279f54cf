//! Where batches of events end.
use bytes::Bytes;
use kelson_transport::BoxFuture;

use crate::event::{Event, alone};
use crate::legacy;
use crate::options::Format;

/// An event as an output writes it.
#[derive(Debug, Clone)]
pub struct Entry(pub Bytes);

/// Writes events, in the order of the batch.
pub trait Output: Send + Sync + 'static {
    /// Its name in metrics: `log` or `webhook`.
    fn name(&self) -> &'static str;
    /// The form in which it takes an event; `item` is the event's JSON as an item of a list.
    fn entry(&self, event: &Event, item: &Bytes) -> Entry;
    /// Writes a batch; resolves when it is written, or given up with a reason. Where the caller goes away before that, the
    /// batch may or may not be written.
    fn write(&self, batch: Vec<Entry>) -> BoxFuture<Result<(), String>>;
    /// Batches that may be on their way at once.
    fn width(&self) -> usize {
        1
    }
    /// Writes what was kept back.
    fn flush(&self) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
}

/// The entry of a log.
pub fn logged(format: Format, event: &Event, item: &Bytes) -> Entry {
    Entry(match format {
        Format::Json => alone(item),
        Format::Legacy => legacy::line(event).into(),
    })
}
