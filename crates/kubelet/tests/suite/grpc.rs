//! A gRPC server on a Unix socket, like those of drivers and plugins, or on a port, with responses that tests define.
#![allow(dead_code, reason = "each test that includes this file uses a part of it")]

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use futures::stream::{BoxStream, StreamExt as _};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};

/// Size of the compression flag and the length before a message.
pub const PREFIX_BYTES: usize = 5;

/// The response of a server as a stream of frames.
pub type Frames = BoxStream<'static, Frame<Bytes>>;

/// Encodes a message for a body: uncompressed, with its length.
pub fn framed(message: &[u8]) -> Bytes {
    let mut out = vec![0];
    out.extend(u32::try_from(message.len()).expect("short").to_be_bytes());
    out.extend(message);
    out.into()
}

/// The trailers of a response with a gRPC status.
pub fn ended(status: &'static str) -> Frame<Bytes> {
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static(status));
    Frame::trailers(trailers)
}

/// Serves calls with `answer`, which gets the path and the message, until the test's runtime ends.
pub fn listen<F>(socket: &Path, answer: F)
where
    F: Fn(&str, &[u8]) -> Frames + Send + Sync + 'static,
{
    let listener = tokio::net::UnixListener::bind(socket).expect("a socket");
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            tokio::spawn(serve(connection, Arc::clone(&answer)));
        }
    });
}

/// The same on a port.
pub fn listen_at<F>(listener: tokio::net::TcpListener, answer: F)
where
    F: Fn(&str, &[u8]) -> Frames + Send + Sync + 'static,
{
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            tokio::spawn(serve(connection, Arc::clone(&answer)));
        }
    });
}

async fn serve<C, F>(connection: C, answer: Arc<F>)
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(&str, &[u8]) -> Frames + Send + Sync + 'static,
{
    let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
        let answer = Arc::clone(&answer);
        async move {
            let path = request.uri().path().to_owned();
            let mut message = request.into_body().collect().await?.to_bytes();
            message.advance(PREFIX_BYTES);
            let body = StreamBody::new(answer(&path, &message).map(Ok::<_, Infallible>));
            let answer = http::Response::builder().header("content-type", "application/grpc");
            Ok::<_, hyper::Error>(answer.body(body).expect("a response"))
        }
    });
    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    drop(server.serve_connection(TokioIo::new(connection), service).await);
}
