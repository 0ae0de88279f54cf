//! Bodies: what comes in, read whole within a limit; what goes out, whole, in parts, or streamed as it is made.
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

/// So much of a larger one is taken and thrown away before it is refused.
const DISCARDED_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// For at most so long.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// What a client is told that finds no room.
pub const TOO_MANY: &str = "Too many requests, please try again later.";
/// Seconds after which it may try again.
pub const RETRY_AFTER_S: i32 = 1;

/// A request's body, over the network or from a component of this process.
pub enum RequestBody {
    /// From a connection.
    Network(hyper::body::Incoming),
    /// Bytes that were read before.
    Whole(Bytes),
}

/// Takes what a client still sends of a body that is too large, within bounds: most read an answer only when they have sent
/// everything, and a connection that is closed before that loses the answer.
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
    // A client that sends no more meanwhile reads.
    let _in_time = tokio::time::timeout(DISCARD_TIMEOUT, all).await;
}

impl RequestBody {
    /// Takes what the client sends of a body that is not wanted, within bounds, so that it reads its refusal. One who waits for
    /// `100 Continue` sends nothing.
    pub async fn discard(self, headers: &HeaderMap) {
        if let Self::Network(mut incoming) = self
            && !incoming.is_end_stream()
            && !headers.contains_key(header::EXPECT)
        {
            discard(&mut incoming).await;
        }
    }

    /// Reads it all.
    ///
    /// # Errors
    /// 413 beyond [`REQUEST_BODY_BYTES_MAX`]; 400 when the client breaks off.
    pub async fn read(self) -> Result<Bytes, Status> {
        self.read_within(|_| true).await
    }

    /// Whether there is certainly nothing in it.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Network(incoming) => incoming.is_end_stream(),
        }
    }

    /// Reads it all, while `room` has room for the bytes that came.
    ///
    /// # Errors
    /// As [`RequestBody::read`], and 429 without room.
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

/// An answer's body.
pub struct ApiBody {
    inner: Inner,
    /// Is dropped with the body, the last first.
    held: Vec<Box<dyn Any + Send>>,
    copy: Option<Arc<Mutex<Copied>>>,
    /// The bytes are held elsewhere too.
    shared: bool,
}

/// A copy of a body that is sent in pieces, as long as there is room for it.
pub struct Copied {
    bytes: BytesMut,
    room: Box<dyn FnMut(usize) -> bool + Send>,
    whole: bool,
}

impl Copied {
    /// Nothing yet. `room` says whether there is room for so many bytes more.
    pub fn new(room: Box<dyn FnMut(usize) -> bool + Send>) -> Self {
        Self { bytes: BytesMut::new(), room, whole: true }
    }
    /// What was sent; `None` when there was no room for all of it.
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
    /// The same body, which keeps `held` until it was sent or is given up.
    pub fn holding(mut self, held: impl Any + Send) -> Self {
        self.held.push(Box::new(held));
        self
    }
    /// The same body, whose pieces are copied as they are sent.
    pub fn copying(mut self, to: Arc<Mutex<Copied>>) -> Self {
        self.copy = Some(to);
        self
    }
    /// Whether all of it is known already.
    pub fn is_whole(&self) -> bool {
        matches!(self.inner, Inner::Parts(_))
    }
    /// All of it, where it is known already.
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
    /// Bytes that are held for this answer alone; none of a document that is kept for all who ask.
    pub fn own_bytes(&self) -> u64 {
        if self.shared { 0 } else { self.size_hint().exact().unwrap_or(0) }
    }
    /// A document that is kept whoever asks for it.
    pub fn shared(bytes: Bytes) -> Self {
        Self { shared: true, ..Self::full(bytes) }
    }
    /// A body that ends at once.
    pub fn empty() -> Self {
        Self::of(Inner::Parts(VecDeque::new()))
    }
    /// A body of bytes that are all there.
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self::of(Inner::Parts(if bytes.is_empty() { VecDeque::new() } else { VecDeque::from([bytes]) }))
    }
    /// Known bytes in several pieces, none of them copied.
    pub fn parts(parts: impl IntoIterator<Item = Bytes>) -> Self {
        Self::of(Inner::Parts(parts.into_iter().filter(|p| !p.is_empty()).collect()))
    }
    /// Bytes as they are made.
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

    /// Most clients look for an answer when they have sent everything.
    #[tokio::test]
    async fn who_sends_too_much_sends_it_and_is_answered() {
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
