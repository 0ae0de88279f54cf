//! Tasks and their owners. Every task of Kelson is started by this crate, so that each has a name, an end and a
//! reaction to a panic:
//!
//! - [`Tasks`] is a group: one token ends all its tasks, and the caller of its shutdown waits for them. Groups nest; a
//!   component uses a child of the process's group.
//! - [`Scoped`] is a task that belongs to a value (one direction of one connection) and ends when that value is
//!   dropped.
//! - [`contained`] runs a part of a task's work whose panic must not end the task: one key of a queue.
//! - [`Lane`] runs blocking work (files, mounts, hashing) on separate threads with limited concurrency.
//! - [`FairLane`] drives futures with long computations on such threads, with users in turn.
//!
//! A panic is reported with the task's name and counted in every case; what else it means is said by [`OnPanic`].
//! `tokio::spawn` and `spawn_blocking` are banned elsewhere by `clippy.toml`.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `stats`, `caught` | counters, and a panic that becomes a report |
//! | `lane`, `scoped`, `group` | lanes for blocking work, tasks of a value, groups |
//! | `fair` | a lane whose users take turns |
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod caught;
mod fair;
mod group;
mod lane;
mod scoped;
mod stats;

pub use fair::{FairError, FairLane, Turns};
pub use group::{OnPanic, Tasks};
pub use lane::{FILES, Lane, LaneError, block_inline_on_this_thread};
pub use scoped::{Scoped, contained, scoped};
pub use stats::{TaskStats, stats};
