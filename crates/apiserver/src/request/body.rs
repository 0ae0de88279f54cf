//! Bodies: of requests, read completely within a limit; of responses, complete, in parts, or streamed while they are produced.
use std::any::Any;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::Stream;
use http::{HeaderMap, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use kelson_meta::Status;
use kelson_transport::TransportError;
use parking_lot::Mutex;

/// Largest request body, bytes (upstream `MaxRequestBodyBytes`).
pub const REQUEST_BODY_BYTES_MAX: usize = 3 * 1024 * 1024;

/// The number of bytes of a larger body that are read and discarded before the request is rejected.
const DISCARDED_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// The time for which a larger body is read and discarded.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// Message to a client whose request was rejected for lack of resources (upstream's message).
pub const TOO_MANY: &str = "Too many requests, please try again later.";
/// Seconds after which the client may retry.
pub const RETRY_AFTER_S: i32 = 1;

/// A request's body, over the network or from a component of this process.
pub enum RequestBody {
    /// The body of a connection, which is not read yet.
    Network(hyper::body::Incoming),
    /// All bytes of the body.
    Whole(Bytes),
}

/// Reads what a client still sends of a body that is too large, within bounds. Most clients read a response only after they have sent
/// the whole body, and lose it if the connection is closed before that.
async fn discard(incoming: &mut hyper::body::Incoming) {
    if incoming.size_hint().lower() > DISCARDED_BYTES_MAX {
        return;
    }
    let all = async {
        let mut left = DISCARDED_BYTES_MAX;
        while let Some(Ok(frame)) = incoming.frame().await {
            let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
            match left.checked_sub(bytes) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    // After the timeout, the response is sent anyway.
    let _in_time = tokio::time::timeout(DISCARD_TIMEOUT, all).await;
}

impl RequestBody {
    /// Reads and discards the body of a rejected request, within bounds, so that the client reads the response. A client that waits for
    /// `100 Continue` sends no body.
    pub async fn discard(self, headers: &HeaderMap) {
        if let Self::Network(mut incoming) = self
            && !incoming.is_end_stream()
            && !headers.contains_key(header::EXPECT)
        {
            discard(&mut incoming).await;
        }
    }

    /// Reads the whole body.
    ///
    /// # Errors
    /// 413 beyond [`REQUEST_BODY_BYTES_MAX`]; 400 when the client aborts.
    pub async fn read(self) -> Result<Bytes, Status> {
        self.read_within(|_| true).await
    }

    /// Whether the body is known to be empty.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Network(incoming) => incoming.is_end_stream(),
        }
    }

    /// Reads the whole body as long as `room` accepts the number of bytes that arrived.
    ///
    /// # Errors
    /// As [`RequestBody::read`], and 429 when `room` returns `false`.
    pub async fn read_within(self, mut room: impl FnMut(usize) -> bool) -> Result<Bytes, Status> {
        match self {
            Self::Whole(bytes) if bytes.len() > REQUEST_BODY_BYTES_MAX => {
                Err(Status::too_large(REQUEST_BODY_BYTES_MAX))
            }
            Self::Whole(bytes) => Ok(bytes),
            Self::Network(mut incoming) => {
                if incoming.size_hint().lower() > REQUEST_BODY_BYTES_MAX as u64 {
                    discard(&mut incoming).await;
                    return Err(Status::too_large(REQUEST_BODY_BYTES_MAX));
                }
                let mut first: Option<Bytes> = None;
                let mut rest = BytesMut::new();
                while let Some(frame) = incoming.frame().await {
                    let frame =
                        frame.map_err(|e| Status::bad_request(format!("error reading the request body: {e}")))?;
                    let Ok(data) = frame.into_data() else { continue };
                    let have = rest.len() + first.as_ref().map_or(0, Bytes::len);
                    if have + data.len() > REQUEST_BODY_BYTES_MAX {
                        drop((first, rest));
                        discard(&mut incoming).await;
                        return Err(Status::too_large(REQUEST_BODY_BYTES_MAX));
                    }
                    if !room(data.len()) {
                        return Err(Status::too_many_requests(TOO_MANY, RETRY_AFTER_S));
                    }
                    match first.take() {
                        None if rest.is_empty() => first = Some(data),
                        None => rest.extend_from_slice(&data),
                        Some(head) => {
                            rest.extend_from_slice(&head);
                            rest.extend_from_slice(&data);
                        }
                    }
                }
                Ok(first.unwrap_or_else(|| rest.freeze()))
            }
        }
    }
}

type Chunks = Pin<Box<dyn Stream<Item = Result<Bytes, TransportError>> + Send>>;

/// The body of a response.
pub struct ApiBody {
    inner: Inner,
    /// Values that are dropped with the body, in order of insertion.
    held: Vec<Box<dyn Any + Send>>,
    copy: Option<Arc<Mutex<BodyCopy>>>,
    /// The bytes belong to a cached document and are not counted for this answer.
    shared: bool,
}

/// A copy of a body that is sent in pieces, as long as there is room for it.
pub struct BodyCopy {
    bytes: BytesMut,
    room: Box<dyn FnMut(usize) -> bool + Send>,
    whole: bool,
}

impl BodyCopy {
    /// An empty copy. `room` decides whether the given number of further bytes may be kept.
    pub fn new(room: Box<dyn FnMut(usize) -> bool + Send>) -> Self {
        Self { bytes: BytesMut::new(), room, whole: true }
    }
    /// The bytes that were sent; `None` if there was no room for all of them.
    pub fn take(&mut self) -> Option<Bytes> {
        self.whole.then(|| self.bytes.split().freeze())
    }
    fn add(&mut self, data: &Bytes) {
        self.whole = self.whole && (self.room)(data.len());
        if self.whole {
            self.bytes.extend_from_slice(data);
        } else {
            self.bytes = BytesMut::new();
        }
    }
}

enum Inner {
    Parts(VecDeque<Bytes>),
    Stream(Chunks),
}

impl ApiBody {
    fn of(inner: Inner) -> Self {
        Self { inner, held: Vec::new(), copy: None, shared: false }
    }
    /// Keeps `held` until the body has been sent or is dropped.
    pub fn hold(mut self, held: impl Any + Send) -> Self {
        self.held.push(Box::new(held));
        self
    }
    /// Copies the pieces to `to` as they are sent.
    pub fn copy_to(mut self, to: Arc<Mutex<BodyCopy>>) -> Self {
        self.copy = Some(to);
        self
    }
    /// Whether all bytes are known already.
    pub fn is_whole(&self) -> bool {
        matches!(self.inner, Inner::Parts(_))
    }
    /// All bytes, if they are known already.
    pub fn whole(&self) -> Option<Bytes> {
        match &self.inner {
            Inner::Parts(parts) => Some(match parts.len() {
                0 => Bytes::new(),
                1 => parts[0].clone(),
                _ => parts.iter().flat_map(|p| p.iter().copied()).collect(),
            }),
            Inner::Stream(_) => None,
        }
    }
    /// Number of bytes that are held only for this answer; 0 for a cached document.
    pub fn own_bytes(&self) -> u64 {
        if self.shared { 0 } else { self.size_hint().exact().unwrap_or(0) }
    }
    /// A cached document that many requests share.
    pub fn shared(bytes: Bytes) -> Self {
        Self { shared: true, ..Self::full(bytes) }
    }
    /// A body without bytes.
    pub fn empty() -> Self {
        Self::of(Inner::Parts(VecDeque::new()))
    }
    /// A body whose bytes are all known.
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self::of(Inner::Parts(if bytes.is_empty() { VecDeque::new() } else { VecDeque::from([bytes]) }))
    }
    /// A body of known bytes in several pieces; none of them is copied.
    pub fn parts(parts: impl IntoIterator<Item = Bytes>) -> Self {
        Self::of(Inner::Parts(parts.into_iter().filter(|p| !p.is_empty()).collect()))
    }
    /// A body whose bytes are produced while it is sent.
    pub fn stream(chunks: impl Stream<Item = Result<Bytes, TransportError>> + Send + 'static) -> Self {
        Self::of(Inner::Stream(Box::pin(chunks)))
    }
}

