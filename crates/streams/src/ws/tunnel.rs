//! A WebSocket as a plain byte stream: binary messages in both directions (KEP-4006, `SPDY/3.1+portforward.k8s.io`).
//! The bytes are SPDY frames, which the caller decodes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Role;
use super::frame::{CLOSE_NORMAL, Decoder, Event, Opcode, put_frame};
use crate::error::StreamError;

/// The encoded bytes that are buffered before a write waits for the transport.
const SEND_BUFFER_BYTES_MAX: usize = 256 * 1024;
/// The number of bytes that are read from the transport at a time.
const READ_BYTES: usize = 32 * 1024;
/// The longest message that this side writes. With its header it fills exactly four TLS records.
const MESSAGE_BYTES_MAX: usize = 4 * 16 * 1024 - 16;
/// The limit of buffered pongs, in bytes. A peer that sends pings and does not read the pongs gets no more of them.
const PONG_BUFFER_BYTES_MAX: usize = 2 * SEND_BUFFER_BYTES_MAX;

/// The byte stream inside a WebSocket's binary messages.
pub struct TunnelStream<T> {
    io: T,
    role: Role,
    decoder: Decoder,
    input: BytesMut,
    ready: Bytes,
    output: BytesMut,
    ended: bool,
    close_sent: bool,
    /// The task that writes. The reading side also writes pongs and may have registered at the transport instead of the
    /// writer, so it wakes the writer.
    writer: Option<Waker>,
}

impl<T: AsyncRead + AsyncWrite + Unpin> TunnelStream<T> {
    /// Wraps an upgraded connection.
    pub fn new(io: T, role: Role) -> Self {
        Self {
            io,
            role,
            decoder: Decoder::new(role),
            input: BytesMut::new(),
            ready: Bytes::new(),
            output: BytesMut::new(),
            ended: false,
            close_sent: false,
            writer: None,
        }
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.output.is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &self.output))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.output.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    fn send_close(&mut self) {
        if !std::mem::replace(&mut self.close_sent, true) {
            put_frame(self.role, Opcode::Close, &[&CLOSE_NORMAL.to_be_bytes()], &mut self.output);
        }
    }

    fn event(&mut self, event: Event, cx: &mut Context<'_>) -> io::Result<()> {
        match event {
            Event::Message { text: true, .. } => {
                return Err(StreamError::Protocol("websocket: tunnel requires binary messages".into()).into());
            }
            Event::Message { data, .. } => self.ready = data,
            Event::Ping(data) if !self.close_sent && self.output.len() < PONG_BUFFER_BYTES_MAX => {
                put_frame(self.role, Opcode::Pong, &[&data], &mut self.output);
                self.flush_soon(cx)?;
            }
            Event::Ping(_) | Event::Pong(_) => {}
            Event::Close(_) => {
                self.ended = true;
                self.send_close();
                self.flush_soon(cx)?;
            }
        }
        Ok(())
    }

    /// Writes as much as possible now. The remaining bytes are written with the next write or flush.
    fn flush_soon(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let outcome = self.poll_drain(cx);
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
        match outcome {
            Poll::Ready(Ok(())) => match Pin::new(&mut self.io).poll_flush(cx) {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => Ok(()),
            },
            Poll::Ready(Err(error)) => Err(error),
            Poll::Pending => Ok(()),
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for TunnelStream<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if !this.ready.is_empty() {
                let take = this.ready.len().min(out.remaining());
                out.put_slice(&this.ready.split_to(take));
                return Poll::Ready(Ok(()));
            }
            if this.ended {
                return Poll::Ready(Ok(()));
            }
            if let Some(event) = this.decoder.decode(&mut this.input)? {
                this.event(event, cx)?;
                continue;
            }
            this.input.reserve(READ_BYTES);
            let read = {
                let mut pinned = std::pin::pin!(tokio::io::AsyncReadExt::read_buf(&mut this.io, &mut this.input));
                ready!(std::future::Future::poll(pinned.as_mut(), cx))?
            };
            if read == 0 {
                // The peer disconnected without a close message, so the last bytes may be missing.
                this.ended = true;
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TunnelStream<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.close_sent {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        this.writer = Some(cx.waker().clone());
        if this.output.len() >= SEND_BUFFER_BYTES_MAX {
            ready!(this.poll_drain(cx))?;
        }
        let take = data.len().min(MESSAGE_BYTES_MAX);
        if take > 0 {
            put_frame(this.role, Opcode::Binary, &[&data[..take]], &mut this.output);
            // Bytes are passed to the transport at once if possible. If it is full, the next write waits for it.
            if let Poll::Ready(Err(error)) = this.poll_drain(cx) {
                return Poll::Ready(Err(error));
            }
        }
        Poll::Ready(Ok(take))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.writer = Some(cx.waker().clone());
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.writer = Some(cx.waker().clone());
        this.send_close();
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}
