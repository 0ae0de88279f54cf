//! What can go wrong with a request, and whether trying again may help.
use kelson_meta::{Reason, Status};

use crate::TransportError;

/// A failed request.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server answered with a `Status`.
    #[error("{0}")]
    Status(Box<Status>),
    /// No answer came; whether the request was carried out is unknown.
    #[error("{0}")]
    Transport(#[from] TransportError),
    /// An answer nobody can read; a fault of one side's code.
    #[error("cannot decode the server's response: {0}")]
    Decode(String),
    /// A request that could not be built.
    #[error("cannot build the request: {0}")]
    Request(String),
}

impl ClientError {
    /// The server's `Status`, where there is one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Status(s) => Some(s),
            _ => None,
        }
    }
    /// Whether the server gave this reason.
    pub fn is(&self, reason: Reason) -> bool {
        self.status().is_some_and(|s| s.reason == reason)
    }
    /// Whether there is no such object (404).
    pub fn is_not_found(&self) -> bool {
        self.is(Reason::NotFound)
    }
    /// Whether the server serves nothing at the path: a 404 of no object, as of a kind, group or version that is not
    /// (or no longer) there.
    pub fn is_unserved(&self) -> bool {
        let names_none = |s: &Status| s.details.as_ref().is_some_and(|d| d.name.is_empty());
        self.status().is_some_and(|s| s.code == 404 && (s.reason != Reason::NotFound || names_none(s)))
    }
    /// 409 on an update or patch.
    pub fn is_conflict(&self) -> bool {
        self.is(Reason::Conflict)
    }
    /// 409 on a create.
    pub fn is_already_exists(&self) -> bool {
        self.is(Reason::AlreadyExists)
    }
    /// 410: the position is gone, list again.
    pub fn is_expired(&self) -> bool {
        self.status().is_some_and(|s| s.code == 410)
    }
    /// A create that was refused because its namespace is being deleted: the object is no longer wanted.
    pub fn is_namespace_terminating(&self) -> bool {
        const CAUSE: &str = "NamespaceTerminating";
        let details = self.status().filter(|s| s.reason == Reason::Forbidden).and_then(|s| s.details.as_ref());
        details.is_some_and(|d| d.causes.iter().any(|c| c.reason == CAUSE))
    }
    /// Whether the same request may succeed later without a change.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Status(s) => matches!(s.code, 429 | 500 | 502..=504),
            Self::Transport(_) => true,
            Self::Decode(_) | Self::Request(_) => false,
        }
    }
}