impl Body for ApiBody {
    type Data = Bytes;
    type Error = TransportError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, TransportError>>> {
        match &mut self.inner {
            Inner::Parts(parts) => Poll::Ready(parts.pop_front().map(|p| Ok(Frame::data(p)))),
            Inner::Stream(chunks) => {
                let next = ready!(chunks.as_mut().poll_next(cx));
                if let (Some(copy), Some(Ok(data))) = (&self.copy, &next) {
                    copy.lock().add(data);
                }
                Poll::Ready(next.map(|r| r.map(Frame::data)))
            }
        }
    }
    fn is_end_stream(&self) -> bool {
        matches!(&self.inner, Inner::Parts(parts) if parts.is_empty())
    }
    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Parts(parts) => SizeHint::with_exact(parts.iter().map(|p| p.len() as u64).sum()),
            Inner::Stream(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// Most clients read a response only after they have sent the whole body.
    #[tokio::test]
    async fn a_body_that_is_too_large_is_read_and_answered() {
        for length in ["content-length: 4194304\r\n", "transfer-encoding: chunked\r\n"] {
            let (mut client, server) = tokio::io::duplex(64 * 1024);
            let handle = hyper::service::service_fn(|request: http::Request<hyper::body::Incoming>| async move {
                let read = RequestBody::Network(request.into_body()).read().await;
                let code = if read.is_err_and(|status| status.code == 413) { 413 } else { 200 };
                http::Response::builder().status(code).body(http_body_util::Empty::<Bytes>::new())
            });
            let io = hyper_util::rt::TokioIo::new(server);
            let serve = hyper::server::conn::http1::Builder::new().serve_connection(io, handle);
            let ask = async move {
                let head = format!("POST / HTTP/1.1\r\nhost: a\r\n{length}\r\n");
                client.write_all(head.as_bytes()).await.unwrap();
                let body = vec![b' '; 4 * 1024 * 1024];
                if length.contains("chunked") {
                    client.write_all(b"400000\r\n").await.unwrap();
                    client.write_all(&body).await.unwrap();
                    client.write_all(b"\r\n0\r\n\r\n").await.unwrap();
                } else {
                    client.write_all(&body).await.unwrap();
                }
                let mut answer = [0; 12];
                client.read_exact(&mut answer).await.unwrap();
                assert_eq!(&answer, b"HTTP/1.1 413");
            };
            let (served, ()) = tokio::join!(serve, ask);
            served.unwrap();
        }
    }
}
