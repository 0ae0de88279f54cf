//! HTTP without TLS, for configured servers such as a scheduler's extenders. Never for the API.
use bytes::Bytes;
use http::Uri;
use http::uri::{Authority, Scheme};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kelson_transport::BoxFuture;

use super::dial::{chain, tcp};
use crate::{Request, Response, Transport, TransportError};

/// Speaks to one server, with nothing that proves who asks.
pub struct Plain {
    authority: Authority,
    pool: Pool<HttpConnector, Full<Bytes>>,
}

impl Plain {
    /// Creates a client for a host and port.
    pub fn new(authority: Authority) -> Self {
        Self { authority, pool: Pool::builder(TokioExecutor::new()).build(tcp()) }
    }
}

impl Transport for Plain {
    fn send(&self, mut request: Request) -> BoxFuture<Result<Response, TransportError>> {
        let mut parts = request.uri().clone().into_parts();
        (parts.scheme, parts.authority) = (Some(Scheme::HTTP), Some(self.authority.clone()));
        let pool = self.pool.clone();
        Box::pin(async move {
            *request.uri_mut() = Uri::from_parts(parts).map_err(TransportError::new)?;
            let response = pool.request(request.map(Full::new)).await.map_err(|e| TransportError(chain(&e)))?;
            Ok(response.map(|b| b.map_err(|e| TransportError(chain(&e))).boxed_unsync()))
        })
    }
}
