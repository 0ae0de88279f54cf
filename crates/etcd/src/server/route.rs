//! From a path to what answers it.

use std::sync::Arc;

use http::{StatusCode, Version};
use hyper::body::Incoming;
use tonic::body::Body;
use tonic::{Code, Status};

use super::face::Face;
use super::grpc::{bidi, server_stream, unary};
use super::{calls, http as plain, streams};
use crate::error::Error;
use crate::proto::method;

pub(super) async fn route(face: Arc<Face>, request: http::Request<Incoming>, whole: bool) -> http::Response<Body> {
    let is_grpc = request
        .headers()
        .get(http::header::CONTENT_TYPE)
        .is_some_and(|t| t.as_bytes().starts_with(b"application/grpc"));
    // A page in a browser, which a name that it controls may lead here, sends these: neither is a client of etcd.
    if request.headers().contains_key(http::header::ORIGIN) {
        return plain::refused(StatusCode::FORBIDDEN, "requests of web pages are not served\n").map(Body::new);
    }
    if is_grpc && request.version() < Version::HTTP_2 {
        return plain::refused(StatusCode::HTTP_VERSION_NOT_SUPPORTED, "gRPC requires HTTP/2\n").map(Body::new);
    }
    if !is_grpc {
        return plain::answer(&face, &request).map(Body::new);
    }
    if !whole {
        return Status::unimplemented("this address serves health and metrics alone").into_http();
    }
    let path = request.uri().path().to_owned();
    let started = face.metrics.started(&path);
    let answer = call(&face, &path, request).await;
    if let Some((service, method)) = started {
        // What a stream ends with comes in its trailers, when nobody counts any more.
        let code = answer.extensions().get::<Status>().map_or(Code::Ok, Status::code);
        face.metrics.handled(service, method, code);
    }
    answer
}

async fn call(face: &Arc<Face>, path: &str, r: http::Request<Incoming>) -> http::Response<Body> {
    let f = Arc::clone(face);
    match path {
        method::RANGE => unary(face, r, async move |q| calls::range(&f, &q)).await,
        method::PUT => unary(face, r, async move |q| calls::put(&f, q).await).await,
        method::DELETE_RANGE => unary(face, r, async move |q| calls::delete_range(&f, q).await).await,
        method::TXN => unary(face, r, async move |q| calls::txn(&f, q).await).await,
        method::COMPACT => unary(face, r, async move |q| calls::compact(&f, q).await).await,
        method::LEASE_GRANT => unary(face, r, async move |q| calls::lease_grant(&f, q).await).await,
        method::LEASE_REVOKE => unary(face, r, async move |q| calls::lease_revoke(&f, q).await).await,
        method::LEASE_TIME_TO_LIVE => unary(face, r, async move |q| Ok(calls::lease_time_to_live(&f, q))).await,
        method::LEASE_LEASES => unary(face, r, async move |q| Ok(calls::lease_leases(&f, q))).await,
        method::MEMBER_LIST => unary(face, r, async move |q| Ok(calls::member_list(&f, q))).await,
        method::MEMBER_REMOVE | method::MEMBER_UPDATE | method::MEMBER_PROMOTE => {
            unary(face, r, async move |q| calls::member_change(&f, q)).await
        }
        method::ALARM => unary(face, r, async move |q| calls::alarm(&f, q).await).await,
        method::STATUS => unary(face, r, async move |q| Ok(calls::status(&f, q))).await,
        method::DEFRAGMENT => unary(face, r, async move |q| calls::defragment(&f, q).await).await,
        method::HASH => unary(face, r, async move |q| calls::hash(&f, q)).await,
        method::HASH_KV => unary(face, r, async move |q| calls::hash_kv(&f, q)).await,
        method::MOVE_LEADER => unary(face, r, async move |q| calls::move_leader(&f, q)).await,
        method::WATCH => bidi(face, r, async move |q| Ok(streams::watch(&f, q))).await,
        method::LEASE_KEEP_ALIVE => bidi(face, r, async move |q| Ok(streams::keep_alive(&f, q))).await,
        method::SNAPSHOT => server_stream(face, r, async move |q| Ok(streams::snapshot(&f, q))).await,
        method::AUTH_STATUS => unary(face, r, async move |q| Ok(calls::auth_status(&f, q))).await,
        method::USER_LIST | method::ROLE_LIST => unary(face, r, async move |q| Ok(calls::auth_list(&f, q))).await,
        _ if path.starts_with("/etcdserverpb.Auth/") => Status::from(Error::AuthNotEnabled).into_http(),
        _ if path.starts_with("/etcdserverpb.Cluster/") => Status::from(Error::NotEnoughMembers).into_http(),
        _ => Status::unimplemented(format!("unknown method {path}")).into_http(),
    }
}
