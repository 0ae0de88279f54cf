//! The path of a request from its head to its response: read the head, identify, audit, then authorize, flow control and dispatch.
//! A panic ends one request, not the server.
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use kelson_admission::Notes;
use kelson_meta::Status;
use kelson_meta::url::Query;
use kelson_traces::{Current, child};
use kelson_transport::TakesObjects;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::front::audit::{self, AuditedRequest, Trail};
use crate::front::identify::{self, Authenticated, Identity};
use crate::front::{authorize, dispatch, flow, heavy, spans};
use crate::request::answer::{self, Answer};
use crate::request::audit::has_response_started_stage;
use crate::request::body::RequestBody;
use crate::request::negotiate::{Accepted, Accepts, Unacceptable};
use crate::request::offer;
use crate::request::route::{RequestInfo, route};
use crate::request::routes::Route;
use crate::request::selectors::ParsedSelectors;
use crate::shared::Server;
use crate::shared::context::RequestContext;
use crate::shared::metrics::Labels;
use crate::shared::pool::Class;

/// Serves one request. Errors become a Status in the response.
pub async fn handle(server: &Arc<Server>, mut parts: Parts, body: RequestBody, identity: Identity) -> Answer {
    let started = Instant::now();
    let query = Query::parse(parts.uri.query());
    let selectors = ParsedSelectors::parse(&query);
    let info = route(&parts.method, parts.uri.path(), &query, &selectors);
    let of_peers = || server.peers.as_ref().and_then(|peers| peers.find(&info, &parts.headers));
    let route = server.routes.find(&info, parts.uri.path()).or_else(of_peers);
    let accepts = Accepts::of(&parts.headers, &query);
    let (accepted, errors_as) = (accepts.choose(offer::offer_for(&info, route.as_ref())), accepts.of_errors());
    drop(accepts);
    let labels = Labels::new(&info, route.as_ref());
    let audit_id = audit_id(&parts.headers);
    let trace = Current::default();
    let mut head =
        Head { started, query, selectors, info, accepted, errors_as, route, audit_id: audit_id.clone(), trace };
    let authenticated = AssertUnwindSafe(identify::authenticate(server, &mut parts, &identity)).catch_unwind().await;
    let mut answer = match authenticated.unwrap_or_else(|_| Err(panic_status())) {
        Err(status) => {
            Trail::record_unauthenticated(server, head.audited_request(&parts, &identity)).await;
            body.discard(&parts.headers).await;
            answer::status(&status, &errors_as)
        }
        Ok(authenticated) => {
            let sender = (&*authenticated.user, identity.peer());
            let span = spans::start_request(server, &parts, &head.info, &head.audit_id, sender);
            head.trace = span.current();
            let answer = match Trail::begin(server, head.audited_request(&parts, &identity), &authenticated.user).await
            {
                Err(status) => answer::status(&status, &errors_as),
                Ok(trail) => serve_identified(server, parts, body, head, (authenticated, &identity), trail).await,
            };
            spans::end(span, answer)
        }
    };
    answer.headers_mut().insert(audit::AUDIT_ID, audit_id);
    server.metrics.count_request(&labels, answer.status(), started.elapsed());
    answer
}

/// The parsed head of a request.
struct Head {
    /// When the request arrived.
    started: Instant,
    query: Query,
    selectors: ParsedSelectors,
    info: RequestInfo,
    accepted: Result<Accepted, Unacceptable>,
    errors_as: Accepted,
    route: Option<Route>,
    audit_id: HeaderValue,
    /// The request's trace span.
    trace: Current,
}

impl Head {
    fn audited_request<'a>(&'a self, parts: &'a Parts, identity: &Identity) -> AuditedRequest<'a> {
        let long = has_response_started_stage(&self.info);
        AuditedRequest { parts, info: &self.info, audit_id: &self.audit_id, peer: identity.peer(), long }
    }
}

