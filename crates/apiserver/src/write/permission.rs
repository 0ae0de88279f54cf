//! Permissions that a write needs besides its request's verb.
use kelson_auth::authorize::forbidden;
use kelson_auth::{Attributes, Decision};
use kelson_meta::Status;

use crate::catalog::Served;
use crate::shared::context::RequestContext;

/// The authorization attributes of the request. Callers replace some of them.
pub fn request_attributes(cx: &RequestContext) -> Attributes<'_> {
    let i = &cx.info;
    Attributes {
        version: &i.version,
        subresource: &i.subresource,
        path: cx.uri.path(),
        ..Attributes::resource(&cx.user, i.verb, &i.group, &i.resource, &i.namespace, &i.name)
    }
}

/// Checks the permission to `create` for a PUT or apply that creates an object (upstream `handlers.withAuthorization`). A POST was
/// authorized for `create` before.
///
/// # Errors
/// 403.
pub async fn check_create(cx: &RequestContext, served: &Served) -> Result<(), Status> {
    if cx.info.verb == "create" {
        return Ok(());
    }
    let attributes = Attributes { verb: "create", namespace: cx.namespace(served), ..request_attributes(cx) };
    cx.server.authorizer.check(&attributes).await
}

/// The message of a 403 if the user may not do this; `None` if it is allowed.
pub async fn refusal(cx: &RequestContext, attributes: &Attributes<'_>) -> Option<String> {
    match cx.server.authorizer.decide(attributes).await {
        Decision::Allow(_) => None,
        refused => Some(forbidden(attributes, refused.reason()).message),
    }
}
