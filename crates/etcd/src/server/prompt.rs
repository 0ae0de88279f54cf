//! Connections whose peer must send its first bytes in time. They decide the protocol, and no other limit applies
//! before that.
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// The number of bytes that decides the protocol: the length of HTTP/2's preface.
const TELLING_BYTES: usize = 24;

/// A connection that fails when its peer has not sent its first bytes by a deadline.
pub(super) struct Prompt<T> {
    io: T,
    /// Until the protocol is known: the number of bytes received, and the deadline.
    silent: Option<(usize, Pin<Box<Sleep>>)>,
}

impl<T> Prompt<T> {
    pub fn new(io: T, limit: Duration) -> Self {
        Self { io, silent: Some((0, Box::pin(sleep(limit)))) }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Prompt<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let this = &mut *self;
        let read = Pin::new(&mut this.io).poll_read(cx, buf);
        let Some((bytes, deadline)) = &mut this.silent else { return read };
        if read.is_pending() {
            ready!(deadline.as_mut().poll(cx));
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not respond")));
        }
        *bytes += buf.filled().len() - before;
        if *bytes >= TELLING_BYTES {
            this.silent = None;
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Prompt<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, parts)
    }
    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::time::Instant;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_say_what_it_speaks_is_left() {
        for said in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n\r\nSM\r"] {
            let (mut client, server) = duplex(64);
            client.write_all(said).await.unwrap();
            let begun = Instant::now();
            let mut read = Vec::new();
            let ended = Prompt::new(server, LIMIT).read_to_end(&mut read).await;
            assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert_eq!((begun.elapsed(), &read[..]), (LIMIT, said));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_has_said_it_may_be_silent() {
        let (mut client, server) = duplex(64);
        client.write_all(b"GET /health HTTP/1.1\r\nhost: a\r\n").await.unwrap();
        let mut prompt = Prompt::new(server, LIMIT);
        let mut bytes = [0; 32];
        assert!(prompt.read(&mut bytes).await.unwrap() >= TELLING_BYTES);
        let later = tokio::spawn(async move { prompt.read(&mut [0; 32]).await });
        tokio::time::sleep(LIMIT * 10).await;
        assert!(!later.is_finished());
        drop(client);
        later.await.unwrap().unwrap();
    }
}
