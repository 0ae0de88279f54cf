//! A history of operations on registers, and the check that it is linearizable: that a single copy of the registers, which performs one
//! operation after the other, could have given these answers, with every acknowledged write and no rejected one.
//!
//! Each key is a register with compare and swap: a create expects it to be empty, an update and a delete expect a revision, and a
//! rejection contains what was found, so it is checked as a read. A general history needs a search. Here every write that happened has a
//! revision, which is its position in the order, so one pass suffices:
//! - The writes of a key are replayed by revision, and each must find what it expected. A write without an answer is inserted where a later
//!   observation can only have followed from it, since values are never written twice.
//! - An operation that began after the answer of another comes after it. So no read sees an older state than one that was answered
//!   before it began, none sees a write that began after the read was answered, and the revisions of writes (of all keys, since there is one
//!   committer) increase from each answered write to each later one.
//!
//! Watches are checked against the same writes: from its beginning to its last event, a watcher saw every write, in order, and nothing
//! else.
//!
//! | room | what is in it |
//! |---|---|
//! | `line` | the lines of a history |
//! | `check` | the check |

mod check;
mod line;

pub use check::{Checked, History, Registers};
pub use line::{Answer, Call, Line, Version};
