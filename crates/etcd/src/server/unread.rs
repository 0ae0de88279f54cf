//! Answers that clients have not read yet. Their bytes are counted from their creation until they are sent, and they
//! are passed to connections in pieces: a client that requests everything many times and reads nothing uses a bounded
//! part of memory.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::body::Body;

use crate::error::Error;

/// The maximum size of all unsent answers in bytes. A single larger answer is sent if there is no other.
const BYTES_MAX: usize = 256 << 20;
/// Smaller answers are not counted: their number is limited by that of concurrent requests.
const SMALL_BYTES: usize = 64 << 10;
/// The maximum number of answers that wait for room; further ones are rejected.
const WAITING_MAX: usize = 64;
/// The maximum wait for room before an answer is rejected.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// The size of the pieces passed to a connection, in bytes.
const PIECE_BYTES: usize = 64 << 10;
/// The unit in which sizes are counted, in bytes.
const UNIT_BYTES: usize = 1 << 10;

/// The permits for unread answers of one server.
#[derive(Debug)]
pub(super) struct UnreadAnswers {
    units: Arc<Semaphore>,
    size: usize,
    waiting: AtomicUsize,
}

impl Default for UnreadAnswers {
    fn default() -> Self {
        Self::of_bytes(BYTES_MAX)
    }
}

impl UnreadAnswers {
    pub fn of_bytes(bytes: usize) -> Self {
        let size = (bytes / UNIT_BYTES).max(1);
        Self { units: Arc::new(Semaphore::new(size)), size, waiting: AtomicUsize::new(0) }
    }

    /// Reserves room for an answer of this size. `None` for a small one, which is not counted.
    ///
    /// # Errors
    /// Other clients have not read too many answers.
    pub async fn take(&self, bytes: usize) -> Result<Option<OwnedSemaphorePermit>, Status> {
        if bytes <= SMALL_BYTES {
            return Ok(None);
        }
        let units = u32::try_from((bytes / UNIT_BYTES).min(self.size)).unwrap_or(u32::MAX);
        let full = || Status::from(Error::TooManyRequests);
        if let Ok(taken) = Arc::clone(&self.units).try_acquire_many_owned(units) {
            return Ok(Some(taken));
        }
        let _waits = Waits::begin(&self.waiting).ok_or_else(full)?;
        let taken = tokio::time::timeout(WAIT_MAX, Arc::clone(&self.units).acquire_many_owned(units)).await;
        taken.ok().and_then(Result::ok).map(Some).ok_or_else(full)
    }

    #[cfg(test)]
    pub fn free_bytes(&self) -> usize {
        self.units.available_permits() * UNIT_BYTES
    }
}

/// Counts an answer that waits for room.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn begin(waiting: &'a AtomicUsize) -> Option<Self> {
        let waits = Self(waiting);
        (waiting.fetch_add(1, Ordering::AcqRel) < WAITING_MAX).then_some(waits)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A body in pieces, with its permits until the last piece is taken.
pub(super) struct Pieces<B> {
    body: B,
    rest: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

impl<B> Pieces<B>
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// Returns the body for sending.
    pub fn body(body: B, room: Option<OwnedSemaphorePermit>) -> Body {
        Body::new(Self { body, rest: Bytes::new(), _room: room })
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Pieces<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if self.rest.is_empty() {
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                other => return Poll::Ready(other),
            }
        }
        let bytes = self.rest.len().min(PIECE_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let of_body = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(of_body.lower().saturating_add(rest));
        if let Some(upper) = of_body.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, Full};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answers_wait_for_room_and_are_refused_when_none_comes() {
        let room = UnreadAnswers::of_bytes(1 << 20);
        assert!(room.take(SMALL_BYTES).await.unwrap().is_none(), "small ones are not counted");
        let most = room.take(1 << 30).await.unwrap();
        assert_eq!((most.is_some(), room.free_bytes()), (true, 0), "one that is larger than the room takes all of it");
        let begun = tokio::time::Instant::now();
        assert_eq!(room.take(100_000).await.unwrap_err().code(), tonic::Code::ResourceExhausted);
        assert_eq!(begun.elapsed(), WAIT_MAX);
        let later = async {
            tokio::time::sleep(WAIT_MAX / 2).await;
            drop(most);
        };
        let (taken, ()) = tokio::join!(room.take(100_000), later);
        assert!(taken.unwrap().is_some());
        assert_eq!(room.free_bytes(), 1 << 20);
        let _all = room.take(1 << 20).await.unwrap();
        let many = futures::future::join_all((0..WAITING_MAX + 10).map(|_| async {
            let begun = tokio::time::Instant::now();
            let refused = room.take(100_000).await.is_err();
            (refused, begun.elapsed() < WAIT_MAX)
        }));
        let many = many.await;
        assert!(many.iter().all(|(refused, _)| *refused));
        assert_eq!(many.iter().filter(|(_, at_once)| *at_once).count(), 10, "only so many wait");
    }

    #[tokio::test]
    async fn a_body_comes_in_pieces_and_whole() {
        let whole: Bytes = (0..PIECE_BYTES * 2 + 7).map(|n| n as u8).collect();
        let mut body = Pieces::body(Full::new(whole.clone()), None);
        assert_eq!(body.size_hint().exact(), Some(whole.len() as u64));
        let mut read = Vec::new();
        while let Some(frame) = body.frame().await {
            let data = frame.unwrap().into_data().unwrap();
            assert!(data.len() <= PIECE_BYTES);
            read.extend_from_slice(&data);
            assert_eq!(body.size_hint().exact(), Some((whole.len() - read.len()) as u64));
        }
        assert_eq!(read, whole);
    }
}
