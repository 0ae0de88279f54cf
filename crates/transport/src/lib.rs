//! The transport of one request to an API server. The API server and the client both need these few types, and neither
//! should depend on the other. Implementations are the client's `remote` over TLS, and the API server's for components
//! in its process. [`PooledTls`] is shared by all pooled TLS connections.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `watch` | objects that travel with their encoded form |
//! | `pooled` | pooled TLS connections |
//!
//! `lib.rs` has the trait. The crate is small enough to be read before it is used.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod pooled;
mod watch;

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt as _;

pub use pooled::PooledTls;
pub use watch::{SharedObject, TakesObjects, WatchItem, WatchItemStream, WatchItems};

/// A request with its whole body in memory (bodies the client sends are bounded by what it built).
pub type Request = http::Request<Bytes>;
/// A response whose body streams.
pub type Response = http::Response<Body>;
/// A streaming body.
pub type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, TransportError>;
/// The future of a [`Transport`]'s answer, boxed so that transports can be trait objects.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// A fault below HTTP: no connection, a broken stream, a time limit.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TransportError(pub String);

impl TransportError {
    /// Keeps the message of another error; its type and causes are dropped.
    pub fn new(e: impl std::fmt::Display) -> Self {
        Self(e.to_string())
    }
}

/// Carries requests under one identity. The request's URI is path and query only.
pub trait Transport: Send + Sync + 'static {
    /// Sends the request; resolves when the response's head is there.
    fn send(&self, request: Request) -> BoxFuture<Result<Response, TransportError>>;
}

impl<T: Transport + ?Sized> Transport for Arc<T> {
    fn send(&self, request: Request) -> BoxFuture<Result<Response, TransportError>> {
        (**self).send(request)
    }
}

/// A body of known bytes.
pub fn full_body(bytes: impl Into<Bytes>) -> Body {
    http_body_util::Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}
