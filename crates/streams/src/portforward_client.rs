//! The client's side of port-forward, to a runtime's streaming server or a kubelet. `dial` performs the upgrade, and
//! the caller listens for connections. Upstream: `client-go/tools/portforward`.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use crate::error::StreamError;
use crate::exec::STREAM_TYPE;
use crate::mux::{Connection, ConnectionOptions, Stream};
use crate::portforward::{PORT, REQUEST_ID};
use crate::spdy::Headers;
use crate::ws::Role;
use crate::ws::tunnel::TunnelStream;

/// The size limit of an error message that this side reads, in bytes.
const FAILURE_BYTES_MAX: u64 = 64 * 1024;

/// A connection to a port-forward server.
#[derive(Debug)]
pub struct PortForwardClient {
    connection: Connection,
    next_request: AtomicU64,
}

/// One forwarded connection.
#[derive(Debug)]
pub struct ForwardedConnection {
    /// The data of the connection.
    pub data: Stream,
    error: Stream,
}

impl PortForwardClient {
    /// Starts SPDY over an upgraded connection.
    pub fn spdy<T>(io: T, options: &ConnectionOptions) -> Result<Self, StreamError>
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
    {
        Ok(Self { connection: Connection::spdy_client(io, options)?, next_request: AtomicU64::new(0) })
    }

    /// Starts SPDY in an upgraded WebSocket.
    pub fn tunnel<T>(io: T, options: &ConnectionOptions) -> Result<Self, StreamError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        Self::spdy(TunnelStream::new(io, Role::Client), options)
    }

    /// The connection that carries the streams.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Opens a connection to a port of the pod. If the connection fails, [`ForwardedConnection::failure`] returns the
    /// reason.
    pub async fn open(&self, port: u16) -> Result<ForwardedConnection, StreamError> {
        let request = self.next_request.fetch_add(1, Ordering::Relaxed).to_string();
        let headers = |kind| {
            Headers::new().with(STREAM_TYPE, kind).with(PORT, port.to_string()).with(REQUEST_ID, request.clone())
        };
        let error = self.connection.open_stream(headers("error")).await?;
        // This side writes nothing to the error stream.
        error.finish();
        let data = self.connection.open_stream(headers("data")).await?;
        Ok(ForwardedConnection { data, error })
    }
}

impl ForwardedConnection {
    /// Waits for the end of the error stream. Returns the server's error message, or `None` if there was no error.
    pub async fn failure(&mut self) -> Option<String> {
        let mut text = Vec::new();
        // A broken connection is reported by the data stream.
        let _ = (&mut self.error).take(FAILURE_BYTES_MAX).read_to_end(&mut text).await;
        (!text.is_empty()).then(|| String::from_utf8_lossy(&text).into_owned())
    }
}
