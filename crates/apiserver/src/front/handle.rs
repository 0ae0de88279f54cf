//! The way of a request, from its head to its answer: route, authenticate, authorize, read the body, limit in flight, serve. Panics end
//! one request, not the server.
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt as _;
use http::Method;
use http::request::Parts;
use kelson_auth::{Attributes, Credentials, UserInfo, authenticate};
use kelson_meta::{FieldSelector, LabelSelector, Status};
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use tokio::time::Instant;

use crate::front::{dispatch, heavy};
use crate::request::answer::{self, Answer};
use crate::request::body::{RETRY_AFTER_S, RequestBody, TOO_MANY};
use crate::request::negotiate::{self, Accepted};
use crate::request::query::Query;
use crate::request::route::{RequestInfo, route};
use crate::shared::Server;
use crate::shared::context::RequestContext;
use crate::shared::room::{Class, Place};

/// How a request came.
pub enum Identity {
    /// Over the network, with the client's certificate chain (its key is proven, its issuer is not).
    Network(Arc<[CertificateDer<'static>]>),
    /// From a component of this process.
    Known(Arc<UserInfo>),
}

/// Names a request.
const AUDIT_ID: http::HeaderName = http::HeaderName::from_static("audit-id");

/// Serves one request.
pub async fn handle(server: &Arc<Server>, mut parts: Parts, body: RequestBody, identity: Identity) -> Answer {
    let started = Instant::now();
    let query = Query::parse(parts.uri.query());
    let info = route(&parts.method, parts.uri.path(), &query);
    let accepted = plain(&parts, &query);
    let upgrade = parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
    let labels = server.metrics.labels(&info, is_served(server, &info));
    let audit_id = audit_id(&parts.headers);
    let served = serve(server, parts, query, info, body, identity, upgrade);
    let (answer, warnings) = match AssertUnwindSafe(served).catch_unwind().await {
        Ok(served) => served,
        Err(_) => {
            // The panic hook has logged where and why.
            let status = Status::internal("the server has a fault that its log names");
            (Err(status), None)
        }
    };
    let mut answer = answer.unwrap_or_else(|status| answer::status(&status, &accepted));
    if let Some(cx) = warnings {
        cx.put_warnings(answer.headers_mut());
    }
    answer.headers_mut().insert(AUDIT_ID, audit_id);
    server.metrics.done(labels, answer.status(), started.elapsed());
    answer
}

/// Whether the catalog has what a path names.
fn is_served(server: &Server, info: &RequestInfo) -> bool {
    let found = server.catalog.find(&info.group, &info.version, &info.resource);
    found.is_some_and(|served| info.subresource.is_empty() || served.sub(&info.subresource).is_some())
}

/// Names one request in logs on both sides; a client may bring its own.
fn audit_id(headers: &http::HeaderMap) -> http::HeaderValue {
    const AUDIT_ID_BYTES_MAX: usize = 64;
    let given = headers.get(AUDIT_ID).filter(|v| !v.is_empty() && v.len() <= AUDIT_ID_BYTES_MAX).cloned();
    given.unwrap_or_else(|| {
        let mut buffer = uuid::Uuid::encode_buffer();
        let text = uuid::Uuid::new_v4().hyphenated().encode_lower(&mut buffer);
        http::HeaderValue::from_str(text).unwrap_or(http::HeaderValue::from_static("-"))
    })
}

/// The form of errors: what the client accepts, without tables.
fn plain(parts: &Parts, query: &Query) -> Accepted {
    let accepted = negotiate::accept(&parts.headers, query, true).unwrap_or(Accepted::JSON);
    Accepted { view: negotiate::View::Whole, ..accepted }
}

async fn serve(
    server: &Arc<Server>,
    mut parts: Parts,
    query: Query,
    info: RequestInfo,
    body: RequestBody,
    identity: Identity,
    upgrade: Option<hyper::upgrade::OnUpgrade>,
) -> (Result<Answer, Status>, Option<Arc<RequestContext>>) {
    let in_process = matches!(identity, Identity::Known(_));
    let user = match identify(server, &parts, identity).await {
        Ok(user) => user,
        Err(status) => return (Err(status), None),
    };
    // From here on nobody can log the credentials or pass them on to a backend.
    server.auth.authenticator.strip(&mut parts.headers);
    let user = match impersonate(server, &mut parts, user).await {
        Ok(user) => user,
        Err(status) => return (Err(status), None),
    };
    let cx = Arc::new(RequestContext {
        server: Arc::clone(server),
        method: parts.method,
        uri: parts.uri,
        headers: parts.headers,
        query,
        info,
        user,
        upgrade: Mutex::new(upgrade),
        warnings: Mutex::default(),
        admission: Mutex::default(),
    });
    let answer = limited(&cx, body, in_process).await;
    (answer, Some(cx))
}

async fn identify(server: &Server, parts: &Parts, identity: Identity) -> Result<Arc<UserInfo>, Status> {
    let certificates = match identity {
        Identity::Known(user) => return Ok(user),
        Identity::Network(certificates) => certificates,
    };
    let credentials = Credentials { headers: &parts.headers, certificates: &certificates, path: parts.uri.path() };
    server.auth.authenticator.authenticate(&credentials).await.map(|found| found.user).map_err(|why| {
        server.metrics.rejected_credentials();
        if let Some(untold) = server.rejections.allow() {
            let path = shortened(parts.uri.path());
            tracing::info!(path, %why, untold, "unable to authenticate the request");
        }
        Status::unauthorized()
    })
}

/// The beginning of a text that a client chose, for the log.
fn shortened(text: &str) -> &str {
    const LOGGED_BYTES_MAX: usize = 256;
    &text[..text.floor_char_boundary(LOGGED_BYTES_MAX)]
}

/// Makes the request somebody else's, where its headers ask for it and its sender may.
async fn impersonate(server: &Server, parts: &mut Parts, user: Arc<UserInfo>) -> Result<Arc<UserInfo>, Status> {
    let other = authenticate::impersonate(&parts.headers, &user, server.authorizer.as_ref()).await?;
    Ok(other.map_or(user, |other| {
        authenticate::strip_impersonation(&mut parts.headers);
        Arc::new(other)
    }))
}

/// Whether the request may last: it is not counted in flight and has no time limit.
pub fn is_long_running(info: &RequestInfo, query: &Query) -> bool {
    info.verb == "watch"
        || matches!(info.subresource.as_str(), "exec" | "attach" | "portforward" | "proxy")
        || (info.subresource == "log" && query.flag("follow"))
}

async fn limited(cx: &Arc<RequestContext>, body: RequestBody, in_process: bool) -> Result<Answer, Status> {
    let server = &cx.server;
    let class = Class::of(&cx.user, in_process);
    authorize(cx).await?;
    // The body is here before a place is taken: whoever sends it slowly holds nothing but a connection.
    let mut bytes = server.bodies.enter(Arc::clone(&cx.user), class);
    let body = read_body(cx, body, &mut bytes).await?;
    if is_long_running(&cx.info, &cx.query) {
        return dispatch::dispatch(cx, body).await;
    }
    let reads = matches!(cx.method, Method::GET | Method::HEAD | Method::OPTIONS);
    let room = if reads { &server.reads } else { &server.writes };
    let mut place = room.enter(Arc::clone(&cx.user), class);
    if !place.take(1) {
        server.metrics.turned_away(reads);
        return Err(Status::too_many_requests(TOO_MANY, RETRY_AFTER_S));
    }
    match tokio::time::timeout(server.config.request_timeout, heavy::dispatch(cx, body)).await {
        Ok(answer) => answer,
        Err(_) => Err(Status::timeout("request did not complete within the allowed duration", 0)),
    }
}

/// Reads a body that comes over the network.
async fn read_body(cx: &RequestContext, body: RequestBody, bytes: &mut Place) -> Result<RequestBody, Status> {
    if matches!(body, RequestBody::Whole(_)) || body.is_empty() {
        return Ok(body);
    }
    let read = body.read_within(|n| bytes.take(n));
    match tokio::time::timeout(cx.server.config.request_timeout, read).await {
        Ok(read) => read.map(RequestBody::Whole),
        Err(_) => Err(Status::timeout("the request's body did not come within the allowed duration", 0)),
    }
}

async fn authorize(cx: &RequestContext) -> Result<(), Status> {
    let i = &cx.info;
    let selectors = match i.verb {
        "list" | "watch" | "deletecollection" => (
            FieldSelector::parse(cx.query.text("fieldSelector")).ok().filter(|s| !s.is_everything()),
            LabelSelector::parse(cx.query.text("labelSelector")).ok().filter(|s| !s.is_everything()),
        ),
        _ => (None, None),
    };
    let attributes = Attributes {
        user: &cx.user,
        verb: verb(i),
        namespace: &i.namespace,
        group: &i.group,
        version: &i.version,
        resource: &i.resource,
        subresource: &i.subresource,
        name: &i.name,
        path: cx.uri.path(),
        is_resource: i.is_resource,
        field_selector: selectors.0.as_ref(),
        label_selector: selectors.1.as_ref(),
    };
    cx.server.authorizer.check(&attributes).await
}

/// Running a command is `create`, whatever method the upgrade came by (kubernetes#78741), and by whichever way.
fn verb(i: &RequestInfo) -> &'static str {
    /// What of a kubelet runs commands or opens connections, by the first part of its path.
    const RUNS: [&str; 5] = ["exec", "attach", "portforward", "run", "cri"];
    match (i.resource.as_str(), i.subresource.as_str()) {
        ("pods", "exec" | "attach" | "portforward") if i.group.is_empty() && i.verb == "get" => "create",
        ("nodes", "proxy") if i.group.is_empty() => {
            // A part may hold slashes of its own, which the kubelet sees when it has unescaped them.
            let mut parts = i.tail.iter().flat_map(|part| part.split('/')).filter(|part| !matches!(*part, "" | "."));
            match parts.next() {
                Some(first) if RUNS.iter().any(|run| first.eq_ignore_ascii_case(run)) => "create",
                _ => i.verb,
            }
        }
        _ => i.verb,
    }
}
