//! Limit of incomplete request heads: bytes that the server holds before it knows who sends them. Every connection may send a small
//! head. The bytes beyond that count towards one budget of all connections, and a connection that exceeds it ends.
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of a head that do not count towards the budget: nearly all heads are smaller.
const FREE_BYTES: usize = 16 * 1024;

/// The budget of bytes that the heads of all connections share.
#[derive(Debug)]
pub struct HeadBudget {
    left: AtomicUsize,
}

impl HeadBudget {
    /// A budget of `bytes`.
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { left: AtomicUsize::new(bytes) })
    }

    fn take(&self, bytes: usize) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The part of a request that a connection is receiving.
enum Phase {
    /// The head of the next request: bytes received so far, and those of them that are taken from the budget.
    Head { received: usize, taken: usize },
    /// An open request: its body, which is counted where it is read, or the head of a concurrent request.
    Request,
    /// Another protocol, or a closed connection: no head comes any more.
    NoMoreHeads,
}

/// Counts the bytes of one connection's heads. The connection's requests switch its phase: each begins when its head is complete,
/// and an upgrade ends HTTP.
pub struct HeadMeter {
    budget: Arc<HeadBudget>,
    phase: Mutex<Phase>,
}

impl HeadMeter {
    /// A new connection, which waits for its first head.
    pub fn new(budget: &Arc<HeadBudget>) -> Arc<Self> {
        Arc::new(Self { budget: Arc::clone(budget), phase: Mutex::new(Phase::Head { received: 0, taken: 0 }) })
    }

    /// A head is complete: the bytes that follow belong to its request.
    pub fn end_head(&self) {
        self.switch(Phase::Request);
    }

    /// No request is open: the bytes that follow are the next head.
    pub fn begin_head(&self) {
        self.switch(Phase::Head { received: 0, taken: 0 });
    }

    /// The connection speaks another protocol or is closed.
    pub fn end_heads(&self) {
        self.switch(Phase::NoMoreHeads);
    }

    /// Gives back what the last head took. [`Phase::NoMoreHeads`] is final.
    fn switch(&self, next: Phase) {
        let mut phase = self.phase.lock();
        if let Phase::Head { taken, .. } = *phase {
            self.budget.give_back(taken);
        }
        if !matches!(*phase, Phase::NoMoreHeads) {
            *phase = next;
        }
    }

    /// Counts received bytes; `false` if the budget is exceeded.
    fn receive(&self, bytes: usize) -> bool {
        let mut phase = self.phase.lock();
        let Phase::Head { received, taken } = &mut *phase else { return true };
        *received += bytes;
        let missing = received.saturating_sub(FREE_BYTES) - *taken;
        let fits = missing == 0 || self.budget.take(missing);
        if fits {
            *taken += missing;
        }
        fits
    }
}

/// A connection whose heads are counted.
pub struct CountedHeads<T> {
    io: T,
    meter: Arc<HeadMeter>,
}

impl<T> CountedHeads<T> {
    /// Counts what is read from `io`.
    pub fn new(io: T, meter: Arc<HeadMeter>) -> Self {
        Self { io, meter }
    }
}

impl<T> Drop for CountedHeads<T> {
    fn drop(&mut self) {
        self.meter.end_heads();
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for CountedHeads<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        if read.is_ready() && !self.meter.receive(buf.filled().len() - before) {
            buf.set_filled(before);
            return Poll::Ready(Err(io::Error::other("too many bytes of incomplete request heads")));
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for CountedHeads<T> {
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

    use super::*;
    use crate::front::activity::Activity;

    /// Receives `bytes` over a connection.
    async fn receive(bytes: usize, meter: Arc<HeadMeter>) -> io::Result<CountedHeads<impl AsyncRead>> {
        let (mut client, server) = duplex(bytes.max(1));
        client.write_all(&vec![b'x'; bytes]).await?;
        drop(client);
        let mut counted = CountedHeads::new(server, meter);
        counted.read_to_end(&mut Vec::new()).await?;
        Ok(counted)
    }

    #[tokio::test]
    async fn heads_share_a_budget() {
        let budget = HeadBudget::new(100_000);
        let left = || budget.left.load(Ordering::Relaxed);
        for _ in 0..100 {
            receive(FREE_BYTES, HeadMeter::new(&budget)).await.expect("small heads are not counted");
        }
        let one = receive(FREE_BYTES + 60_000, HeadMeter::new(&budget)).await.expect("within the budget");
        assert!(receive(FREE_BYTES + 60_000, HeadMeter::new(&budget)).await.is_err(), "two exceed the budget");
        assert_eq!(left(), 40_000);
        drop(one);
        assert_eq!(left(), 100_000);
    }

    #[tokio::test]
    async fn bodies_and_upgraded_streams_are_not_heads() {
        let budget = HeadBudget::new(100_000);
        let left = || budget.left.load(Ordering::Relaxed);
        let meter = HeadMeter::new(&budget);
        let activity = Activity::new(Arc::clone(&meter));
        assert!(meter.receive(FREE_BYTES + 60_000));
        let open = activity.begin();
        assert_eq!(left(), 100_000, "a complete head is given back");
        assert!(meter.receive(500_000), "a body");
        let concurrent = activity.begin();
        drop(open);
        assert!(meter.receive(500_000), "the other request's body");
        drop(concurrent);
        assert!(!meter.receive(FREE_BYTES + 500_000), "the next head");
        activity.upgrade();
        receive(FREE_BYTES + 500_000, Arc::clone(&meter)).await.expect("a stream after an upgrade is not a head");
        drop(activity.begin());
        assert!(meter.receive(500_000), "an upgrade is final");
        assert_eq!(left(), 100_000);
    }
}
