//! Transports of a call: gRPC, or JSON over HTTP. Each call is written once for both.

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};
use hyper::body::Incoming;
use prost::Message;
use tonic::Status;
use tonic::body::Body;

use super::face::Face;
use super::grpc;

/// The requests of a streaming call.
pub(super) type Requests<Q> = BoxStream<'static, Result<Q, Status>>;

/// The future of an answer.
pub(super) type Answering = BoxFuture<'static, http::Response<Body>>;

/// One call. Its future is boxed, since the compiler cannot prove that a generic one is `Send`.
pub(super) trait Exchange: Sized + Send + 'static {
    /// One request, one answer.
    fn unary<Q, A, Fut>(self, face: Arc<Face>, call: impl FnOnce(Q) -> Fut + Send + 'static) -> Answering
    where
        Q: Message + Default + Send + 'static,
        A: Message + Default + Send + 'static,
        Fut: Future<Output = Result<A, Status>> + Send + 'static;

    /// One request, many answers.
    fn server_stream<Q, A, S>(self, face: Arc<Face>, call: impl FnOnce(Q) -> S + Send + 'static) -> Answering
    where
        Q: Message + Default + Send + 'static,
        A: Message + Default + Send + 'static,
        S: Stream<Item = Result<A, Status>> + Send + 'static;

    /// Many requests, many answers.
    fn bidi<Q, A, S>(self, face: Arc<Face>, call: impl FnOnce(Requests<Q>) -> S + Send + 'static) -> Answering
    where
        Q: Message + Default + Send + 'static,
        A: Message + Default + Send + 'static,
        S: Stream<Item = Result<A, Status>> + Send + 'static;

    /// Returns the answer for an unknown call.
    fn refuse(self, status: Status) -> http::Response<Body>;
}

/// A call by gRPC.
pub(super) struct Grpc(pub http::Request<Incoming>);

impl Exchange for Grpc {
    fn unary<Q, A, Fut>(self, face: Arc<Face>, call: impl FnOnce(Q) -> Fut + Send + 'static) -> Answering
    where
        Q: Message + Default + Send + 'static,
        A: Message + Default + Send + 'static,
        Fut: Future<Output = Result<A, Status>> + Send + 'static,
    {
        Box::pin(async move { grpc::unary(&face, self.0, call).await })
    }

    fn server_stream<Q, A, S>(self, face: Arc<Face>, call: impl FnOnce(Q) -> S + Send + 'static) -> Answering
    where
        Q: Message + Default + Send + 'static,
        A: Message + Default + Send + 'static,
        S: Stream<Item = Result<A, Status>> + Send + 'static,
    {
        let call = |request| std::future::ready(Ok(call(request)));
        Box::pin(async move { grpc::server_stream(&face, self.0, call).await })
    }

    fn bidi<Q, A, S>(self, face: Arc<Face>, call: impl FnOnce(Requests<Q>) -> S + Send + 'static) -> Answering
    where
        Q: Message + Default + Send + 'static,
        A: Message + Default + Send + 'static,
        S: Stream<Item = Result<A, Status>> + Send + 'static,
    {
        let call = |requests: tonic::Streaming<Q>| std::future::ready(Ok(call(requests.boxed())));
        Box::pin(async move { grpc::bidi(&face, self.0, call).await })
    }

    fn refuse(self, status: Status) -> http::Response<Body> {
        status.into_http()
    }
}
