//! Stores names and schema nodes once for all schemas: operators use the same pod templates in many definitions, and
//! the versions of a definition repeat most of it.
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use kelson_meta::Interner;

use super::node::{Child, Name, Node};

static NAMES: LazyLock<Mutex<Interner<str>>> = LazyLock::new(Mutex::default);
static NODES: LazyLock<Mutex<Interner<Node>>> = LazyLock::new(Mutex::default);

/// Locks a table. It stays consistent after a panic, because each change is complete.
fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the shared copy of a string.
pub(super) fn name(text: &str) -> Name {
    lock(&NAMES).share(text)
}

/// Returns the shared node that equals this one.
pub(super) fn node(node: Node) -> Child {
    Child(lock(&NODES).share(node))
}
