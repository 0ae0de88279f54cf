//! Forms: what a record was made of (the tree of its JSON), lent to those who read the record while it is new. The writer
//! has it in hand anyway, and in-process readers of the change need not decode the bytes again.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A decoded form of a record. The store neither makes nor reads it.
pub type Form = Arc<dyn Any + Send + Sync>;

/// Makes the form of a written record when its revision is known.
pub struct MakeForm(Box<dyn FnOnce(u64) -> Form + Send + Sync>);

impl MakeForm {
    /// `make` is called with the revision, on the committer's thread: it must be short.
    pub fn new(make: impl FnOnce(u64) -> Form + Send + Sync + 'static) -> Self {
        Self(Box::new(make))
    }

    pub(crate) fn make(self, revision: u64) -> Form {
        (self.0)(revision)
    }
}

impl fmt::Debug for MakeForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MakeForm")
    }
}
