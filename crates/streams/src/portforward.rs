//! The server's side of port-forward: pairs of data and error streams over SPDY, the tunnel or channels. The caller
//! connects to the port of the pod. Upstream: `cri-streaming/pkg/streaming/portforward`.

use std::collections::HashMap;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::error::StreamError;
use crate::exec::STREAM_TYPE;
use crate::mux::{Connection, ConnectionOptions, IncomingStream, Stream};
use crate::negotiate::PortForwardProtocol;
use crate::proxy::relay;
use crate::ws::Role;
use crate::ws::tunnel::TunnelStream;
use crate::ws::wire::{ChannelDecode, ChannelEncode, ChannelFormat};

/// The header that names the port in the pod.
pub const PORT: &str = "port";
/// The header that pairs a data stream with an error stream.
pub const REQUEST_ID: &str = "requestID";

/// The time for which the client may still send on a channel after the pod has ended its side. Channels have no
/// half-close, so such a client sees the end of the stream only as the end of the connection. containerd waits for the
/// same time.
const CHANNEL_LINGER: Duration = Duration::from_secs(1);

/// One forwarded connection.
#[derive(Debug)]
pub struct PortForwardPair {
    /// The port in the pod.
    pub port: u16,
    /// The client's identifier of the connection.
    pub request_id: String,
    /// The connection's bytes.
    pub data: Stream,
    /// The stream for an error of the connection to the port. Clients end the whole port-forward when they receive one.
    pub error: Stream,
    /// Held by pairs of channels. The session ends when all of them are dropped.
    channel: Option<mpsc::Sender<()>>,
}

impl PortForwardPair {
    /// Copies bytes between the client and `io` until both sides have ended. A client of channels, which cannot end its
    /// side, gets one more second after the end of `io`. A connection that breaks on either side ends only this pair:
    /// nothing is written to the error stream, since clients end the whole port-forward then.
    pub async fn relay<T>(self, io: T)
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let Self { mut data, error, channel, .. } = self;
        let linger = channel.is_some().then_some(CHANNEL_LINGER);
        // A reset of a channel would only drop the data that the pod has sent.
        if relay(&mut data, io, linger).await.is_err() && channel.is_none() {
            data.reset();
        }
        error.finish();
    }

    /// Sends the client the reason why its port cannot be reached. Upstream's message is `error forwarding port PORT to
    /// pod POD, uid UID: REASON`.
    pub async fn fail(mut self, message: &str) {
        let _ = self.error.write_all(message.as_bytes()).await;
        let _ = self.error.shutdown().await;
        if self.channel.is_none() {
            self.data.reset();
        }
    }
}

struct Half {
    port: u16,
    data: Option<Stream>,
    error: Option<Stream>,
    deadline: Instant,
}

/// One client's port-forward with its many connections.
pub struct PortForwardSession {
    connection: Connection,
    halves: HashMap<String, Half>,
    /// The pairs of a legacy WebSocket, which exist from the start.
    fixed: Option<FixedPairs>,
}

/// The pairs of a legacy WebSocket.
struct FixedPairs {
    /// The pairs that have not been returned yet, in reverse order.
    waiting: Vec<PortForwardPair>,
    /// Closed when every pair has been dropped.
    left: mpsc::Receiver<()>,
}

