//! The table of a connection's streams: how far each has come, what waits in it, and how much of all waits together.

use std::collections::{HashMap, VecDeque};
use std::task::Waker;

use bytes::{Bytes, BytesMut};
use tokio::time::Instant;

use super::{CONNECTION_RECEIVE_BYTES_MAX, CONNECTION_SEND_BYTES_MAX, Outbound, STREAM_RECEIVE_BYTES_MAX};
use crate::error::StreamError;
use crate::spdy::Headers;

/// The overhead of a waiting piece besides its bytes, counted so that tiny frames cannot exceed the limit.
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
    /// Flush what is queued, say farewell, end.
    Closing,
    /// This side has said farewell and writes no more.
    Written,
    /// Both sides are done.
    Dead,
}

#[derive(Debug)]
pub(super) struct StreamState {
    pub headers: Headers,
    pub received: VecDeque<Bytes>,
    pub received_bytes: usize,
    pub receive_end: End,
    /// The reader is gone, so incoming data is discarded.
    pub discard: bool,
    pub reader: Option<Waker>,
    pub send: BytesMut,
    /// Whether an empty message must be sent, which only WebSocket channels support.
    pub send_empty: bool,
    /// `Fin` when this side has asked for its end, which may still be queued.
    pub send_end: End,
    pub fin_sent: bool,
    pub writer: Option<Waker>,
    pub in_ready: bool,
    /// The peer has answered, or needs not.
    pub replied: bool,
    pub opener: Option<Waker>,
    /// The handle is gone; forget the stream once its end is sent.
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
    /// Unread bytes of all streams together.
    pub received_bytes: usize,
    /// Unsent bytes of all streams together.
    pub unsent_bytes: usize,
    /// Streams with something to send, served in turn.
    pub ready: VecDeque<u32>,
    pub control: VecDeque<Outbound>,
    /// Streams that the peer opened and that have not been accepted yet.
    pub incoming: VecDeque<u32>,
    pub acceptor: Option<Waker>,
    pub next_id: u32,
    pub last_peer_id: u32,
    /// The peer said farewell: it opens nothing more and its streams are complete.
    pub peer_gone: bool,
    pub phase: Phase,
    pub error: Option<StreamError>,
    /// The time at which a stream last carried data.
    pub active: Instant,
    /// The time of the last read.
    pub heard: Instant,
    /// The connection is not being read, because a stream is full.
    pub stalled: bool,
    /// Nothing can be written any more.
    pub(super) output_ended: bool,
}

impl StreamState {
    fn has_room(&self) -> bool {
        self.discard || self.received_bytes < STREAM_RECEIVE_BYTES_MAX
    }

    /// Drops what is unread; how much the connection counted for it.
    pub(super) fn forget_received(&mut self) -> usize {
        self.received.clear();
        std::mem::take(&mut self.received_bytes)
    }

    /// Drops what is unsent; how much that was.
    pub(super) fn forget_unsent(&mut self) -> usize {
        let len = self.send.len();
        self.send.clear();
        len
    }
}

impl Core {
    /// Whether more may be read for a stream. What is thrown away anyway needs no room.
    pub fn has_room(&self, id: u32) -> bool {
        let Some(state) = self.streams.get(&id) else { return true };
        state.discard || state.has_room() && self.received_bytes < CONNECTION_RECEIVE_BYTES_MAX
    }

    /// Unsent bytes that a stream may still take.
    pub fn send_room(&self) -> usize {
        CONNECTION_SEND_BYTES_MAX.saturating_sub(self.unsent_bytes)
    }

    /// Subtracts sent bytes; wakes the writers that waited for the connection's limit.
    pub fn sent(&mut self, bytes: usize) {
        let was_full = self.send_room() == 0;
        self.unsent_bytes -= bytes;
        if was_full && self.send_room() > 0 {
            self.streams.values_mut().filter_map(|state| state.writer.take()).for_each(Waker::wake);
        }
    }

    /// Returns the reason why no new stream can begin, if any.
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
