//! Dispatch: finds the handler of a request.
use std::sync::Arc;

use futures::future::BoxFuture;
use kelson_meta::Status;

use crate::catalog::{Behaviour, Served};
use crate::connect::backend_limit;
use crate::front::{flow, locked, spans};
use crate::paths;
use crate::read::get;
use crate::read::list;
use crate::read::watch;
use crate::request::answer::{Answer, not_found_page};
use crate::request::body::RequestBody;
use crate::request::routes::{RemoteRequest, Route};
use crate::request::version_param;
use crate::reviews;
use crate::shared::context::RequestContext;
use crate::subresources;
use crate::write::create;
use crate::write::delete;
use crate::write::patch;
use crate::write::update;

/// Audit annotation of requests for a deprecated version (upstream's name).
const DEPRECATED: &str = "k8s.io/deprecated";

/// Serves an authorized request within its trace; heavy requests run on another thread than the steps before. The future is boxed
/// to keep the size of callers' futures small, because handlers have the deepest futures.
///
/// # Errors
/// 404 for an unknown path, 405 for a verb that is not served, and the handler's errors.
pub fn dispatch(cx: &RequestContext, body: RequestBody) -> BoxFuture<'_, Result<Answer, Status>> {
    let handler = spans::start_handler(cx);
    let trace = handler.current();
    let trace = if trace.context().is_some() { trace } else { cx.trace.clone() };
    *cx.handler_span.lock() = Some(handler);
    Box::pin(async move {
        let answer = trace.scope(call_handler(cx, body)).await;
        drop(cx.handler_span.lock().take());
        answer
    })
}

async fn call_handler(cx: &RequestContext, body: RequestBody) -> Result<Answer, Status> {
    let i = &cx.info;
    let served = match &cx.route {
        Some(Route::Remote(remote)) => {
            let request = RemoteRequest {
                method: &cx.method,
                uri: &cx.uri,
                headers: &cx.headers,
                info: i,
                user: &cx.user,
                upgrade: &cx.upgrade,
                reservation: backend_limit::take(cx)?,
                body,
            };
            let answer = remote.serve(request).await;
            // The head of a watch's response is there. Like a local watch, it holds no seat from now on.
            drop(cx.watch_permit.lock().take());
            return answer;
        }
        _ if !i.is_resource => return paths::serve(cx, body).await,
        Some(Route::Stored(served)) => Arc::clone(served),
        None if i.prefix == "apis" && !paths::discovery::has_group(&cx.server, &i.group) => return Ok(not_found_page()),
        None => return Err(Status::no_such_path()),
    };
    if let Some(text) = &served.warning {
        cx.warn(text.as_str());
        cx.annotate(DEPRECATED, || "true".to_owned());
    }
    if let Some(answer) = reject_unrouted(cx, &served) {
        return answer;
    }
    if cx.server.store.is_mirror() && asks_for_newest(cx) {
        let caught_up = Box::pin(cx.server.store.catch_up()).await;
        caught_up.map_err(|error| version_param::store_error(&error))?;
    }
    locked::check(&cx.server.store, &served, i)?;
    let _expected = writes(cx, &served).then(|| cx.server.store.expect_write());
    // Long paths are boxed, so that their state does not enlarge the future of every small read.
    if !i.subresource.is_empty() {
        return Box::pin(subresources::serve(cx, &served, body)).await;
    }
    if i.name.is_empty() {
        // Only single objects are put and patched; a kind's verbs do not depend on the path.
        let of_objects = matches!(i.verb, "update" | "patch" | "delete" | "get");
        let across = served.namespaced && i.namespace.is_empty() && !matches!(i.verb, "list" | "watch");
        if of_objects || across {
            return Err(not_allowed(cx, &served));
        }
    } else if !served.has_objects() {
        return Err(Status::no_such_path());
    }
    if !served.has_verb(i.verb) {
        return Err(not_allowed(cx, &served));
    }
    if !served.options().stored {
        return Box::pin(reviews::serve(cx, &served, body)).await;
    }
    match i.verb {
        "get" => get::get(cx, &served).await,
        "list" => list::list(cx, &served).await,
        "watch" => watch::watch(cx, &served).await,
        "create" if i.name.is_empty() => Box::pin(create::create(cx, &served, body)).await,
        "update" => Box::pin(update::put(cx, &served, "", body)).await,
        "patch" => Box::pin(patch::patch(cx, &served, "", body)).await,
        "delete" => Box::pin(delete::delete(cx, &served, body)).await,
        "deletecollection" => Box::pin(delete::collection(cx, &served, body)).await,
        _ => Err(not_allowed(cx, &served)),
    }
}

