//! The errors of calls to webhooks.
use kelson_meta::Status;

/// A failed call to a webhook. The message is what upstream writes after `failed to call webhook: `.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The configuration of the webhook is invalid. Upstream writes `could not get REST client` before the message.
    #[error("{0}")]
    Configuration(String),
    /// The connection to the server failed, or its response was incomplete.
    #[error("{0}")]
    Transport(String),
    /// The timeout of the call, or the deadline of the request that caused it, has passed.
    #[error("{0}")]
    Timeout(String),
    /// The server answered with an error: its own `Status`, or one made from the HTTP status.
    #[error("{0}")]
    Status(Box<Status>),
}

impl CallError {
    /// Returns the status code under which upstream counts the failure: the server's code, or 503.
    pub fn code(&self) -> u16 {
        match self {
            Self::Configuration(_) => 500,
            Self::Transport(_) | Self::Timeout(_) => 503,
            Self::Status(status) => status.code,
        }
    }
}
