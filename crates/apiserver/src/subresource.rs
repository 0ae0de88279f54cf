//! Subresources: views of an object (`status`, …) and actions on it.
use std::sync::Arc;

use kelson_meta::{GroupResource, Status};

use crate::body::RequestBody;
use crate::catalog::Served;
use crate::context::Cx;
use crate::encode::Answer;
use crate::{list, patch, update};

/// Serves a subresource.
///
/// # Errors
/// 404, 405, and whatever the handler refuses.
pub async fn serve(cx: &Cx, served: &Arc<Served>, body: RequestBody) -> Result<Answer, Status> {
    let i = &cx.info;
    let sub = served.sub(&i.subresource).ok_or_else(Status::no_such_path)?;
    if !sub.verbs.iter().any(|v| v == i.verb) {
        let gr = GroupResource::new(&i.group, &i.resource);
        return Err(Status::method_not_allowed(&gr, &cx.method.to_string().to_lowercase()));
    }
    match (i.verb, i.subresource.as_str()) {
        ("get", "status") => list::get(cx, served).await,
        ("update", name) => update::put(cx, served, name, body).await,
        ("patch", name) => patch::patch(cx, served, name, body).await,
        _ => Err(Status::no_such_path()),
    }
}
