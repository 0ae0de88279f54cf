//! Dispatch: from what is asked to the handler that answers.
use kelson_meta::{GroupResource, Status};

use crate::paths;
use crate::read::get;
use crate::read::list;
use crate::read::watch;
use crate::request::answer::Answer;
use crate::request::body::RequestBody;
use crate::reviews;
use crate::shared::context::RequestContext;
use crate::subresources;
use crate::write::create;
use crate::write::delete;
use crate::write::patch;
use crate::write::update;

/// Serves an authorized request.
///
/// # Errors
/// 404 for what nothing serves, 405 for a verb that is not served, and whatever the handler refuses.
pub async fn dispatch(cx: &RequestContext, body: RequestBody) -> Result<Answer, Status> {
    if !cx.info.is_resource {
        return paths::serve(cx, body).await;
    }
    let i = &cx.info;
    let prefix_fits = (i.prefix == "api") == i.group.is_empty();
    let served = cx.server.catalog.find(&i.group, &i.version, &i.resource).filter(|_| prefix_fits);
    let served = served.ok_or_else(Status::no_such_path)?;
    let own_namespace = served.is("", "namespaces");
    if !served.namespaced && !i.namespace.is_empty() && !own_namespace {
        return Err(Status::no_such_path());
    }
    if !i.subresource.is_empty() {
        return subresources::serve(cx, &served, body).await;
    }
    let refused = || {
        Status::method_not_allowed(&GroupResource::new(&i.group, &i.resource), &cx.method.to_string().to_lowercase())
    };
    if served.namespaced && i.namespace.is_empty() && !matches!(i.verb, "list" | "watch") {
        return Err(refused());
    }
    if !served.has_verb(i.verb) {
        return Err(refused());
    }
    if !served.options().stored {
        return reviews::serve(cx, &served, body).await;
    }
    match i.verb {
        "get" => get::get(cx, &served).await,
        "list" => list::list(cx, &served).await,
        "watch" => watch::watch(cx, &served).await,
        "create" if i.name.is_empty() => create::create(cx, &served, body).await,
        "update" => update::put(cx, &served, "", body).await,
        "patch" => patch::patch(cx, &served, "", body).await,
        "delete" => delete::delete(cx, &served, body).await,
        "deletecollection" => delete::collection(cx, &served, body).await,
        _ => Err(refused()),
    }
}
