//! Subresources: views of an object (`status`, `scale`, …) and actions on it (`binding`, `eviction`, `token`, …).
pub mod binding;
pub mod eviction;
pub mod scale;
pub mod token;

use std::sync::Arc;

use kelson_meta::Status;

use crate::catalog::{Behaviour, Served};
use crate::connect;
use crate::read::get;
use crate::request::answer::Answer;
use crate::request::body::RequestBody;
use crate::shared::context::RequestContext;
use crate::write::patch;
use crate::write::update;

/// Serves a subresource.
///
/// # Errors
/// 404, 405, and the handler's errors.
pub async fn serve(cx: &RequestContext, served: &Arc<Served>, body: RequestBody) -> Result<Answer, Status> {
    let i = &cx.info;
    let sub = served.sub(&i.subresource).ok_or_else(|| match served.strategy {
        Behaviour::Builtin(_) => Status::no_such_path(),
        // For custom resources, the object is looked up first.
        Behaviour::Dynamic(_) => Status::not_found(&served.gr, &i.name),
    })?;
    // The proxy accepts any method, also those that are not API verbs (OPTIONS).
    let any_method = i.subresource == "proxy" && cx.method != http::Method::TRACE && cx.method != http::Method::CONNECT;
    if !(any_method || sub.verbs.iter().any(|v| v == i.verb))
        || (served.namespaced && i.namespace.is_empty())
        || i.name.is_empty()
    {
        return Err(match &served.strategy {
            Behaviour::Builtin(_) => Status::method_not_allowed(),
            Behaviour::Dynamic(_) => Status::verb_not_supported(&served.gr, i.verb),
        });
    }
    if !i.tail.is_empty() && i.subresource != "proxy" {
        return Err(Status::no_such_path());
    }
    match i.subresource.as_str() {
        "scale" => scale::serve(cx, served, body).await,
        "binding" => binding::serve(cx, served, body).await,
        "eviction" => eviction::serve(cx, served, body).await,
        "token" => token::serve(cx, served, body).await,
        "log" | "exec" | "attach" | "portforward" | "proxy" => Box::pin(connect::serve(cx, served, body)).await,
        // The rest are views of the object that the strategy defines.
        name => match i.verb {
            "get" => get::get(cx, served).await,
            "update" => update::put(cx, served, name, body).await,
            "patch" => patch::patch(cx, served, name, body).await,
            _ => Err(Status::no_such_path()),
        },
    }
}
