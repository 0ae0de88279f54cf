//! Watches: each stream reads the shared order of changes with its own cursor, as fast as its client reads them, and is
//! woken only by changes of its keys. Nothing is queued for a slow client; one that is behind a compaction is cancelled
//! with an error.

mod stream;
#[cfg(test)]
mod tests;
mod watchers;

pub use stream::{WatchOptions, watch};
