//! One stream as an `AsyncRead + AsyncWrite`. `connection` opens and accepts streams.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Buf;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::state::{Guard, Shared};
use super::table::{End, PIECE_BYTES, StreamState};
use super::{CONNECTION_RECEIVE_BYTES_MAX, STREAM_RECEIVE_BYTES_MAX, STREAM_SEND_BYTES_MAX};
use crate::error::StreamError;
use crate::spdy::Headers;
use crate::spdy::frame::reset;

/// One stream of a connection.
///
/// Reading ends with zero bytes when the peer has ended or reset the stream, after all data that it had sent before;
/// [`Stream::was_reset`] distinguishes the two. Reading fails if the connection broke. `shutdown` ends this side only.
/// Dropping the handle sends the written data, ends this side, and discards data that still arrives.
#[derive(Debug)]
pub struct Stream {
    id: u32,
    guard: Arc<Guard>,
}

impl Stream {
    pub(super) fn new(id: u32, guard: Arc<Guard>) -> Self {
        Self { id, guard }
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.guard.shared
    }

    fn peek<R>(&self, look: impl FnOnce(&StreamState) -> R) -> Option<R> {
        self.shared().core.lock().streams.get(&self.id).map(look)
    }

    /// The identifier of the stream on its connection.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The headers with which the stream was opened. WebSocket channels have none.
    pub fn headers(&self) -> Headers {
        self.peek(|state| state.headers.clone()).unwrap_or_default()
    }

    /// Resets the stream in both directions and drops unread and unsent data. Other streams are not affected.
    pub fn reset(&self) {
        self.shared().reset(self.id, reset::CANCEL);
    }

    /// Reports whether either side has reset the stream.
    pub fn was_reset(&self) -> bool {
        self.peek(|state| state.receive_end == End::Reset || state.send_end == End::Reset).unwrap_or(true)
    }

    /// Sends a message without bytes, which shows a WebSocket client that the connection works.
    pub(crate) fn write_empty(&self) {
        let shared = self.shared();
        let mut core = shared.core.lock();
        if let Some(state) = core.streams.get_mut(&self.id) {
            state.send_empty = true;
            core.mark_ready(self.id);
            shared.send.notify_one();
        }
    }

    /// Writes a few bytes before all other data.
    pub(crate) fn preload(&self, data: &[u8]) {
        let shared = self.shared();
        let mut core = shared.core.lock();
        if let Some(state) = core.streams.get_mut(&self.id) {
            state.send.extend_from_slice(data);
            core.unsent_bytes += data.len();
            core.mark_ready(self.id);
            shared.send.notify_one();
        }
    }

    /// Ends this side after the written data, without waiting until it is sent.
    pub(crate) fn finish(&self) {
        self.shared().finish(self.id);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared().orphan(self.id);
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let shared = self.shared();
        let mut core = shared.core.lock();
        let error = core.error.clone();
        let Some(state) = core.streams.get_mut(&self.id) else { return Poll::Ready(Ok(())) };
        if out.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if state.received.is_empty() {
            return match state.receive_end {
                End::Open => {
                    state.reader = Some(cx.waker().clone());
                    Poll::Pending
                }
                End::Fin | End::Reset => Poll::Ready(Ok(())),
                End::Broken => Poll::Ready(Err(error.unwrap_or(StreamError::Aborted).into())),
            };
        }
        let before = state.received_bytes;
        while out.remaining() > 0
            && let Some(piece) = state.received.front_mut()
        {
            let take = piece.len().min(out.remaining());
            out.put_slice(&piece[..take]);
            piece.advance(take);
            state.received_bytes -= take;
            if piece.is_empty() {
                state.received.pop_front();
                state.received_bytes -= PIECE_BYTES;
            }
        }
        let now = state.received_bytes;
        let all_before = core.received_bytes;
        core.received_bytes -= before - now;
        let freed = |before: usize, now: usize, most: usize| before >= most && now < most;
        if freed(before, now, STREAM_RECEIVE_BYTES_MAX)
            || freed(all_before, core.received_bytes, CONNECTION_RECEIVE_BYTES_MAX)
        {
            shared.room.notify_one();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let shared = self.shared();
        let mut core = shared.core.lock();
        let error = core.error.clone();
        let send_room = core.send_room();
        let Some(state) = core.streams.get_mut(&self.id) else {
            return Poll::Ready(Err(StreamError::Closed.into()));
        };
        match state.send_end {
            End::Open => {}
            End::Reset if error.is_none() => return Poll::Ready(Err(StreamError::Reset.into())),
            _ => return Poll::Ready(Err(error.unwrap_or(StreamError::Closed).into())),
        }
        let room = STREAM_SEND_BYTES_MAX.saturating_sub(state.send.len()).min(send_room);
        if room == 0 {
            state.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let take = data.len().min(room);
        state.send.extend_from_slice(&data[..take]);
        core.unsent_bytes += take;
        core.mark_ready(self.id);
        shared.send.notify_one();
        Poll::Ready(Ok(take))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut core = self.shared().core.lock();
        match core.streams.get_mut(&self.id) {
            Some(state) if !state.send.is_empty() => {
                state.writer = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.finish();
        let mut core = self.shared().core.lock();
        match core.streams.get_mut(&self.id) {
            Some(state) if state.send_end == End::Fin && !state.fin_sent => {
                state.writer = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(Ok(())),
        }
    }
}
