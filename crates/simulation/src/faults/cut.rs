//! Watches that end early.
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt as _;
use kelson_transport::{Body, TransportError};
use tokio::time::Sleep;

/// When and how a watch ends early.
#[derive(Clone, Copy, Debug)]
pub(super) struct CutAt {
    /// The number of frames after which the stream is cut.
    pub(super) frames: u32,
    /// after this time at the latest.
    pub(super) after: Duration,
    /// Whether the cut is in the middle of an event instead of between two.
    pub(super) inside: bool,
}

/// A body that ends early.
pub(super) struct Cut {
    inner: Body,
    at: CutAt,
    timer: Pin<Box<Sleep>>,
    ended: bool,
}

impl Cut {
    pub(super) fn body(inner: Body, at: CutAt) -> Body {
        let timer = Box::pin(tokio::time::sleep(at.after));
        Self { inner, at, timer, ended: false }.boxed_unsync()
    }
}

impl http_body::Body for Cut {
    type Data = Bytes;
    type Error = TransportError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, TransportError>>> {
        if self.ended || self.timer.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        match Pin::new(&mut self.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) if self.at.frames == 0 => {
                self.ended = true;
                match frame.into_data() {
                    Ok(data) if self.at.inside => Poll::Ready(Some(Ok(Frame::data(data.slice(..data.len() / 2))))),
                    _ => Poll::Ready(Some(Err(TransportError("simulated: connection reset".into())))),
                }
            }
            Poll::Ready(Some(Ok(frame))) => {
                self.at.frames -= 1;
                Poll::Ready(Some(Ok(frame)))
            }
            other => other,
        }
    }
}
