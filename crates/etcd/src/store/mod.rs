//! The store: one committer applies writes to the state, stores batches of them, and shows them to readers.

mod clock;
mod commit;
mod compaction;
mod durations;
mod face;
mod grow;
mod interest;
mod leases;
mod open;
mod retention;
mod shared;
mod snapshot;
#[cfg(test)]
mod tests;

pub use durations::Durations;
pub use face::Store;
pub use interest::{Interest, NOTHING};
pub use open::Options;
pub use retention::AutoCompaction;
pub use shared::{Shared, Sizes};
