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
/// 404, 405, and whatever the handler refuses.
pub async fn serve(cx: &RequestContext, served: &Arc<Served>, body: RequestBody) -> Result<Answer, Status> {
    let i = &cx.info;
    let sub = served.sub(&i.subresource).ok_or_else(|| match served.strategy {
        Behaviour::Builtin(_) => Status::no_such_path(),
        // Kinds that users define look for the object first.
        Behaviour::Dynamic(_) => Status::not_found(&served.gr, &i.name),
    })?;
    // A backend may be asked by any method, also by one that is no verb of the API (OPTIONS): it answers for itself.
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
        // What is left are views of the object by the strategy.
        name => match i.verb {
            "get" => get::get(cx, served).await,
            "update" => update::put(cx, served, name, body).await,
            "patch" => patch::patch(cx, served, name, body).await,
            _ => Err(Status::no_such_path()),
        },
    }
}
