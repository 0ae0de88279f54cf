//! The state changes of a connection's streams, under one lock that is held briefly. They are pure transitions of
//! `table` without IO. `driver` moves the bytes, and `ending` has the transitions that end the whole connection.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::table::{Core, End, PIECE_BYTES, Phase, StreamState};
use super::{CONTROL_QUEUE_MAX, DATA_FRAME_BYTES_MAX, Outbound, STREAMS_MAX};
use crate::error::StreamError;
use crate::spdy::Headers;
use crate::spdy::frame::reset;

/// Received pieces below this size are copied out of the read buffer.
const COPY_BELOW_BYTES: usize = 2 * 1024;

/// The state that the handles and the driver of one connection share.
#[derive(Debug)]
pub(super) struct Shared {
    pub core: Mutex<Core>,
    /// Notified when there is data to send or the phase has changed.
    pub send: Notify,
    /// Notified when there is room to receive or the phase has changed.
    pub room: Notify,
    pub phase: watch::Sender<Phase>,
    /// Whether the framing opens streams by frames. Channels exist from the start.
    dynamic: bool,
    client: bool,
}

/// The next action of the writer.
pub(super) enum Next {
    Control(Outbound),
    Data(u32, Bytes),
    Fin(u32),
    Farewell { last_good: u32, error: bool },
    Wait,
}

impl Shared {
    pub fn new(client: bool, fixed: impl IntoIterator<Item = u32>) -> Self {
        let streams: HashMap<_, _> = fixed.into_iter().map(|id| (id, StreamState::new(Headers::new(), true))).collect();
        let now = Instant::now();
        Self {
            dynamic: streams.is_empty(),
            core: Mutex::new(Core {
                streams,
                received_bytes: 0,
                unsent_bytes: 0,
                ready: VecDeque::new(),
                control: VecDeque::new(),
                incoming: VecDeque::new(),
                acceptor: None,
                next_id: if client { 1 } else { 2 },
                last_peer_id: 0,
                peer_gone: false,
                phase: Phase::Open,
                error: None,
                active: now,
                heard: now,
                stalled: false,
                output_ended: false,
            }),
            send: Notify::new(),
            room: Notify::new(),
            phase: watch::Sender::new(Phase::Open),
            client,
        }
    }

    /// Queues a control frame. Returns false if the queue is full.
    fn queue(&self, core: &mut Core, frame: Outbound) -> bool {
        if core.control.len() >= CONTROL_QUEUE_MAX {
            return false;
        }
        core.control.push_back(frame);
        self.send.notify_one();
        true
    }

    pub fn ping(&self) {
        let mut core = self.core.lock();
        // One queued ping is enough.
        if !core.control.iter().any(|frame| matches!(frame, Outbound::Ping)) {
            self.queue(&mut core, Outbound::Ping);
        }
    }

    pub fn pong(&self, data: Bytes) -> Result<(), StreamError> {
        let mut core = self.core.lock();
        if self.queue(&mut core, Outbound::Pong(data)) { Ok(()) } else { Err(StreamError::Limit("queued pongs")) }
    }

    /// Opens a stream from this side.
    pub fn open(&self, headers: Headers) -> Result<u32, StreamError> {
        let mut core = self.core.lock();
        if let Some(error) = core.refusal() {
            return Err(error);
        }
        if core.streams.len() >= STREAMS_MAX || core.next_id > 0x7fff_ffff {
            return Err(StreamError::Limit("streams of one connection"));
        }
        let id = core.next_id;
        core.next_id += 2;
        core.active = Instant::now();
        core.streams.insert(id, StreamState::new(headers.clone(), false));
        if !self.queue(&mut core, Outbound::Open { id, headers }) {
            core.streams.remove(&id);
            return Err(StreamError::Limit("queued control frames"));
        }
        Ok(id)
    }

