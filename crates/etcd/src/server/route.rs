//! Routes a request by its protocol: gRPC, JSON, or plain HTTP for health and metrics.

use std::sync::Arc;

use http::{StatusCode, Version};
use hyper::body::Incoming;
use tonic::Status;
use tonic::body::Body;

use super::exchange::Grpc;
use super::face::Face;
use super::{http as plain, json, methods};

pub(super) async fn route(face: Arc<Face>, request: http::Request<Incoming>, whole: bool) -> http::Response<Body> {
    let is_grpc = request
        .headers()
        .get(http::header::CONTENT_TYPE)
        .is_some_and(|t| t.as_bytes().starts_with(b"application/grpc"));
    // Browsers send these headers, and a page may reach this address by a name that it controls; no client of etcd
    // sends them.
    if request.headers().contains_key(http::header::ORIGIN) {
        return plain::refused(StatusCode::FORBIDDEN, "requests from web pages are not allowed\n").map(Body::new);
    }
    if is_grpc && request.version() < Version::HTTP_2 {
        return plain::refused(StatusCode::HTTP_VERSION_NOT_SUPPORTED, "gRPC requires HTTP/2\n").map(Body::new);
    }
    if !is_grpc {
        if whole && json::is_asked(&request) {
            return json::answer(&face, request).await;
        }
        return plain::answer(&face, &request).map(Body::new);
    }
    if !whole {
        return Status::unimplemented("this address serves only health and metrics").into_http();
    }
    let path = request.uri().path().to_owned();
    methods::counted(&face, &path, Grpc(request)).await
}
