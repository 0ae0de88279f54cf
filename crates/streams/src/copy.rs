//! Copies bytes from a reader to a writer, as many at a time as are available. Each write causes work at every later
//! stage, so bytes that arrived together are forwarded together. `proxy` handles the two directions of a connection and
//! their end.

use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut as _, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::Instant;

/// The buffer size of a direction with little traffic. Most directions have little traffic most of the time.
const QUIET_BYTES: usize = 8 * 1024;
/// The most bytes that are copied at a time.
const COPY_BYTES_MAX: usize = 256 * 1024;
/// This number of bytes within [`BULK_WITHIN`] is a transfer, not an interactive conversation.
const BULK_BYTES: usize = 32 * 1024;
/// The period in which [`BULK_BYTES`] must arrive.
const BULK_WITHIN: Duration = Duration::from_millis(4);
/// The time for which the small pieces of a transfer are collected.
const GATHER: Duration = Duration::from_millis(1);

/// The buffer of bytes being copied. It grows while reads fill it, and shrinks when the source pauses.
struct Carried {
    bytes: BytesMut,
    room: usize,
}

/// The result of filling the buffer.
enum Filled {
    /// There are bytes, and the buffer is full or no more are available now.
    Some,
    /// The source has ended. The buffer has the bytes before the end.
    Ended,
    /// The source has failed.
    Failed(io::Error),
}

impl Carried {
    fn new() -> Self {
        Self { bytes: BytesMut::with_capacity(QUIET_BYTES), room: QUIET_BYTES }
    }

    fn is_full(&self) -> bool {
        self.bytes.len() >= self.room
    }

    /// Empties the buffer, and enlarges it if it was full.
    fn clear(&mut self) {
        if self.is_full() {
            self.room = (self.room * 2).min(COPY_BYTES_MAX);
        }
        self.bytes.clear();
        self.bytes.reserve(self.room);
    }

    fn rest(&mut self) {
        if self.room > QUIET_BYTES {
            *self = Self::new();
        }
    }

    /// Reads the available bytes. Pending only if there are none.
    fn poll_fill(&mut self, from: &mut (impl AsyncRead + Unpin), cx: &mut Context<'_>) -> Poll<Filled> {
        while !self.is_full() {
            let left = self.room - self.bytes.len();
            let mut into = (&mut self.bytes).limit(left);
            match pin!(from.read_buf(&mut into)).poll(cx) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Filled::Ended),
                Poll::Ready(Ok(_)) => {}
                // TLS peers often close without `close_notify`, which counts as the end.
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Poll::Ready(Filled::Ended);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Filled::Failed(error)),
                Poll::Pending if self.bytes.is_empty() => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        Poll::Ready(Filled::Some)
    }

    /// Works like [`Carried::poll_fill`]. With `impatient` it returns `None` if no bytes are available now.
    async fn fill(&mut self, from: &mut (impl AsyncRead + Unpin), impatient: bool) -> Option<Filled> {
        poll_fn(|cx| match self.poll_fill(from, cx) {
            Poll::Ready(filled) => Poll::Ready(Some(filled)),
            Poll::Pending if impatient => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }
}

pub(crate) async fn copy(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin)) -> io::Result<u64> {
    copy_noting(from, to, || {}).await
}

/// Copies `from` to its end, and calls `carried` after each forwarded piece. The end itself is not passed on.
pub(crate) async fn copy_noting(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    carried: impl Fn(),
) -> io::Result<u64> {
    carry(from, to, carried, None).await
}

/// Copies a source to its end. The source buffers up to `held` unread bytes, and its writer may write data in many
/// small pieces, for example by its library's buffers of 4 KB. The pieces of a transfer are collected, since each one
/// causes work in this process, the API server and the client. Other data is forwarded at once.
///
/// # Errors
/// Returns the first failure of either end.
pub async fn copy_gathered(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    held: usize,
) -> io::Result<u64> {
    carry(from, to, || {}, Some(Pace::begin(Instant::now(), held / 2))).await
}

async fn carry(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    carried: impl Fn(),
    mut pace: Option<Pace>,
) -> io::Result<u64> {
    let mut buffer = Carried::new();
    let mut copied = 0;
    let mut unflushed = false;
    loop {
        // The writer is flushed when the source pauses, not after each piece: if each piece were flushed before the
        // next read, reading and sending would alternate.
        let Some(filled) = buffer.fill(from, unflushed).await else {
            to.flush().await?;
            unflushed = false;
            if pace.as_mut().is_some_and(|pace| pace.gathers(Instant::now())) {
                tokio::time::sleep(GATHER).await;
            } else {
                buffer.rest();
            }
            continue;
        };
        if !buffer.bytes.is_empty() {
            let read = buffer.bytes.len();
            to.write_all(&buffer.bytes).await?;
            buffer.clear();
            unflushed = true;
            copied += read as u64;
            carried();
            if let Some(pace) = &mut pace {
                pace.bytes += read;
            }
        }
        match filled {
            Filled::Some => {}
            Filled::Ended => return Ok(copied),
            Filled::Failed(error) => return Err(error),
        }
    }
}

