//! Dispatches a method by its name, for both transports.

use std::sync::Arc;

use tonic::body::Body;
use tonic::{Code, Status};

use super::exchange::Exchange;
use super::face::Face;
use super::{calls, concurrency, streams};
use crate::error::Error;
use crate::proto::method;

/// Answers a call of the protocol and counts it.
pub(super) async fn counted(face: &Arc<Face>, path: &str, exchange: impl Exchange) -> http::Response<Body> {
    let started = face.metrics.started(path);
    let answer = call(face, path, exchange).await;
    if let Some((service, method)) = started {
        // The status of a stream is in its trailers, which are sent after counting.
        let code = answer.extensions().get::<Status>().map_or(Code::Ok, Status::code);
        face.metrics.handled(service, method, code);
    }
    answer
}

async fn call(face: &Arc<Face>, path: &str, r: impl Exchange) -> http::Response<Body> {
    let (f, own) = (Arc::clone(face), Arc::clone(face));
    match path {
        method::RANGE => r.unary(own, move |q| async move { calls::range(&f, &q) }).await,
        method::PUT => r.unary(own, move |q| async move { calls::put(&f, q).await }).await,
        method::DELETE_RANGE => r.unary(own, move |q| async move { calls::delete_range(&f, q).await }).await,
        method::TXN => r.unary(own, move |q| async move { calls::txn(&f, q).await }).await,
        method::COMPACT => r.unary(own, move |q| async move { calls::compact(&f, q).await }).await,
        method::LEASE_GRANT => r.unary(own, move |q| async move { calls::lease_grant(&f, q).await }).await,
        method::LEASE_REVOKE => r.unary(own, move |q| async move { calls::lease_revoke(&f, q).await }).await,
        method::LEASE_TIME_TO_LIVE => r.unary(own, move |q| async move { Ok(calls::lease_time_to_live(&f, q)) }).await,
        method::LEASE_LEASES => r.unary(own, move |q| async move { Ok(calls::lease_leases(&f, q)) }).await,
        method::MEMBER_LIST => r.unary(own, move |q| async move { Ok(calls::member_list(&f, q)) }).await,
        method::MEMBER_REMOVE | method::MEMBER_UPDATE | method::MEMBER_PROMOTE => {
            r.unary(own, move |q| async move { calls::member_change(&f, q) }).await
        }
        method::ALARM => r.unary(own, move |q| async move { calls::alarm(&f, q).await }).await,
        method::STATUS => r.unary(own, move |q| async move { Ok(calls::status(&f, q)) }).await,
        method::DEFRAGMENT => r.unary(own, move |q| async move { calls::defragment(&f, q).await }).await,
        method::HASH => r.unary(own, move |q| async move { calls::hash(&f, q) }).await,
        method::HASH_KV => r.unary(own, move |q| async move { calls::hash_kv(&f, q) }).await,
        method::MOVE_LEADER => r.unary(own, move |q| async move { calls::move_leader(&f, q) }).await,
        method::WATCH => r.bidi(own, move |q| streams::watch(&f, q)).await,
        method::LEASE_KEEP_ALIVE => r.bidi(own, move |q| streams::keep_alive(&f, q)).await,
        method::SNAPSHOT => r.server_stream(own, move |q| streams::snapshot(&f, q)).await,
        method::LOCK => r.unary(own, move |q| concurrency::lock(f, q)).await,
        method::UNLOCK => r.unary(own, move |q| concurrency::unlock(f, q)).await,
        method::CAMPAIGN => r.unary(own, move |q| concurrency::campaign(f, q)).await,
        method::PROCLAIM => r.unary(own, move |q| concurrency::proclaim(f, q)).await,
        method::RESIGN => r.unary(own, move |q| concurrency::resign(f, q)).await,
        method::LEADER => r.unary(own, move |q| async move { concurrency::leader(&f, &q) }).await,
        method::OBSERVE => r.server_stream(own, move |q| concurrency::observe(&f, &q)).await,
        method::AUTH_STATUS => r.unary(own, move |q| async move { Ok(calls::auth_status(&f, q)) }).await,
        method::AUTH_DISABLE => r.unary(own, move |q| async move { Ok(calls::auth_disable(&f, q)) }).await,
        method::USER_LIST | method::ROLE_LIST => {
            r.unary(own, move |q| async move { Ok(calls::auth_list(&f, q)) }).await
        }
        _ if path.starts_with("/etcdserverpb.Auth/") => r.refuse(calls::auth_refused(path)),
        _ if path.starts_with("/etcdserverpb.Cluster/") => r.refuse(Error::NotEnoughMembers.into()),
        _ => r.refuse(Status::unimplemented(format!("unknown method {path}"))),
    }
}
