//! One endpoint of the server. Each is a file with its `serve`, and a row in the table of `routes`.
use std::pin::Pin;
use std::sync::Arc;

use http::{Method, Request, Response};
use hyper::body::Incoming;
use kelson_meta::url::{Query, decode};

use super::answer::Body;
use super::state::ServerState;

/// An answer on its way.
pub type Answer = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// A request whose path has been read.
pub struct Call {
    /// The decoded segments of the path below the endpoint's root.
    pub below: Vec<String>,
    /// The decoded parameters.
    pub query: Query,
    /// Method, headers and body.
    pub request: Request<Incoming>,
}

/// An endpoint: everything below one first segment of the path.
pub struct Endpoint {
    /// The first segment of its paths.
    pub root: &'static str,
    /// Subresources of the node any of which authorizes it.
    pub subresources: &'static [&'static str],
    /// Whether it runs something in a pod: then it is authorized as `create` whatever its method, since a WebSocket begins
    /// as a GET.
    pub acts: bool,
    /// Whether it is for those who look for faults, and goes with `enableDebuggingHandlers`.
    pub debugs: bool,
    /// Serves a request that is allowed.
    pub serve: fn(Arc<ServerState>, Call) -> Answer,
}

/// The segments of a path, decoded, without empty ones; `None` for a path that no client of good faith sends: with a
/// broken escape, dots as segments, or a slash or zero byte hidden in one.
pub fn segments(path: &str) -> Option<Vec<String>> {
    let decoded: Vec<String> = path.split('/').filter(|s| !s.is_empty()).map(decode).collect::<Option<_>>()?;
    let bad = |s: &String| matches!(s.as_str(), "." | "..") || s.contains(['/', '\0']);
    (!decoded.iter().any(bad)).then_some(decoded)
}

/// The verb of a request on a node's subresource.
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
