//! The interface of endpoints. Each endpoint is a file with a function `serve` and a row in the table of `routes`.
use std::pin::Pin;
use std::sync::Arc;

use http::{Method, Request, Response};
use hyper::body::Incoming;
use kelson_meta::url::{Query, decode};

use super::answer::Body;
use super::state::ServerState;

/// Future of a response.
pub type Answer = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// A request with its decoded path and query.
pub struct Call {
    /// Decoded path segments below the endpoint's root.
    pub below: Vec<String>,
    /// Decoded query parameters.
    pub query: Query,
    /// Method, headers and body.
    pub request: Request<Incoming>,
}

/// An endpoint: all paths with the same first segment.
pub struct Endpoint {
    /// First path segment.
    pub root: &'static str,
    /// Subresources of `nodes`; permission for any of them authorizes the request.
    pub subresources: &'static [&'static str],
    /// Whether it runs something in a pod. It is then authorized with the verb `create` for every method, because a WebSocket starts with
    /// GET.
    pub acts: bool,
    /// Whether it is for debugging and depends on `enableDebuggingHandlers`.
    pub debugs: bool,
    /// Serves an authorized request.
    pub serve: fn(Arc<ServerState>, Call) -> Answer,
}

/// Splits a path into decoded segments, without empty ones. `None` for a malformed or suspicious path: an invalid escape, dot segments, or
/// an escaped slash or zero byte.
pub fn segments(path: &str) -> Option<Vec<String>> {
    let decoded: Vec<String> = path.split('/').filter(|s| !s.is_empty()).map(decode).collect::<Option<_>>()?;
    let bad = |s: &String| matches!(s.as_str(), "." | "..") || s.contains(['/', '\0']);
    (!decoded.iter().any(bad)).then_some(decoded)
}

/// The verb for authorization.
pub fn verb(endpoint: Option<&Endpoint>, method: &Method) -> &'static str {
    if endpoint.is_some_and(|e| e.acts) {
        return "create";
    }
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    }
}