/// The response to a path or a method for which a kind has no route; `None` if there is a route.
fn reject_unrouted(cx: &RequestContext, served: &Served) -> Option<Result<Answer, Status>> {
    let i = &cx.info;
    // Routes of built-in kinds name their methods; custom resources go by the verb alone.
    let routed = matches!(served.strategy, Behaviour::Builtin(_));
    // Namespaced objects have no path outside their namespace. Their collections have one, also if narrowed to one name.
    if routed {
        if served.namespaced && i.namespace.is_empty() && !i.name.is_empty() && !i.selected {
            return Some(Err(Status::no_such_path()));
        }
        if !served.namespaced && !i.namespace.is_empty() && !served.options().is_namespace() {
            return Some(Err(Status::no_such_path()));
        }
    } else {
        // Of custom resources, only lists and watches go across namespaces.
        let across = i.namespace.is_empty() && !matches!(i.verb, "list" | "watch");
        if if served.namespaced { across } else { !i.namespace.is_empty() } {
            return Some(Ok(not_found_page()));
        }
    }
    let head = cx.method == http::Method::HEAD && routed && i.subresource != "proxy";
    head.then(|| Err(Status::method_not_allowed()))
}

/// Whether the request is a write of one stored object, so that a write to the store can be expected soon.
fn writes(cx: &RequestContext, served: &Served) -> bool {
    let one = matches!(cx.info.verb, "create" | "update" | "patch" | "delete");
    one && served.options().stored && !flow::is_long_running(&cx.info, &cx.query)
}

/// The error for a verb that is not served. For custom resources it names the verb, or asks for an object's name.
fn not_allowed(cx: &RequestContext, served: &Served) -> Status {
    match (&served.strategy, cx.info.verb) {
        (Behaviour::Builtin(_), _) => Status::method_not_allowed(),
        (Behaviour::Dynamic(_), "update" | "patch") => Status::bad_request("name must be provided"),
        (Behaviour::Dynamic(_), verb) => Status::verb_not_supported(&served.gr, verb),
    }
}

/// Whether a request must see what other servers have written: all requests except reads with a resourceVersion or a continue
/// token.
fn asks_for_newest(cx: &RequestContext) -> bool {
    let reads = matches!(cx.info.verb, "get" | "list" | "watch");
    !(reads && (!cx.query.text("resourceVersion").is_empty() || !cx.query.text("continue").is_empty()))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::StatusCode;
    use http_body_util::BodyExt as _;
    use kelson_auth::{UserInfo, user};
    use kelson_store::{Store, StoreOptions};
    use kelson_transport::Transport as _;

    use super::*;
    use crate::config::Config;
    use crate::request::answer::answer;
    use crate::request::body::ApiBody;
    use crate::request::routes::RemoteHandler;
    use crate::start::ApiServer;

    /// Echoes method, URI, user and the length of the body.
    struct EchoHandler;

    impl RemoteHandler for EchoHandler {
        fn serve<'a>(&'a self, request: RemoteRequest<'a>) -> BoxFuture<'a, Result<Answer, Status>> {
            Box::pin(async move {
                let body = request.body.read().await?;
                let echo = format!("{} {} by {}: {} bytes", request.method, request.uri, request.user.name, body.len());
                Ok(answer(StatusCode::OK, "text/plain", ApiBody::full(echo).hold(request.reservation)))
            })
        }
    }

    #[tokio::test]
    async fn a_remote_handler_serves_a_group_version() {
        let config = Config::new(Store::in_memory(StoreOptions::default()));
        let running = ApiServer::start(config).await.expect("starts");
        let ask = async |name: &str, groups: &[&str], method: &str, uri: &str| {
            let user = UserInfo::new(name, groups.iter().copied());
            let request =
                http::Request::builder().method(method).uri(uri).body(Bytes::from_static(b"{}")).expect("request");
            let answer = running.in_process(user).send(request).await.expect("answered");
            let code = answer.status().as_u16();
            let bytes = answer.into_body().collect().await.expect("body").to_bytes();
            (code, String::from_utf8_lossy(&bytes).into_owned())
        };
        let pods = "/apis/custom.example.com/v1/namespaces/a/pods/b?x=1";
        assert_eq!(ask("root", &[user::MASTERS], "GET", pods).await.0, 404, "no handler serves it yet");
        running.server().routes.insert("custom.example.com", "v1", Arc::new(EchoHandler));
        let (code, echo) = ask("root", &[user::MASTERS], "PUT", pods).await;
        assert_eq!((code, echo), (200, format!("PUT {pods} by root: 2 bytes")));
        let (code, echo) = ask("root", &[user::MASTERS], "GET", "/apis/custom.example.com/v1").await;
        assert_eq!((code, echo), (200, "GET /apis/custom.example.com/v1 by root: 2 bytes".to_owned()));
        assert_eq!(ask("guest", &[], "GET", pods).await.0, 403, "authorized as any other request");
        let request = http::Request::get("/apis/custom.example.com/v1/namespaces/a/pods/b/exec")
            .body(Bytes::new())
            .expect("request");
        let root = UserInfo::new("root", [user::MASTERS]);
        let answer = running.in_process(root).send(request).await.expect("answered");
        assert_eq!(running.server().backends.held(), 1, "it counts towards the connections to other servers");
        drop(answer);
        assert_eq!(running.server().backends.held(), 0);
        running.server().routes.remove("custom.example.com", "v1");
        assert_eq!(ask("root", &[user::MASTERS], "GET", pods).await.0, 404);
    }
}
