//! The store of a Kelson cluster: the revisions, the watch log and the durability of every API object.
//!
//! The store holds bytes, not typed objects. A [`Record`] is an object's canonical JSON with its `resourceVersion` spliced in, the
//! revisions at which it was created and last changed, and the few values that selectors look at. One committer checks preconditions,
//! assigns consecutive revisions, appends each batch to an [`engine::Engine`] with one sync, and only then publishes it to readers and
//! watchers. The API server above decides what an object means: this crate knows no kinds, no defaulting, no admission, and no encoding
//! except the splice of one decimal number.
//!
//! Invariants:
//! - Only this crate assigns revisions. They never decrease, not even after a crash.
//! - A change is visible to readers and watchers only after the engine has taken it (for [`Durability::Synced`]: has synced it).
//! - A constant in [`limits`] bounds every queue, log and cache of this crate.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `key`, `meta`, `delta`, `text`, `body`, `record`, `event`, `error`, `limits`, `stats`, `at_rest`, `engine/` | values, bounds and errors; `at_rest` is the interface to encryption: memory holds plaintext, the disk need not; `engine/` has bytes on disk, each with a checksum, and knows no revisions. The length of its log is noted beside it, and some space is kept for deletions on a full disk |
//! | `samples`, `recent` | which records are kept as a difference from a similar record, and which are kept whole |
//! | `table`, `log`, `state`, `expiry` | memory |
//! | `loaded`, `saved`, `locked`, `room` | what an engine contained, snapshots, records that cannot be decrypted now, the size of records |
//! | `write`, `queue`, `change`, `remote` | writes, their queue, the changes of a batch, writes of a mirror |
//! | `shared`, `health` | the state that all parts share, and whether it works |
//! | `publish`, `unlock` | publication of changes, decryption when a key is available |
//! | `commit`, `cursor` | the one writer; a watch |
//! | `store`, `announcements`, `fork`, `mirror`, `inventory`, `open` | the interface, what servers on a shared storage announce, copies for tests, a store that mirrors etcd, moves to another storage, start |
//!
//! `Store::health` says whether writes are accepted, and `Store::failed` resolves when only a restart of the process can help.
//! A store can be a mirror (`mirror`): its data is elsewhere, changes arrive with revisions that others assigned, and writes go
//! through a `Remote`. `publish` shows both kinds of change. `Store::catch_up` makes sure that a read is not stale; without
//! other writers it does nothing.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod announcements;
mod at_rest;
mod body;
mod change;
mod commit;
mod cursor;
mod cut;
mod delta;
mod error;
mod event;
mod expiry;
mod fork;
mod health;
mod indexed;
mod inventory;
mod key;
mod loaded;
mod locked;
mod log;
mod lookup;
mod meta;
mod mirror;
mod open;
mod publish;
mod queue;
mod recent;
mod record;
mod remote;
mod room;
mod samples;
mod saved;
mod scope;
mod shared;
mod state;
mod stats;
mod store;
mod table;
mod text;
mod unlock;
mod waiting;
mod walk;
mod write;

pub mod engine;
pub mod limits;

pub use at_rest::{AtRest, Opened, SealError, Sealed, Writer};
pub use body::Body;
pub use cursor::Cursor;
pub use engine::format::{FORMAT as FORMAT_WRITTEN, FORMAT_UNCHECKED as FORMAT_OLDEST_READ};
pub use error::StoreError;
pub use event::{Event, EventKind, Frame};
pub use health::Health;
pub use inventory::{Floors, Inventory};
pub use key::{Key, Resource};
pub use meta::{FieldNames, Fields, Labels, RecordMeta, Uid};
pub use mirror::{Mirror, MirrorChange, MirrorValue};
pub use open::StoreOptions;
pub use queue::ExpectedWrite;
pub use record::Record;
pub use remote::{Answer, PortChange, Remote};
pub use saved::{Contents, verify};
pub use scope::WatchScope;
pub use state::ListView;
pub use stats::Stats;
pub use store::Store;
pub use write::{Action, Committed, Durability, Precondition, Write};
