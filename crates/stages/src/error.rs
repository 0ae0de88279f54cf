//! The error of an invalid Stage, or of a stage that cannot be evaluated for an object.
use std::fmt;

/// Describes why a stage is invalid or cannot be evaluated for an object. The message names the field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageError(String);

impl StageError {
    pub(crate) fn new(place: &str, why: impl fmt::Display) -> Self {
        Self(format!("{place}: {why}"))
    }

    /// Prefixes the message with the enclosing field or object.
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
