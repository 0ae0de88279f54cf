//! What can be wrong with a Stage, or with an object that one is asked of.
use std::fmt;

/// Why a stage cannot be used, or cannot be played on an object: a sentence that names the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageError(String);

impl StageError {
    pub(crate) fn new(place: &str, why: impl fmt::Display) -> Self {
        Self(format!("{place}: {why}"))
    }

    /// The same, within something larger.
    pub(crate) fn within(self, place: impl fmt::Display) -> Self {
        Self(format!("{place}.{}", self.0))
    }
}

impl fmt::Display for StageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StageError {}
