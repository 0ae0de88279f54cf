//! The handle of a connection: it opens, accepts and closes. `driver` moves the bytes, and `state` has the rules.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use tokio::io::{AsyncRead, AsyncWrite};

use super::state::{Guard, Shared};
use super::table::{End, Phase};
use super::{ConnectionOptions, Decode, Encode, Stream, driver};
use crate::error::StreamError;
use crate::spdy::Headers;
use crate::spdy::frame::reset;
use crate::spdy::wire::{SpdyDecode, SpdyEncode};

/// A multiplexed connection with the streams of one exec, attach or port-forward. Either side opens streams
/// ([`Connection::open_stream`]) and accepts those of the other ([`Connection::next_stream`]). Buffers are bounded for
/// each stream and for the connection. Clones are handles of the same connection. It ends on [`Connection::close`], or
/// when all handles of it and of its streams are dropped.
#[derive(Debug, Clone)]
pub struct Connection {
    guard: Arc<Guard>,
    options: ConnectionOptions,
}

impl Connection {
    /// Starts SPDY on the side that sent the upgrade request.
    pub fn spdy_client<T>(io: T, options: &ConnectionOptions) -> Result<Self, StreamError>
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
    {
        Ok(Self::start(io, Shared::new(true, []), SpdyDecode::new(true), SpdyEncode::new(true)?, options))
    }

    /// Starts SPDY on the side that answered the upgrade request.
    pub fn spdy_server<T>(io: T, options: &ConnectionOptions) -> Result<Self, StreamError>
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
    {
        Ok(Self::start(io, Shared::new(false, []), SpdyDecode::new(false), SpdyEncode::new(false)?, options))
    }

    /// Starts a connection of numbered channels, which exist from the start.
    pub(crate) fn channels<T, D, E>(
        io: T,
        channels: u8,
        decode: D,
        encode: E,
        options: &ConnectionOptions,
    ) -> (Self, Vec<Stream>)
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
        D: Decode,
        E: Encode,
    {
        let shared = Shared::new(false, (0..channels).map(u32::from));
        let connection = Self::start(io, shared, decode, encode, options);
        let streams = (0..channels).map(|id| Stream::new(u32::from(id), connection.guard.clone())).collect();
        (connection, streams)
    }

    fn start<T, D, E>(io: T, shared: Shared, decode: D, encode: E, options: &ConnectionOptions) -> Self
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
        D: Decode,
        E: Encode,
    {
        let shared = Arc::new(shared);
        driver::spawn(io, shared.clone(), decode, encode, options.clone());
        Self { guard: Arc::new(Guard { shared }), options: options.clone() }
    }

    fn shared(&self) -> &Shared {
        &self.guard.shared
    }

    /// Returns the options that the connection was created with.
    pub fn options(&self) -> &ConnectionOptions {
        &self.options
    }

    /// Opens a stream and waits for the peer's reply, because spdystream drops data that arrives before its reply.
    pub async fn open_stream(&self, headers: Headers) -> Result<Stream, StreamError> {
        let id = self.shared().open(headers)?;
        let stream = Stream::new(id, self.guard.clone());
        let replied = poll_fn(|cx| {
            let mut core = self.shared().core.lock();
            let error = core.error.clone();
            let Some(state) = core.streams.get_mut(&id) else { return Poll::Ready(Err(StreamError::Reset)) };
            if state.replied {
                return Poll::Ready(Ok(()));
            }
            if state.send_end != End::Open {
                return Poll::Ready(Err(error.unwrap_or(StreamError::Reset)));
            }
            state.opener = Some(cx.waker().clone());
            Poll::Pending
        });
        match tokio::time::timeout(self.options.stream_creation, replied).await {
            Ok(outcome) => outcome.map(|()| stream),
            Err(_) => {
                stream.reset();
                Err(StreamError::ReplyTimeout)
            }
        }
    }

    /// Waits for the next stream that the peer opened. Returns `None` when the connection ends. Only one task at a time
    /// may wait here.
    pub async fn next_stream(&self) -> Option<IncomingStream> {
        poll_fn(|cx| {
            let mut core = self.shared().core.lock();
            while let Some(id) = core.incoming.pop_front() {
                if core.streams.contains_key(&id) {
                    return Poll::Ready(Some(IncomingStream(Some(Stream::new(id, self.guard.clone())))));
                }
            }
            if core.refusal().is_some() {
                return Poll::Ready(None);
            }
            core.acceptor = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Waits for the end of the connection. Returns an error if it broke, and `None` if either side closed it.
    pub async fn closed(&self) -> Option<StreamError> {
        let mut phase = self.shared().phase.subscribe();
        // This handle keeps the sender alive.
        let _ = phase.wait_for(|phase| *phase > Phase::Open).await;
        self.shared().core.lock().error.clone()
    }

    /// Ends the connection in order: sends everything written, then the final frame. Returns when that is done or the
    /// peer has disconnected. Data that still arrives from the peer is discarded.
    pub async fn close(&self) {
        self.shared().close();
        let mut phase = self.shared().phase.subscribe();
        let _ = phase.wait_for(|phase| *phase >= Phase::Written).await;
    }
}

/// A stream that the peer wants to open. Dropping it rejects it.
#[derive(Debug)]
pub struct IncomingStream(Option<Stream>);

impl IncomingStream {
    /// The headers that the peer sent.
    pub fn headers(&self) -> Headers {
        self.0.as_ref().map(Stream::headers).unwrap_or_default()
    }

    /// The identifier of the stream.
    pub fn id(&self) -> u32 {
        self.0.as_ref().map(Stream::id).unwrap_or_default()
    }

    /// Replies to the peer and returns the stream.
    pub fn accept(mut self) -> Stream {
        let stream = self.0.take().expect("taken only here and on drop");
        stream.accept();
        stream
    }

    /// Rejects the stream. The peer receives a reset.
    pub fn refuse(self) {}
}

impl Drop for IncomingStream {
    fn drop(&mut self) {
        if let Some(stream) = self.0.take() {
            stream.refuse();
        }
    }
}

impl Stream {
    fn accept(&self) {
        self.shared().reply(self.id());
    }

    fn refuse(&self) {
        self.shared().reset(self.id(), reset::REFUSED_STREAM);
    }
}
