//! Watches with some events delivered twice, as after a proxy has restarted them.
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt as _;
use kelson_transport::{Body, TransportError};

/// Whether the next event is delivered twice.
type Twice = Box<dyn FnMut() -> bool + Send>;

/// A body in which pieces that are whole lines may be repeated.
pub(super) struct Repeat {
    inner: Body,
    twice: Twice,
    again: Option<Bytes>,
    /// Whether the last piece ended with a line.
    at_line: bool,
}

impl Repeat {
    pub(super) fn body(inner: Body, twice: Twice) -> Body {
        Self { inner, twice, again: None, at_line: true }.boxed_unsync()
    }
}

impl http_body::Body for Repeat {
    type Data = Bytes;
    type Error = TransportError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, TransportError>>> {
        if let Some(again) = self.again.take() {
            return Poll::Ready(Some(Ok(Frame::data(again))));
        }
        let frame = std::task::ready!(Pin::new(&mut self.inner).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            let ends = data.ends_with(b"\n");
            // One event, neither a part of one nor several: otherwise later ones would be delivered before it.
            let whole = self.at_line && ends && data.iter().filter(|b| **b == b'\n').count() == 1;
            self.at_line = ends;
            if whole && (self.twice)() {
                self.again = Some(data.clone());
            }
        }
        Poll::Ready(frame)
    }
}