    /// Registers a stream that the peer opened. A stream that breaks a rule is reset, and others are queued for the
    /// acceptor.
    pub fn opened(&self, id: u32, headers: Headers, fin: bool) -> Result<(), StreamError> {
        let mut core = self.core.lock();
        core.active = Instant::now();
        if core.phase != Phase::Open || core.peer_gone {
            return Ok(());
        }
        let of_peer = (id % 2 == 1) != self.client;
        let status = if !of_peer || id <= core.last_peer_id {
            reset::PROTOCOL_ERROR
        } else if core.streams.len() >= STREAMS_MAX {
            reset::REFUSED_STREAM
        } else {
            core.last_peer_id = id;
            let mut state = StreamState::new(headers, true);
            if fin {
                state.receive_end = End::Fin;
            }
            core.streams.insert(id, state);
            core.incoming.push_back(id);
            if let Some(waker) = core.acceptor.take() {
                waker.wake();
            }
            return Ok(());
        };
        if self.queue(&mut core, Outbound::Reset { id, status }) {
            return Ok(());
        }
        Err(StreamError::Limit("queued control frames"))
    }

    pub fn reply(&self, id: u32) {
        let mut core = self.core.lock();
        if core.phase == Phase::Open && !self.queue(&mut core, Outbound::Reply { id }) {
            drop(core);
            self.fail(StreamError::Limit("queued control frames"));
        }
    }

    pub fn replied(&self, id: u32, fin: bool) {
        let mut core = self.core.lock();
        if let Some(state) = core.streams.get_mut(&id) {
            state.replied = true;
            if fin && state.receive_end == End::Open {
                state.receive_end = End::Fin;
            }
            state.wake_all();
        }
    }

    /// Adds received bytes. Returns whether the connection may be read further.
    pub fn received(&self, id: u32, data: Bytes, fin: bool) -> bool {
        let mut core = self.core.lock();
        core.active = Instant::now();
        let Core { streams, received_bytes, .. } = &mut *core;
        let Some(state) = streams.get_mut(&id) else { return true };
        if state.receive_end != End::Open {
            return true;
        }
        if !state.discard && !data.is_empty() {
            state.received_bytes += data.len() + PIECE_BYTES;
            *received_bytes += data.len() + PIECE_BYTES;
            // A small piece must not keep a whole read buffer alive.
            let data = if data.len() < COPY_BELOW_BYTES { Bytes::copy_from_slice(&data) } else { data };
            state.received.push_back(data);
        }
        if fin {
            state.receive_end = End::Fin;
        }
        if let Some(waker) = state.reader.take() {
            waker.wake();
        }
        core.has_room(id)
    }

    pub fn has_room(&self, id: u32) -> bool {
        let core = self.core.lock();
        core.phase > Phase::Open || core.has_room(id)
    }

    pub fn reset_by_peer(&self, id: u32) {
        let mut core = self.core.lock();
        core.active = Instant::now();
        let Some(state) = core.streams.get_mut(&id) else { return };
        if state.receive_end == End::Open {
            state.receive_end = End::Reset;
        }
        state.send_end = End::Reset;
        let unsent = state.forget_unsent();
        state.wake_all();
        if state.orphan {
            core.streams.remove(&id);
        }
        core.sent(unsent);
    }

    /// Resets a stream from this side. Unread and unsent data is dropped.
    pub fn reset(&self, id: u32, status: u32) {
        let mut core = self.core.lock();
        let dynamic = self.dynamic;
        let phase = core.phase;
        let Some(state) = core.streams.get_mut(&id) else { return };
        if state.send_end == End::Reset {
            return;
        }
        let done = state.receive_end != End::Open && state.fin_sent;
        state.send_end = End::Reset;
        state.receive_end = End::Reset;
        let (unsent, unread) = (state.forget_unsent(), state.forget_received());
        state.discard = true;
        state.wake_all();
        core.received_bytes -= unread;
        core.sent(unsent);
        self.room.notify_one();
        if dynamic && !done && phase == Phase::Open && !self.queue(&mut core, Outbound::Reset { id, status }) {
            drop(core);
            self.fail(StreamError::Limit("queued control frames"));
        }
    }

    /// Marks a stream whose handle was dropped: written data and its end are still sent, and received data is
    /// discarded.
    pub fn orphan(&self, id: u32) {
        let mut core = self.core.lock();
        let Some(state) = core.streams.get_mut(&id) else { return };
        state.orphan = true;
        state.discard = true;
        let unread = state.forget_received();
        if state.send_end == End::Open {
            state.send_end = End::Fin;
        }
        let gone = state.send_end == End::Reset || state.fin_sent;
        core.received_bytes -= unread;
        if gone && self.dynamic {
            core.streams.remove(&id);
        } else {
            core.mark_ready(id);
        }
        self.send.notify_one();
        self.room.notify_one();
    }

