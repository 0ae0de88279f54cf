//! The one error type of the streaming transports. Leaves the Kubernetes form of an error to `status`.

use std::io;
use std::sync::Arc;

/// The reason why a streaming connection ended or a stream could not be created.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StreamError {
    /// The peer broke the framing; nothing more can be read from the connection.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// A named limit of this crate was exceeded by the peer.
    #[error("limit exceeded: {0}")]
    Limit(&'static str),
    /// The transport below failed.
    #[error("connection failed: {0}")]
    Io(Arc<io::Error>),
    /// The peer went away without ending its streams.
    #[error("connection closed before the streams ended")]
    Aborted,
    /// The connection was closed by this side or after a farewell of the peer.
    #[error("connection closed")]
    Closed,
    /// Nothing but keep-alives was carried for the whole idle limit.
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
