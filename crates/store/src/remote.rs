//! Where the writes of a mirror go.

use std::pin::Pin;

use crate::error::StoreError;
use crate::write::{Committed, Write};

/// What a call of [`Remote`] comes to.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Where the truth is.
pub trait Remote: Send + Sync {
    /// Performs a write there, and answers when the mirror shows it.
    fn commit(&self, write: Write) -> Answer<'_, Committed>;
    /// Resolves when the mirror shows everything that was written there before the call.
    fn catch_up(&self) -> Answer<'_, ()>;
}
