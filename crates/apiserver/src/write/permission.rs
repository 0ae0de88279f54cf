//! Permission: what a write needs beside the verb that its request was authorized for.
use kelson_auth::authorize::forbidden;
use kelson_auth::{Attributes, Decision};
use kelson_meta::Status;

use crate::catalog::Served;
use crate::shared::context::RequestContext;

/// The facts of the request, for authorizers; callers change what they ask about.
pub fn of_request(cx: &RequestContext) -> Attributes<'_> {
    let i = &cx.info;
    Attributes {
        version: &i.version,
        subresource: &i.subresource,
        path: cx.uri.path(),
        ..Attributes::resource(&cx.user, i.verb, &i.group, &i.resource, &i.namespace, &i.name)
    }
}

/// Refuses a request of another verb (PUT, apply) that makes an object unless its user may `create` it (upstream
/// `handlers.withAuthorization`). A POST was authorized for `create` before.
///
/// # Errors
/// 403.
pub async fn to_create(cx: &RequestContext, served: &Served) -> Result<(), Status> {
    if cx.info.verb == "create" {
        return Ok(());
    }
    let attributes = Attributes { verb: "create", namespace: cx.namespace(served), ..of_request(cx) };
    cx.server.authorizer.check(&attributes).await
}

/// Why the user may not do this, in the words of a 403; `None` where it is allowed.
pub async fn refusal(cx: &RequestContext, attributes: &Attributes<'_>) -> Option<String> {
    match cx.server.authorizer.decide(attributes).await {
        Decision::Allow(_) => None,
        refused => Some(forbidden(attributes, refused.reason()).message),
    }
}