/// Distinguishes a transfer in small pieces from other traffic.
struct Pace {
    since: Instant,
    bytes: usize,
    /// A source that buffers this number of bytes during one pause is as fast as its reader, and must not be made to
    /// wait.
    plenty: usize,
}

impl Pace {
    fn begin(now: Instant, plenty: usize) -> Self {
        Self { since: now, bytes: 0, plenty }
    }

    /// Called when the source has no more bytes. Returns whether to wait before the next read.
    fn gathers(&mut self, now: Instant) -> bool {
        let is_quick = now.duration_since(self.since) <= BULK_WITHIN;
        if is_quick && self.bytes < BULK_BYTES {
            return false;
        }
        let gathers = is_quick && self.bytes < self.plenty;
        *self = Self::begin(now, self.plenty);
        gathers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLENTY: usize = 512 * 1024;

    #[test]
    fn only_a_transfer_by_small_pieces_gathers() {
        let at = |us| Duration::from_micros(us);
        // The bytes until the source was empty, the time since the previous round, and whether to wait then.
        type Round = (usize, Duration, bool);
        let cases: [(&str, &[Round]); 4] = [
            ("words", &[(100, at(10), false); 20]),
            ("pages, slowly", &[(4096, at(1_000), false); 20]),
            (
                "pages",
                &[
                    (4096, at(10), false),
                    (4096, at(10), false),
                    (4096 * 6, at(10), true),
                    (200_000, at(1_500), true),
                    (PLENTY, at(1_500), false),
                    (4096, at(10), false),
                ],
            ),
            ("a conversation with long answers", &[(40_000, at(5_000), false); 5]),
        ];
        for (name, rounds) in cases {
            let mut now = Instant::now();
            let mut pace = Pace::begin(now, PLENTY);
            for (n, (bytes, after, expected)) in rounds.iter().enumerate() {
                now += *after;
                pace.bytes += bytes;
                assert_eq!(pace.gathers(now), *expected, "{name}, round {n}");
            }
        }
        // A source with a small buffer would be slowed by any pause.
        let now = Instant::now();
        let mut pace = Pace::begin(now, BULK_BYTES);
        pace.bytes = BULK_BYTES;
        assert!(!pace.gathers(now));
    }

    #[tokio::test(start_paused = true)]
    async fn pieces_are_forwarded_together_and_whole() {
        let (mut source, mut from) = tokio::io::duplex(1 << 20);
        let (mut to, mut sink) = tokio::io::duplex(1 << 20);
        let sent: Vec<u8> = (0..3_000_000u32).map(|n| (n / 7) as u8).collect();
        let write = async {
            for piece in sent.chunks(4096) {
                source.write_all(piece).await.expect("written");
                tokio::task::yield_now().await;
            }
            drop(source);
        };
        let carry = async {
            let copied = copy_gathered(&mut from, &mut to, 1 << 20).await.expect("carried");
            drop(to);
            copied
        };
        let mut got = Vec::new();
        let mut turns = 0;
        let read = async {
            loop {
                let before = got.len();
                if sink.read_buf(&mut got).await.expect("read") == 0 {
                    return;
                }
                turns += usize::from(got.len() > before);
            }
        };
        let ((), copied, ()) = tokio::join!(write, carry, read);
        assert!(got == sent && copied == 3_000_000);
        assert!(turns < sent.len() / 4096 / 4, "{turns} turns for what came in {} pieces", sent.len() / 4096);
    }

    #[tokio::test]
    async fn what_came_before_a_failure_is_carried() {
        let mut from = fails_later();
        let mut to = Vec::new();
        let error = copy(&mut from, &mut to).await.expect_err("it fails");
        assert_eq!((error.kind(), to), (io::ErrorKind::ConnectionReset, b"before".to_vec()));
    }

    /// Returns some bytes and then fails.
    fn fails_later() -> impl AsyncRead + Unpin {
        struct Fails;
        impl AsyncRead for Fails {
            fn poll_read(
                self: std::pin::Pin<&mut Self>,
                _: &mut Context<'_>,
                _: &mut tokio::io::ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
            }
        }
        (&b"before"[..]).chain(Fails)
    }
}
