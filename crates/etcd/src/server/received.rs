//! Incomplete requests. Their bytes are counted over all connections: a client that begins many large requests and
//! completes none uses a bounded part of memory.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use crate::error::Error;

/// The maximum size of all incomplete requests in bytes; a request that would exceed it is rejected.
const BYTES_MAX: usize = 256 << 20;
/// The unit in which sizes are counted, in bytes.
const UNIT_BYTES: usize = 1 << 10;

/// The permits for incomplete requests of one server.
#[derive(Clone, Debug)]
pub(super) struct ReceivedRoom(Arc<Semaphore>);

impl Default for ReceivedRoom {
    fn default() -> Self {
        Self::of_bytes(BYTES_MAX)
    }
}

impl ReceivedRoom {
    pub fn of_bytes(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes / UNIT_BYTES)))
    }

    #[cfg(test)]
    pub fn free_bytes(&self) -> usize {
        self.0.available_permits() * UNIT_BYTES
    }
}

/// The body of a request, with its permits until it is complete or dropped.
pub(super) struct Counted<B> {
    body: B,
    room: ReceivedRoom,
    held: Vec<OwnedSemaphorePermit>,
    /// The number of counted bytes.
    bytes: usize,
    /// The maximum to count: messages of a stream are decoded one by one, and none is larger.
    bytes_max: usize,
}

impl<B> Counted<B> {
    pub fn new(body: B, room: &ReceivedRoom, bytes_max: usize) -> Self {
        Self { body, room: room.clone(), held: Vec::new(), bytes: 0, bytes_max }
    }

    fn count(&mut self, bytes: usize) -> Result<(), Status> {
        let units = |bytes: usize| bytes.div_ceil(UNIT_BYTES);
        let after = self.bytes.saturating_add(bytes).min(self.bytes_max);
        let more = u32::try_from(units(after) - units(self.bytes)).unwrap_or(u32::MAX);
        if more > 0 {
            let taken = Arc::clone(&self.room.0).try_acquire_many_owned(more);
            let taken = taken.map_err(|_| Status::from(Error::TooManyRequests))?;
            match self.held.first_mut() {
                Some(held) => held.merge(taken),
                None => self.held.push(taken),
            }
        }
        self.bytes = after;
        Ok(())
    }
}

impl<B> HttpBody for Counted<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = match std::task::ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            None => return Poll::Ready(None),
        };
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        Poll::Ready(Some(match self.count(bytes) {
            Ok(()) => Ok(frame),
            Err(status) => Err(status.into()),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, StreamBody};

    use super::*;

    fn endless(piece: usize) -> impl HttpBody<Data = Bytes, Error = std::convert::Infallible> + Unpin {
        StreamBody::new(futures::stream::repeat_with(move || Ok(Frame::data(Bytes::from(vec![0; piece])))))
    }

    #[tokio::test]
    async fn requests_that_do_not_end_share_a_bounded_room() {
        const ROOM: usize = 1 << 20;
        let room = ReceivedRoom::of_bytes(ROOM);
        let mut bodies: Vec<_> = (0..50).map(|_| Counted::new(endless(1000), &room, 100_000)).collect();
        let mut refused = 0;
        for body in &mut bodies {
            for _ in 0..50 {
                match body.frame().await.unwrap() {
                    Ok(frame) => assert_eq!(frame.into_data().unwrap().len(), 1000),
                    Err(error) => {
                        let status = error.downcast::<Status>().unwrap();
                        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
                        refused += 1;
                        break;
                    }
                }
            }
        }
        assert!((25..50).contains(&refused), "{refused} of 50, of which 20 fit");
        bodies.truncate(1);
        assert!(room.free_bytes() > ROOM - 60_000, "the others gave theirs back");
        let mut stream = Counted::new(endless(1000), &room, 10_000);
        for _ in 0..1000 {
            stream.frame().await.unwrap().unwrap();
        }
        assert_eq!(
            room.free_bytes(),
            ROOM - (50_000_usize.div_ceil(UNIT_BYTES) + 10) * UNIT_BYTES,
            "one message at most"
        );
        drop((stream, bodies));
        assert_eq!(room.free_bytes(), ROOM);
    }
}
