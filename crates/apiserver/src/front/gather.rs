//! Gather: what an HTTP/2 connection writes in one poll goes to TLS together. A frame has at most 16 KiB unless the client allows more,
//! and is written alone; each would be two TLS records, a system call and a packet.
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Limit of the bytes that a connection gathers: four TLS records, which rustls encrypts for one system call.
const GATHERED_BYTES_MAX: usize = 64 * 1024;
/// A write with more bytes is one of many, and takes memory for all of them at once.
const SMALL_BYTES_MAX: usize = 4 * 1024;

/// A stream and what was written to it in the current poll.
struct Gathered<T> {
    io: T,
    bytes: Vec<u8>,
    /// The number of gathered bytes that the stream took.
    taken: usize,
    /// The error of a write that was made after the connection was polled.
    failed: Option<io::ErrorKind>,
}

impl<T: AsyncWrite + Unpin> Gathered<T> {
    fn check(&self) -> io::Result<()> {
        self.failed.map_or(Ok(()), |kind| Err(kind.into()))
    }

    /// Writes what was gathered, and keeps its memory for what follows.
    fn poll_write_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.taken < self.bytes.len() {
            let taken = ready!(Pin::new(&mut self.io).poll_write(cx, &self.bytes[self.taken..]))?;
            if taken == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.taken += taken;
        }
        self.bytes.clear();
        self.taken = 0;
        Poll::Ready(Ok(()))
    }

    /// Gathers as many of these bytes as there is room for; makes room first if there is none.
    fn poll_gather(&mut self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.check()?;
        if self.bytes.len() >= GATHERED_BYTES_MAX {
            ready!(self.poll_write_out(cx))?;
        }
        let before = self.bytes.len();
        if before == 0 && parts.iter().map(|part| part.len()).sum::<usize>() > SMALL_BYTES_MAX {
            self.bytes.reserve_exact(GATHERED_BYTES_MAX);
        }
        for part in parts {
            let room = GATHERED_BYTES_MAX - self.bytes.len();
            self.bytes.extend_from_slice(&part[..part.len().min(room)]);
        }
        Poll::Ready(Ok(self.bytes.len() - before))
    }

    /// Writes what was gathered, and frees its memory: most connections are at rest most of the time.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        ready!(self.poll_write_out(cx))?;
        self.bytes = Vec::new();
        Pin::new(&mut self.io).poll_flush(cx)
    }
}

/// The stream of a connection. [`Gathering`] flushes it.
pub struct GatheredWrites<T>(Arc<Mutex<Gathered<T>>>);

impl<T: AsyncRead + Unpin> AsyncRead for GatheredWrites<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for GatheredWrites<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.0.lock().poll_gather(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.lock().poll_gather(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Writes nothing: HTTP/2 flushes after each frame, and the end of the poll does it once.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.lock().check())
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut gathered = self.0.lock();
        ready!(gathered.poll_flush(cx))?;
        Pin::new(&mut gathered.io).poll_shutdown(cx)
    }
}

/// A connection on a stream whose writes are gathered while the connection is polled, and flushed afterwards.
pub struct Gathering<C: Future, T> {
    connection: Pin<Box<C>>,
    stream: Arc<Mutex<Gathered<T>>>,
    /// The result of the connection, which ended before all was written.
    outcome: Option<C::Output>,
}

impl<C: Future, T: AsyncRead + AsyncWrite + Unpin> Gathering<C, T> {
    /// Makes a connection on a stream.
    pub fn new(io: T, connect: impl FnOnce(GatheredWrites<T>) -> C) -> Self {
        let stream = Arc::new(Mutex::new(Gathered { io, bytes: Vec::new(), taken: 0, failed: None }));
        let connection = Box::pin(connect(GatheredWrites(Arc::clone(&stream))));
        Self { connection, stream, outcome: None }
    }

    /// Returns the connection, so that a caller can end it gracefully while it is served.
    pub fn connection(&mut self) -> Pin<&mut C> {
        self.connection.as_mut()
    }
}

impl<C: Future, T> Unpin for Gathering<C, T> {}

impl<C: Future, T: AsyncWrite + Unpin> Future for Gathering<C, T> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<C::Output> {
        if self.outcome.is_none()
            && let Poll::Ready(outcome) = self.connection.as_mut().poll(cx)
        {
            self.outcome = Some(outcome);
        }
        let is_written = {
            let mut gathered = self.stream.lock();
            match gathered.poll_flush(cx) {
                Poll::Pending => false,
                Poll::Ready(Ok(())) => true,
                Poll::Ready(Err(error)) => {
                    // The connection sees the error when it is polled again.
                    if gathered.failed.replace(error.kind()).is_none() {
                        cx.waker().wake_by_ref();
                    }
                    true
                }
            }
        };
        match self.outcome.take() {
            Some(outcome) if is_written => Poll::Ready(outcome),
            outcome => {
                self.outcome = outcome;
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    use super::*;

    const FRAME_BYTES: usize = 16 * 1024;

    /// A stream that counts its writes.
    struct Counted(DuplexStream, Arc<AtomicUsize>);

    impl AsyncRead for Counted {
        fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_read(cx, buf)
        }
    }
    impl AsyncWrite for Counted {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            let written = ready!(Pin::new(&mut self.0).poll_write(cx, buf))?;
            self.1.fetch_add(1, Ordering::Relaxed);
            Poll::Ready(Ok(written))
        }
        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(cx)
        }
        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(cx)
        }
    }

    /// Writes frames as HTTP/2 does, each with a flush.
    async fn write_frames(mut stream: GatheredWrites<Counted>, count: usize) -> io::Result<()> {
        for n in 0..count {
            stream.write_all(&[n as u8; 9]).await?;
            stream.write_all(&vec![n as u8; FRAME_BYTES]).await?;
            stream.flush().await?;
        }
        Ok(())
    }

    #[tokio::test]
    async fn the_frames_of_one_poll_are_written_together() {
        const FRAMES: usize = 40;
        const BYTES: usize = FRAMES * (9 + FRAME_BYTES);
        // A reader that takes all at once, and one that takes little.
        for room in [1 << 20, 10_000] {
            let (mut client, server) = tokio::io::duplex(room);
            let writes = Arc::new(AtomicUsize::new(0));
            let io = Counted(server, Arc::clone(&writes));
            let connection = Gathering::new(io, |stream| write_frames(stream, FRAMES));
            let stream = Arc::clone(&connection.stream);
            let serving = tokio::spawn(connection);
            let mut read = vec![0; BYTES];
            client.read_exact(&mut read).await.unwrap();
            serving.await.unwrap().unwrap();
            for (n, frame) in read.chunks(9 + FRAME_BYTES).enumerate() {
                assert!(frame.iter().all(|byte| *byte == n as u8), "{n}");
            }
            assert_eq!(stream.lock().bytes.capacity(), 0, "a connection at rest holds no memory");
            if room > BYTES {
                assert_eq!(writes.load(Ordering::Relaxed), BYTES.div_ceil(GATHERED_BYTES_MAX));
            }
        }
    }

    #[tokio::test]
    async fn a_failed_write_is_the_error_of_the_connection() {
        let (client, server) = tokio::io::duplex(1 << 20);
        drop(client);
        let io = Counted(server, Arc::default());
        let connection = Gathering::new(io, |mut stream| async move {
            stream.write_all(b"few bytes").await?;
            // The connection waits, and is polled again for the error.
            tokio::task::yield_now().await;
            stream.flush().await
        });
        assert_eq!(connection.await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
