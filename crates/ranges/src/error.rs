//! The errors of address ranges.

/// The reason why a cluster has no ranges.
#[derive(Debug, thiserror::Error)]
pub enum RangesError {
    /// A file could not be read or written.
    #[error("{what}: {source}")]
    Io {
        /// The failed operation with the path.
        what: String,
        /// The error of the operating system.
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