/// Serves an authenticated request as the user that the sender impersonates, if any.
async fn serve_identified(
    server: &Arc<Server>,
    mut parts: Parts,
    body: RequestBody,
    head: Head,
    (Authenticated { user, remarks }, identity): (Authenticated, &Identity),
    mut trail: Option<Trail>,
) -> Answer {
    let errors_as = head.errors_as;
    let other = identify::impersonate(server, &mut parts, &head.info, &head.selectors, &user);
    let other = AssertUnwindSafe(other).catch_unwind().await;
    let user = match other.unwrap_or_else(|_| Err(panic_status())) {
        Err(status) => {
            body.discard(&parts.headers).await;
            let answer = answer::status(&status, &errors_as);
            return match trail {
                Some(trail) => trail.end(&Notes::default(), answer, false).await,
                None => answer,
            };
        }
        Ok(None) => user,
        Ok(Some(other)) => {
            if let Some(trail) = &mut trail {
                trail.set_impersonated(&other);
            }
            other.user
        }
    };
    let in_process = matches!(identity, Identity::Known(_));
    let takes_objects = parts.extensions.remove::<TakesObjects>().filter(|_| in_process);
    let upgrade = parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
    let class = Class::of(&user, in_process);
    let deadline = head.started + time_allowed(server, &head.query).unwrap_or(server.config.request_timeout);
    let cx = RequestContext {
        server: Arc::clone(server),
        method: parts.method,
        uri: parts.uri,
        headers: parts.headers,
        query: head.query,
        info: head.info,
        selectors: head.selectors,
        accepted: head.accepted,
        route: head.route,
        audit_id: head.audit_id,
        trace: head.trace,
        version: parts.version,
        peer: identity.peer(),
        deadline,
        audited: trail.is_some(),
        user,
        takes_objects,
        upgrade: Mutex::new(upgrade),
        classification: Mutex::default(),
        watch_permit: Mutex::default(),
        handler_span: Mutex::default(),
        warnings: Mutex::default(),
        notes: Mutex::default(),
    };
    if let Some(remarks) = remarks {
        cx.add_remarks(&remarks);
    }
    serve(&Arc::new(cx), body, class, &errors_as, trail).await
}

/// Runs the filters that follow authentication, and completes the response's headers and the audit event.
async fn serve(
    cx: &Arc<RequestContext>,
    body: RequestBody,
    class: Class,
    errors_as: &Accepted,
    mut trail: Option<Trail>,
) -> Answer {
    let work = cx.trace.clone().scope(filters(cx, body, class, trail.as_mut()));
    let outcome = AssertUnwindSafe(work).catch_unwind().await;
    let panicked = outcome.is_err();
    let answered = outcome.unwrap_or_else(|_| Err(panic_status()));
    let mut answer = answered.unwrap_or_else(|status| answer::status(&status, errors_as));
    cx.put_warnings(answer.headers_mut());
    cx.put_classification(answer.headers_mut());
    let Some(trail) = trail else { return answer };
    let notes = cx.notes.lock().clone();
    trail.end(&notes, answer, panicked).await
}

/// The time that a request may take: the shorter of the server's limit and the request's `timeout` parameter.
fn time_allowed(server: &Server, query: &Query) -> Result<Duration, Status> {
    let most = server.config.request_timeout;
    let asked = query.text("timeout");
    if asked.is_empty() {
        return Ok(most);
    }
    let nanos = kelson_meta::parse_nanos(asked)
        .map_err(|why| Status::bad_request(format!("invalid timeout specified in the request URL - {why}")))?;
    Ok(u64::try_from(nanos).ok().filter(|n| *n > 0).map_or(most, |n| most.min(Duration::from_nanos(n))))
}

async fn filters(
    cx: &Arc<RequestContext>,
    body: RequestBody,
    class: Class,
    trail: Option<&mut Trail>,
) -> Result<Answer, Status> {
    if let Err(refused) = child("authorization", Vec::new).scope(authorize::authorize(cx)).await {
        body.discard(&cx.headers).await;
        return Err(refused);
    }
    let mut bytes = cx.server.bodies.share(Arc::clone(&cx.user), class);
    let body = flow::read_body(cx, body, &mut bytes).await?;
    if let (Some(trail), RequestBody::Whole(bytes)) = (trail, &body) {
        trail.add_request_body(&cx.info, cx.route.as_ref(), &cx.headers, bytes);
    }
    if flow::is_long_running(&cx.info, &cx.query) {
        if cx.info.verb == "watch" {
            *cx.watch_permit.lock() = Some(flow::enter(cx, class).await?);
        }
        return dispatch::dispatch(cx, body).await;
    }
    time_allowed(&cx.server, &cx.query)?;
    match tokio::time::timeout_at(cx.deadline, heavy::serve(cx, class, body)).await {
        Ok(answer) => answer,
        Err(_) => Err(Status::timeout("request did not complete within the allowed duration", 0)),
    }
}

/// The client's response after a panic. The panic hook has logged the message and the location.
fn panic_status() -> Status {
    Status::internal("the server panicked while serving this request; see its log")
}

/// The ID that identifies the request in the logs of client and server; the client may send its own.
fn audit_id(headers: &HeaderMap) -> HeaderValue {
    const AUDIT_ID_BYTES_MAX: usize = 64;
    let given = headers.get(audit::AUDIT_ID).filter(|v| !v.is_empty() && v.len() <= AUDIT_ID_BYTES_MAX).cloned();
    given.unwrap_or_else(|| {
        let mut buffer = uuid::Uuid::encode_buffer();
        let text = uuid::Uuid::new_v4().hyphenated().encode_lower(&mut buffer);
        HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("-"))
    })
}
