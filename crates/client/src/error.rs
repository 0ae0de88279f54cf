//! Errors of requests, and whether a retry may succeed.
use kelson_meta::{Reason, Status};

use crate::TransportError;

/// Cause of a response that is no `Status` (`CauseTypeUnexpectedServerResponse`).
pub(crate) const UNEXPECTED_RESPONSE: &str = "UnexpectedServerResponse";

/// A failed request.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server responded with a `Status`.
    #[error("{0}")]
    Status(Box<Status>),
    /// There was no response. Whether the request was executed is unknown.
    #[error("{0}")]
    Transport(#[from] TransportError),
    /// The response cannot be decoded, which is a bug in the client or the server.
    #[error("cannot decode the server's response: {0}")]
    Decode(String),
    /// A request that could not be built.
    #[error("cannot build the request: {0}")]
    Request(String),
}

impl ClientError {
    /// Returns the server's `Status`, if there is one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Status(s) => Some(s),
            _ => None,
        }
    }
    /// Whether the server's `Status` has this reason.
    pub fn is(&self, reason: Reason) -> bool {
        self.status().is_some_and(|s| s.reason == reason)
    }
    /// Whether the object does not exist (404).
    pub fn is_not_found(&self) -> bool {
        self.is(Reason::NotFound)
    }
    /// Whether the server does not serve the path: a 404 for a kind, group or version instead of an object.
    pub fn is_unserved(&self) -> bool {
        let names_none = |s: &Status| s.details.as_ref().is_some_and(|d| d.name.is_empty());
        self.status().is_some_and(|s| s.code == 404 && (s.reason != Reason::NotFound || names_none(s)))
    }
    /// Whether the response was no `Status`: a proxy's page, or the page of a server that does not serve the path.
    pub fn is_unexpected(&self) -> bool {
        let details = self.status().and_then(|s| s.details.as_ref());
        details.is_some_and(|d| d.causes.iter().any(|cause| cause.reason == UNEXPECTED_RESPONSE))
    }
    /// Whether an update or patch failed with a conflict (409).
    pub fn is_conflict(&self) -> bool {
        self.is(Reason::Conflict)
    }
    /// Whether a create failed because the object exists (409).
    pub fn is_already_exists(&self) -> bool {
        self.is(Reason::AlreadyExists)
    }
    /// Whether the resourceVersion has been compacted (410), so that the client must list again.
    pub fn is_expired(&self) -> bool {
        self.status().is_some_and(|s| s.code == 410)
    }
    /// Whether a create failed because its namespace is being deleted.
    pub fn is_namespace_terminating(&self) -> bool {
        const CAUSE: &str = "NamespaceTerminating";
        let details = self.status().filter(|s| s.reason == Reason::Forbidden).and_then(|s| s.details.as_ref());
        details.is_some_and(|d| d.causes.iter().any(|c| c.reason == CAUSE))
    }
    /// Whether a retry of the same request may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Status(s) => matches!(s.code, 429 | 500 | 502..=504),
            Self::Transport(_) => true,
            Self::Decode(_) | Self::Request(_) => false,
        }
    }
}
