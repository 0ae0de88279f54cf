//! Many streams over one connection, whatever the framing: buffers, half-close, resets, replies, limits, keep-alive.
//! Leaves bytes on the wire to the codecs of `spdy` and `ws`, and the meaning of a stream to `exec` and `portforward`.
//!
//! Back-pressure: a stream holds at most [`STREAM_RECEIVE_BYTES_MAX`] unread bytes, all of a connection together at most
//! [`CONNECTION_RECEIVE_BYTES_MAX`]; beyond either the connection is not
//! read until somebody reads that stream or drops it. Neither spdystream nor the WebSocket channels have windows of
//! their own that a peer obeys, so this is the only brake there is, and it loses nothing.

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

/// Unread bytes one stream may hold before the connection is read no further.
pub const STREAM_RECEIVE_BYTES_MAX: usize = 256 * 1024;
/// Unsent bytes one stream may hold before its writer waits.
pub const STREAM_SEND_BYTES_MAX: usize = 256 * 1024;
/// Unread bytes all streams of one connection may hold together: thousands of streams must not add up to the machine's
/// memory. Beyond it the connection is read no further, as for one full stream.
pub const CONNECTION_RECEIVE_BYTES_MAX: usize = 8 << 20;
/// Unsent bytes all streams of one connection may hold together before their writers wait.
pub const CONNECTION_SEND_BYTES_MAX: usize = 8 << 20;
/// Streams of one connection that may be open at once; more are refused one by one.
pub const STREAMS_MAX: usize = 4_096;
/// Control frames that may wait to be sent; a peer that provokes more and does not read is cut off.
pub const CONTROL_QUEUE_MAX: usize = 2 * STREAMS_MAX;
/// The time for which the rest of the peer's data is read and discarded after this side has ended the connection,
/// because closing a socket with unread input destroys output that is still on its way.
pub const LINGER: Duration = Duration::from_secs(5);
/// Longest payload of one data frame this side sends: with its header it fills four records of TLS, and no fifth.
const DATA_FRAME_BYTES_MAX: usize = 4 * 16 * 1024 - 16;

/// The limits and timeouts of a connection.
#[derive(Debug, Clone)]
pub struct ConnectionOptions {
    /// The interval of pings; `None` sends none. Pings never count as activity.
    pub keep_alive: Option<Duration>,
    /// The longest time that the peer may stay silent, with pings unanswered, before the connection counts as lost. It
    /// is off by default, since a healthy peer whose reader is blocked by back-pressure answers nothing.
    pub keep_alive_timeout: Option<Duration>,
    /// The longest time without traffic on any stream before the connection is ended; `None` never ends it.
    pub idle_limit: Option<Duration>,
    /// The longest time until the streams that a request announced are open.
    pub stream_creation: Duration,
    /// The group of the connection's tasks: they end with the connection, and at the latest with this group.
    pub tasks: Tasks,
}

impl Default for ConnectionOptions {
    /// Upstream's limits (four hours idle, 30 s for streams), with a ping each 30 s so that no middle box takes a
    /// quiet terminal for a dead one (kubernetes#128314).
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
    /// The peer said farewell; what is buffered is complete.
    GoAway,
    /// The peer closed; answer in kind.
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
    /// Appends a frame for `data` to `out`, or its header only, giving back the payload to be sent after it.
    fn data(&mut self, id: u32, data: Bytes, out: &mut BytesMut) -> Option<Bytes>;
    /// Appends the end of this side of a stream, where the framing has one.
    fn fin(&mut self, id: u32, out: &mut BytesMut);
}
