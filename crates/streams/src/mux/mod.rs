//! Multiplexes many streams over one connection, for either framing: buffers, half-close, resets, replies, limits,
//! keep-alive. The codecs of `spdy` and `ws` handle the bytes on the wire, and `exec` and `portforward` give the
//! streams their purpose.
//!
//! Back-pressure: a stream holds at most [`STREAM_RECEIVE_BYTES_MAX`] unread bytes, and all streams of a connection
//! together at most [`CONNECTION_RECEIVE_BYTES_MAX`]. Beyond either limit the connection is not read until the full
//! stream is read or dropped. Neither spdystream nor the WebSocket channels have flow control windows that a peer
//! obeys, so this is the only back-pressure, and it loses no data.

mod connection;
mod driver;
mod ending;
mod state;
mod stream;
mod table;

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kelson_tasks::Tasks;

pub use connection::{Connection, IncomingStream};
pub use stream::Stream;

use crate::error::StreamError;
use crate::spdy::Headers;

/// The unread bytes of one stream at which the connection is read no further.
pub const STREAM_RECEIVE_BYTES_MAX: usize = 256 * 1024;
/// The unsent bytes of one stream at which its writer waits.
pub const STREAM_SEND_BYTES_MAX: usize = 256 * 1024;
/// The unread bytes of all streams of one connection at which it is read no further. The limit keeps thousands of
/// streams from filling the machine's memory.
pub const CONNECTION_RECEIVE_BYTES_MAX: usize = 8 << 20;
/// The unsent bytes of all streams of one connection at which their writers wait.
pub const CONNECTION_SEND_BYTES_MAX: usize = 8 << 20;
/// The limit of open streams of one connection. Further streams are rejected one by one.
pub const STREAMS_MAX: usize = 4_096;
/// The limit of queued control frames. A peer that causes more of them and does not read is disconnected.
pub const CONTROL_QUEUE_MAX: usize = 2 * STREAMS_MAX;
/// The time for which the peer's data is read and discarded after this side has ended the connection, because closing a
/// socket with unread input destroys output that is not delivered yet.
pub const LINGER: Duration = Duration::from_secs(5);
/// The longest payload of a data frame that this side sends. With its header it fills exactly four TLS records.
const DATA_FRAME_BYTES_MAX: usize = 4 * 16 * 1024 - 16;

/// The limits and timeouts of a connection.
#[derive(Debug, Clone)]
pub struct ConnectionOptions {
    /// The interval of pings. With `None` no pings are sent. Pings never count as activity.
    pub keep_alive: Option<Duration>,
    /// The longest time that the peer may stay silent, with pings unanswered, before the connection counts as lost. It
    /// is off by default, since a healthy peer whose reader is blocked by back-pressure answers nothing.
    pub keep_alive_timeout: Option<Duration>,
    /// The longest time without traffic on any stream before the connection is ended. With `None` it is never ended.
    pub idle_limit: Option<Duration>,
    /// The longest time until the streams that a request announced are open.
    pub stream_creation: Duration,
    /// The group of the connection's tasks. They end with the connection, and at the latest with this group.
    pub tasks: Tasks,
}

impl Default for ConnectionOptions {
    /// Upstream's limits (four hours idle, 30 s for streams), and a ping every 30 s so that no proxy or firewall drops
    /// a quiet terminal's connection (kubernetes#128314).
    fn default() -> Self {
        Self {
            keep_alive: Some(Duration::from_secs(30)),
            keep_alive_timeout: None,
            idle_limit: Some(Duration::from_secs(4 * 60 * 60)),
            stream_creation: Duration::from_secs(30),
            tasks: Tasks::root("streams"),
        }
    }
}

/// A frame that a codec has read.
#[derive(Debug)]
pub(crate) enum Inbound {
    Open {
        id: u32,
        headers: Headers,
        fin: bool,
    },
    Reply {
        id: u32,
        fin: bool,
    },
    Data {
        id: u32,
        data: Bytes,
        fin: bool,
    },
    Reset {
        id: u32,
    },
    Ping(Bytes),
    Pong,
    /// The peer opens no more streams. The buffered data is complete.
    GoAway,
    /// The peer closed the connection and expects a close message in reply.
    Close,
    Nothing,
}

/// A frame other than data that a codec writes.
#[derive(Debug)]
pub(crate) enum Outbound {
    Open { id: u32, headers: Headers },
    Reply { id: u32 },
    Reset { id: u32, status: u32 },
    Ping,
    Pong(Bytes),
    GoAway { last_good: u32, error: bool },
}

/// The reading half of a framing.
pub(crate) trait Decode: Send + 'static {
    fn decode(&mut self, input: &mut BytesMut) -> Result<Option<Inbound>, StreamError>;
}

/// The writing half of a framing.
pub(crate) trait Encode: Send + 'static {
    fn control(&mut self, frame: Outbound, out: &mut BytesMut) -> Result<(), StreamError>;
    /// Appends a frame for `data` to `out`, or only its header. In that case it returns the payload, which is sent
    /// after it.
    fn data(&mut self, id: u32, data: Bytes, out: &mut BytesMut) -> Option<Bytes>;
    /// Appends the end of this side of a stream, if the framing has one.
    fn fin(&mut self, id: u32, out: &mut BytesMut);
}
