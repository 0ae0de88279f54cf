//! The error type of the streaming transports. `status` converts errors to their form in Kubernetes.

use std::io;
use std::sync::Arc;

/// Why a streaming connection ended, or a stream could not be created.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StreamError {
    /// The peer broke the rules of the framing. Nothing more can be read from the connection.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// The peer exceeded a limit of this crate, which is named.
    #[error("limit exceeded: {0}")]
    Limit(&'static str),
    /// The transport below failed.
    #[error("connection failed: {0}")]
    Io(Arc<io::Error>),
    /// The peer disconnected before its streams ended.
    #[error("connection closed before the streams ended")]
    Aborted,
    /// The connection was closed by this side, or in order by the peer.
    #[error("connection closed")]
    Closed,
    /// No data was carried during the idle limit, only keep-alives.
    #[error("idle timeout")]
    Idle,
    /// The peer did not answer keep-alives in time.
    #[error("peer does not respond to keep-alives")]
    KeepAlive,
    /// The peer did not create the expected streams in time.
    #[error("timed out waiting for client to create streams")]
    StreamCreation,
    /// The peer did not answer the creation of a stream in time.
    #[error("timed out waiting for the reply to a new stream")]
    ReplyTimeout,
    /// The peer rejected or reset the stream.
    #[error("stream reset")]
    Reset,
}

impl From<io::Error> for StreamError {
    fn from(error: io::Error) -> Self {
        StreamError::Io(Arc::new(error))
    }
}

impl From<StreamError> for io::Error {
    fn from(error: StreamError) -> Self {
        let kind = match &error {
            StreamError::Protocol(_) | StreamError::Limit(_) => io::ErrorKind::InvalidData,
            StreamError::Io(inner) => inner.kind(),
            StreamError::Aborted => io::ErrorKind::ConnectionAborted,
            StreamError::Closed => io::ErrorKind::BrokenPipe,
            StreamError::Idle | StreamError::KeepAlive | StreamError::StreamCreation | StreamError::ReplyTimeout => {
                io::ErrorKind::TimedOut
            }
            StreamError::Reset => io::ErrorKind::ConnectionReset,
        };
        io::Error::new(kind, error)
    }
}
