//! Why a call gave no answer.
use kelson_meta::Status;

/// A failed call. The text is what upstream writes behind `failed to call webhook: `.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No call could be made with this configuration; upstream says `could not get REST client` before it.
    #[error("{0}")]
    Configuration(String),
    /// The server was not reached, or did not answer whole.
    #[error("{0}")]
    Transport(String),
    /// The time of the call, or of the request it is made for, is over.
    #[error("{0}")]
    Timeout(String),
    /// The server answered with an error, as a `Status` of its own or as one made from the HTTP status.
    #[error("{0}")]
    Status(Box<Status>),
}

impl CallError {
    /// The status code that upstream counts the failure under: the server's own, or 503.
    pub fn code(&self) -> u16 {
        match self {
            Self::Configuration(_) => 500,
            Self::Transport(_) | Self::Timeout(_) => 503,
            Self::Status(status) => status.code,
        }
    }
}