    /// Ends this side of a stream after the written data.
    pub fn finish(&self, id: u32) {
        let mut core = self.core.lock();
        if let Some(state) = core.streams.get_mut(&id)
            && state.send_end == End::Open
        {
            state.send_end = End::Fin;
            core.mark_ready(id);
            self.send.notify_one();
        }
    }

    /// Returns what to write next. Each call returns one frame, and the streams take turns.
    pub fn next(&self) -> Next {
        let mut core = self.core.lock();
        if core.phase >= Phase::Written {
            return Next::Wait;
        }
        if let Some(frame) = core.control.pop_front() {
            return Next::Control(frame);
        }
        while let Some(id) = core.ready.pop_front() {
            let Some(state) = core.streams.get_mut(&id) else { continue };
            state.in_ready = false;
            if state.send_end == End::Reset {
                if state.orphan {
                    core.streams.remove(&id);
                }
                continue;
            }
            if !state.send.is_empty() || std::mem::take(&mut state.send_empty) {
                let take = state.send.len().min(DATA_FRAME_BYTES_MAX);
                let data = state.send.split_to(take).freeze();
                if let Some(waker) = state.writer.take() {
                    waker.wake();
                }
                core.sent(take);
                core.mark_ready(id);
                core.active = Instant::now();
                return Next::Data(id, data);
            }
            if state.send_end == End::Fin && !state.fin_sent {
                state.fin_sent = true;
                if let Some(waker) = state.writer.take() {
                    waker.wake();
                }
                if state.orphan && self.dynamic {
                    core.streams.remove(&id);
                }
                return Next::Fin(id);
            }
        }
        if core.phase == Phase::Closing {
            return Next::Farewell { last_good: core.last_peer_id, error: core.error.is_some() };
        }
        Next::Wait
    }
}

/// Closes the connection when the last handle of it or of its streams is gone.
#[derive(Debug)]
pub(super) struct Guard {
    pub(super) shared: Arc<Shared>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.close();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CONNECTION_RECEIVE_BYTES_MAX, CONNECTION_SEND_BYTES_MAX, STREAM_RECEIVE_BYTES_MAX};
    use super::*;

    /// Makes a server's side with this number of streams that the client has opened.
    fn with_streams(count: u32) -> (Shared, Vec<u32>) {
        let shared = Shared::new(false, []);
        let ids: Vec<u32> = (0..count).map(|n| 2 * n + 1).collect();
        for id in &ids {
            shared.opened(*id, Headers::new(), false).expect("opened");
        }
        (shared, ids)
    }

    #[tokio::test]
    async fn all_streams_together_hold_no_more_than_the_connection_may() {
        let (shared, ids) = with_streams(STREAMS_MAX as u32);
        let piece = Bytes::from(vec![0; STREAM_RECEIVE_BYTES_MAX / 2]);
        let full = ids.iter().position(|id| !shared.received(*id, piece.clone(), false));
        let full = full.expect("thousands of half full streams are more than a connection may hold");
        let held = shared.core.lock().received_bytes;
        assert!(
            (CONNECTION_RECEIVE_BYTES_MAX..CONNECTION_RECEIVE_BYTES_MAX + 2 * piece.len()).contains(&held),
            "{held}"
        );
        assert!(!shared.has_room(ids[full]) && !shared.has_room(ids[full + 1]));
        shared.reset(ids[0], reset::CANCEL);
        assert!(shared.has_room(ids[full + 1]), "what is dropped makes room");
        ids.iter().for_each(|id| shared.orphan(*id));
        assert_eq!(shared.core.lock().received_bytes, 0);
    }

    #[tokio::test]
    async fn unsent_bytes_are_counted_until_they_are_sent_or_dropped() {
        let (shared, ids) = with_streams(2);
        {
            let mut core = shared.core.lock();
            core.unsent_bytes = CONNECTION_SEND_BYTES_MAX;
            assert_eq!(core.send_room(), 0);
            core.streams.get_mut(&ids[0]).expect("open").send.extend_from_slice(&vec![0; DATA_FRAME_BYTES_MAX]);
            core.mark_ready(ids[0]);
        }
        assert!(matches!(shared.next(), Next::Data(id, _) if id == ids[0]));
        assert_eq!(shared.core.lock().send_room(), DATA_FRAME_BYTES_MAX);
    }
}