impl PortForwardSession {
    /// Serves an upgraded connection.
    pub fn serve<T>(io: T, protocol: PortForwardProtocol, options: &ConnectionOptions) -> Result<Self, StreamError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut fixed = None;
        let connection = match protocol {
            PortForwardProtocol::Spdy => Connection::spdy_server(io, options)?,
            PortForwardProtocol::Tunnel => Connection::spdy_server(TunnelStream::new(io, Role::Server), options)?,
            PortForwardProtocol::Channels { ports, base64 } => {
                let (connection, pairs) = serve_channels(io, &ports, base64, options);
                fixed = Some(pairs);
                connection
            }
        };
        Ok(Self { connection, halves: HashMap::new(), fixed })
    }

    /// The connection that carries the streams.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Waits for the next forwarded connection. Returns `None` when the client has disconnected, or when all pairs of a
    /// legacy WebSocket have ended: that connection is closed then, since its client sees no other end. Streams that
    /// are not paired in time are ended.
    pub async fn next_pair(&mut self) -> Option<PortForwardPair> {
        if let Some(pairs) = &mut self.fixed {
            if let Some(pair) = pairs.waiting.pop() {
                return Some(pair);
            }
            tokio::select! {
                _ = self.connection.closed() => {}
                // Nothing is sent on this channel. The receiver returns when the last sender is dropped.
                _ = pairs.left.recv() => self.connection.close().await,
            }
            return None;
        }
        loop {
            let deadline = self.halves.values().map(|half| half.deadline).min();
            let expired = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                incoming = self.connection.next_stream() => {
                    if let Some(pair) = self.take(incoming?) {
                        return Some(pair);
                    }
                }
                () = expired => self.expire().await,
            }
        }
    }

    async fn expire(&mut self) {
        let now = Instant::now();
        let late: Vec<_> = self.halves.extract_if(|_, half| half.deadline <= now).collect();
        for (request_id, half) in late {
            tracing::debug!(request_id, "timed out waiting for streams");
            if let Some(mut error) = half.error {
                let message = format!("(request={request_id}) timed out waiting for streams");
                // The message fits into the empty send buffer, so this does not wait for the peer.
                let _ = error.write_all(message.as_bytes()).await;
            }
            if let Some(data) = half.data {
                data.reset();
            }
        }
    }

    fn take(&mut self, incoming: IncomingStream) -> Option<PortForwardPair> {
        let headers = incoming.headers();
        let kind = headers.get(STREAM_TYPE).unwrap_or_default();
        let port = headers.get(PORT).and_then(|port| port.parse::<u16>().ok()).filter(|port| *port > 0);
        let (Some(port), true) = (port, matches!(kind, "data" | "error")) else {
            tracing::debug!(?headers, "stream without a valid port and type");
            incoming.refuse();
            return None;
        };
        // Old clients without request IDs create the error stream first and the data stream next.
        let request_id = match headers.get(REQUEST_ID) {
            Some(request_id) => request_id.to_owned(),
            None if kind == "error" => incoming.id().to_string(),
            None => incoming.id().saturating_sub(2).to_string(),
        };
        let deadline = Instant::now() + self.connection.options().stream_creation;
        let half = self.halves.entry(request_id.clone()).or_insert(Half { port, data: None, error: None, deadline });
        let place = if kind == "data" { &mut half.data } else { &mut half.error };
        if place.is_some() {
            tracing::debug!(request_id, kind, "stream already assigned");
            incoming.refuse();
            return None;
        }
        *place = Some(incoming.accept());
        if half.data.is_none() || half.error.is_none() {
            return None;
        }
        let half = self.halves.remove(&request_id)?;
        Some(PortForwardPair { port: half.port, request_id, data: half.data?, error: half.error?, channel: None })
    }
}

fn serve_channels<T>(io: T, ports: &[u16], base64: bool, options: &ConnectionOptions) -> (Connection, FixedPairs)
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let format = ChannelFormat { base64, close_signal: false };
    let decode = ChannelDecode::new(Role::Server, format);
    let encode = ChannelEncode::new(Role::Server, format);
    // `negotiate` allows at most 64 ports.
    let channels = u8::try_from(ports.len() * 2).unwrap_or(u8::MAX - 1);
    let (connection, streams) = Connection::channels(io, channels, decode, encode, options);
    let mut streams = streams.into_iter();
    let mut waiting = Vec::new();
    let (held, left) = mpsc::channel(1);
    for (at, port) in ports.iter().enumerate() {
        let (Some(data), Some(error)) = (streams.next(), streams.next()) else { break };
        // Each channel begins with its port, little-endian.
        data.preload(&port.to_le_bytes());
        error.preload(&port.to_le_bytes());
        let channel = Some(held.clone());
        waiting.push(PortForwardPair { port: *port, request_id: at.to_string(), data, error, channel });
    }
    waiting.reverse();
    (connection, FixedPairs { waiting, left })
}
