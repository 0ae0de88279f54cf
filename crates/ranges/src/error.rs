//! What can go wrong with the ranges of a cluster.

/// Why a cluster has no ranges.
#[derive(Debug, thiserror::Error)]
pub enum RangesError {
    /// A file could not be read or written.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with the path.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The configured ranges are invalid, or no range is free. The message is for the operator.
    #[error("{0}")]
    Refused(String),
}

impl RangesError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
