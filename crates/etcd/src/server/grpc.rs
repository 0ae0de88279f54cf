//! Adapts asynchronous functions to the services that gRPC's codec calls.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::Stream;
use hyper::body::Incoming;
use parking_lot::Mutex;
use prost::Message;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::face::Face;
use super::received::Counted;
use super::unread::Pieces;

/// The maximum size of a message in addition to the request limit, as in etcd.
const OVERHEAD_BYTES: usize = 512 << 10;

type Answered<A> = Pin<Box<dyn Future<Output = Result<Response<A>, Status>> + Send>>;

/// A service that is called once.
struct Once<F>(Option<F>);

impl<Q, A, F, Fut> tower_service::Service<Request<Q>> for Once<F>
where
    F: FnOnce(Q) -> Fut,
    Fut: Future<Output = Result<A, Status>> + Send + 'static,
    A: 'static,
{
    type Response = Response<A>;
    type Error = Status;
    type Future = Answered<A>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        match self.0.take() {
            Some(call) => {
                let answer = call(request.into_inner());
                Box::pin(async { answer.await.map(Response::new) })
            }
            None => Box::pin(async { Err(Status::internal("was called twice")) }),
        }
    }
}

fn codec<Q, A>(face: &Face) -> Grpc<ProstCodec<A, Q>>
where
    Q: Message + Default + Send + 'static,
    A: Message + Default + Send + 'static,
{
    Grpc::new(ProstCodec::default()).max_decoding_message_size(message_bytes_max(face))
}

fn message_bytes_max(face: &Face) -> usize {
    face.store.shared().limits().request_bytes_max.saturating_add(OVERHEAD_BYTES)
}

/// Counts the bytes of a request while they are received.
fn counted(face: &Face, request: http::Request<Incoming>) -> http::Request<Counted<Incoming>> {
    request.map(|body| Counted::new(body, &face.received, message_bytes_max(face)))
}

/// Handles a call with one request and one answer.
pub(super) async fn unary<Q, A, Fut>(
    face: &Face,
    request: http::Request<Incoming>,
    call: impl FnOnce(Q) -> Fut,
) -> http::Response<Body>
where
    Q: Message + Default + Send + 'static,
    A: Message + Default + Send + 'static,
    Fut: Future<Output = Result<A, Status>> + Send + 'static,
{
    let room = Arc::new(Mutex::new(None));
    let (taken, unread) = (Arc::clone(&room), &face.unread);
    let charged = |request| {
        let (answer, unread) = (call(request), Arc::clone(unread));
        async move {
            let answer = answer.await?;
            *taken.lock() = unread.take(answer.encoded_len()).await?;
            Ok(answer)
        }
    };
    let answer = codec::<Q, A>(face).unary(Once(Some(charged)), counted(face, request)).await;
    let room = room.lock().take();
    answer.map(|body| Pieces::body(body, room))
}

/// Handles a call with one request and many answers.
pub(super) async fn server_stream<Q, A, S, Fut>(
    face: &Arc<Face>,
    request: http::Request<Incoming>,
    call: impl FnOnce(Q) -> Fut,
) -> http::Response<Body>
where
    Q: Message + Default + Send + 'static,
    A: Message + Default + Send + 'static,
    S: Stream<Item = Result<A, Status>> + Send + 'static,
    Fut: Future<Output = Result<S, Status>> + Send + 'static,
{
    codec::<Q, A>(face).server_streaming(Once(Some(call)), counted(face, request)).await
}

/// Handles a call with many requests and many answers.
pub(super) async fn bidi<Q, A, S, Fut>(
    face: &Arc<Face>,
    request: http::Request<Incoming>,
    call: impl FnOnce(Streaming<Q>) -> Fut + Send,
) -> http::Response<Body>
where
    Q: Message + Default + Send + 'static,
    A: Message + Default + Send + 'static,
    S: Stream<Item = Result<A, Status>> + Send + 'static,
    Fut: Future<Output = Result<S, Status>> + Send + 'static,
{
    codec::<Q, A>(face).streaming(Once(Some(call)), counted(face, request)).await
}
