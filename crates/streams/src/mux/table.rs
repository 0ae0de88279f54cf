//! The table of a connection's streams: their progress, and the buffered bytes of each and of all together.

use std::collections::{HashMap, VecDeque};
use std::task::Waker;

use bytes::{Bytes, BytesMut};
use tokio::time::Instant;

use super::{CONNECTION_RECEIVE_BYTES_MAX, CONNECTION_SEND_BYTES_MAX, Outbound, STREAM_RECEIVE_BYTES_MAX};
use crate::error::StreamError;
use crate::spdy::Headers;

/// The overhead of a buffered piece, in bytes. It is counted so that tiny frames cannot exceed the limit.
pub(super) const PIECE_BYTES: usize = 64;

/// The progress of one direction of a stream towards its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Open,
    /// The end follows the buffered bytes.
    Fin,
    Reset,
    /// The connection broke before the end.
    Broken,
}

/// The progress of the connection towards its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Open,
    /// Queued data and the final frame are being sent.
    Closing,
    /// This side has sent its final frame and writes no more.
    Written,
    /// Both sides have ended.
    Dead,
}

#[derive(Debug)]
pub(super) struct StreamState {
    pub headers: Headers,
    pub received: VecDeque<Bytes>,
    pub received_bytes: usize,
    pub receive_end: End,
    /// Whether the reader was dropped, so received data is discarded.
    pub discard: bool,
    pub reader: Option<Waker>,
    pub send: BytesMut,
    /// Whether an empty message must be sent, which only WebSocket channels support.
    pub send_empty: bool,
    /// `Fin` if this side has requested its end, which may still be queued.
    pub send_end: End,
    pub fin_sent: bool,
    pub writer: Option<Waker>,
    pub in_ready: bool,
    /// Whether the peer has replied, or need not reply.
    pub replied: bool,
    pub opener: Option<Waker>,
    /// Whether the handle was dropped. The stream is removed once its end is sent.
    pub orphan: bool,
}

impl StreamState {
    pub(super) fn new(headers: Headers, replied: bool) -> Self {
        Self {
            headers,
            received: VecDeque::new(),
            received_bytes: 0,
            receive_end: End::Open,
            discard: false,
            reader: None,
            send: BytesMut::new(),
            send_empty: false,
            send_end: End::Open,
            fin_sent: false,
            writer: None,
            in_ready: false,
            replied,
            opener: None,
            orphan: false,
        }
    }

    pub(super) fn wake_all(&mut self) {
        for waker in [self.reader.take(), self.writer.take(), self.opener.take()].into_iter().flatten() {
            waker.wake();
        }
    }
}

#[derive(Debug)]
pub(super) struct Core {
    pub streams: HashMap<u32, StreamState>,
    /// The unread bytes of all streams together.
    pub received_bytes: usize,
    /// The unsent bytes of all streams together.
    pub unsent_bytes: usize,
    /// The streams with data to send, which take turns.
    pub ready: VecDeque<u32>,
    pub control: VecDeque<Outbound>,
    /// The streams that the peer opened and that have not been accepted yet.
    pub incoming: VecDeque<u32>,
    pub acceptor: Option<Waker>,
    pub next_id: u32,
    pub last_peer_id: u32,
    /// Whether the peer has announced its end: it opens no more streams, and its streams are complete.
    pub peer_gone: bool,
    pub phase: Phase,
    pub error: Option<StreamError>,
    /// The time at which a stream last carried data.
    pub active: Instant,
    /// The time of the last read.
    pub heard: Instant,
    /// Whether reading is paused because a stream is full.
    pub stalled: bool,
    /// Whether nothing can be written any more.
    pub(super) output_ended: bool,
}

impl StreamState {
    fn has_room(&self) -> bool {
        self.discard || self.received_bytes < STREAM_RECEIVE_BYTES_MAX
    }

    /// Drops unread data. Returns the number of bytes that the connection counted for it.
    pub(super) fn forget_received(&mut self) -> usize {
        self.received.clear();
        std::mem::take(&mut self.received_bytes)
    }

    /// Drops unsent data. Returns its number of bytes.
    pub(super) fn forget_unsent(&mut self) -> usize {
        let len = self.send.len();
        self.send.clear();
        len
    }
}

impl Core {
    /// Whether more may be read for a stream. Discarded data needs no room.
    pub fn has_room(&self, id: u32) -> bool {
        let Some(state) = self.streams.get(&id) else { return true };
        state.discard || state.has_room() && self.received_bytes < CONNECTION_RECEIVE_BYTES_MAX
    }

    /// The number of bytes that may still be buffered for sending.
    pub fn send_room(&self) -> usize {
        CONNECTION_SEND_BYTES_MAX.saturating_sub(self.unsent_bytes)
    }

    /// Subtracts sent bytes, and wakes the writers that waited for the connection's limit.
    pub fn sent(&mut self, bytes: usize) {
        let was_full = self.send_room() == 0;
        self.unsent_bytes -= bytes;
        if was_full && self.send_room() > 0 {
            self.streams.values_mut().filter_map(|state| state.writer.take()).for_each(Waker::wake);
        }
    }

    /// Returns why no new stream can be opened, if so.
    pub fn refusal(&self) -> Option<StreamError> {
        if self.phase == Phase::Open && !self.peer_gone && self.error.is_none() {
            return None;
        }
        Some(self.error.clone().unwrap_or(StreamError::Closed))
    }

    pub fn mark_ready(&mut self, id: u32) {
        if let Some(state) = self.streams.get_mut(&id)
            && !state.in_ready
            && (!state.send.is_empty() || state.send_empty || state.send_end == End::Fin && !state.fin_sent)
        {
            state.in_ready = true;
            self.ready.push_back(id);
        }
    }
}
