//! Patch: JSON patch, merge patch, strategic merge patch and apply, each made into an update of the newest object.
use kelson_meta::Status;

use crate::body::RequestBody;
use crate::catalog::Served;
use crate::context::Cx;
use crate::encode::Answer;

/// Serves PATCH.
///
/// # Errors
/// 415 for unknown formats, and whatever the update refuses.
pub async fn patch(_cx: &Cx, _served: &Served, _subresource: &str, _body: RequestBody) -> Result<Answer, Status> {
    Err(Status::unsupported_media_type(&[]))
}
