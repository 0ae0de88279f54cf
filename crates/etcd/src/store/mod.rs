//! The store: one committer puts writes into the state, makes them durable together, and shows them to readers.

mod clock;
mod commit;
mod compaction;
mod face;
mod grow;
mod interest;
mod leases;
mod shared;
mod snapshot;
#[cfg(test)]
mod tests;

pub use compaction::AutoCompaction;
pub use face::{Options, Store};
pub use interest::{Interest, NOTHING};
pub use shared::{Shared, Sizes};
