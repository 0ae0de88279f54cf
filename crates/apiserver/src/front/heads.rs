//! Heads of requests that are still to come: bytes that the server holds of them before anybody is asked who they are. A small head is
//! every connection's to send; what is beyond it is counted for all connections together, and a connection that finds no room ends.
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::front::activity::Activity;

/// Bytes of a head that are not counted: nearly all heads are smaller.
const FREE_BYTES: usize = 16 * 1024;

/// Room for the heads of all connections.
#[derive(Debug)]
pub struct Heads {
    left: AtomicUsize,
}

impl Heads {
    /// Room for so many bytes.
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { left: AtomicUsize::new(bytes) })
    }

    fn take(&self, bytes: usize) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    fn give(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// A connection whose heads are counted.
pub struct CountedHeads<T> {
    io: T,
    heads: Arc<Heads>,
    activity: Arc<Activity>,
    /// Requests that had begun when the bytes below began to come.
    begun: usize,
    /// Bytes that came since.
    bytes: usize,
    /// Those of them that are taken from the room.
    taken: usize,
}

impl<T> CountedHeads<T> {
    /// A connection; its `activity` says when a head is over.
    pub fn new(io: T, heads: Arc<Heads>, activity: Arc<Activity>) -> Self {
        Self { io, heads, activity, begun: 0, bytes: 0, taken: 0 }
    }

    fn count(&mut self, came: usize) -> bool {
        let (begun, open) = self.activity.begun();
        if begun != self.begun || open {
            // What came was a head, or is a body, whose bytes are counted when it is read.
            self.begun = begun;
            self.bytes = 0;
            self.heads.give(std::mem::take(&mut self.taken));
            return true;
        }
        self.bytes += came;
        let wanted = self.bytes.saturating_sub(FREE_BYTES) - self.taken;
        let fits = wanted == 0 || self.heads.take(wanted);
        if fits {
            self.taken += wanted;
        }
        fits
    }
}

impl<T> Drop for CountedHeads<T> {
    fn drop(&mut self) {
        self.heads.give(self.taken);
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for CountedHeads<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        if read.is_ready() && !self.count(buf.filled().len() - before) {
            buf.set_filled(before);
            return Poll::Ready(Err(io::Error::other("too many bytes of unfinished requests")));
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

    /// Reads all that was sent.
    async fn read(
        bytes: usize,
        heads: &Arc<Heads>,
        activity: &Arc<Activity>,
    ) -> io::Result<CountedHeads<impl AsyncRead>> {
        let (mut client, server) = duplex(bytes.max(1));
        client.write_all(&vec![b'x'; bytes]).await?;
        drop(client);
        let mut counted = CountedHeads::new(server, Arc::clone(heads), Arc::clone(activity));
        counted.read_to_end(&mut Vec::new()).await?;
        Ok(counted)
    }

    #[tokio::test]
    async fn heads_share_a_room() {
        let heads = Heads::new(100_000);
        let activity = Activity::new();
        for _ in 0..100 {
            read(FREE_BYTES, &heads, &activity).await.expect("small ones are not counted");
        }
        let one = read(FREE_BYTES + 60_000, &heads, &activity).await.expect("there is room");
        assert!(read(FREE_BYTES + 60_000, &heads, &activity).await.is_err(), "not for two");
        assert_eq!(heads.left.load(Ordering::Relaxed), 40_000);
        drop(one);
        assert_eq!(heads.left.load(Ordering::Relaxed), 100_000);
        let open = activity.begin();
        read(FREE_BYTES + 500_000, &heads, &activity).await.expect("a body is no head");
        drop(open);
        assert_eq!(heads.left.load(Ordering::Relaxed), 100_000);
        activity.upgrade();
        read(FREE_BYTES + 500_000, &heads, &activity).await.expect("a stream behind an upgrade is no head");
    }
}
