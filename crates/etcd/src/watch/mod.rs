//! Watches: each stream reads the shared order of changes by a cursor of its own, as fast as its client takes them, and is woken
//! by changes of its keys alone. Nothing is
//! queued for a slow client; one that stays behind a compaction is told so and cancelled.

mod stream;
#[cfg(test)]
mod tests;
mod watchers;

pub use stream::{WatchOptions, watch};
