//! Keys with all versions since the last compaction, in memory: ranges as of any of these revisions, transactions, and
//! the changes in their order. It has no clock, no sockets and no disk.
//!
//! A write is applied immediately and becomes visible to readers when it is [shown](State::show), which happens after
//! the disk has stored it; [`State::undo`] reverts what was never shown.

mod check;
mod hash;
mod history;
mod index;
mod lease;
mod matcher;
mod range;
mod read;
mod state;
#[cfg(test)]
mod tests;
mod txn;
mod write;

pub use check::{check_delete, check_put, check_range, check_txn, is_read_only};
pub use hash::{Crc32c, stored_name, stored_value};
pub use history::{Revision, Version};
pub use lease::{LEASE_SECONDS_MAX, LEASE_SECONDS_MIN, Lease};
pub use matcher::Matcher;
pub use range::KeyRange;
pub use state::{Change, Limits, State};
