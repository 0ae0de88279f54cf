//! OpenAPI documents of what is served.
use kelson_meta::Status;

use crate::context::Cx;
use crate::encode::Answer;

/// Documents made so far.
#[derive(Default)]
pub struct OpenApi {}

/// Serves `/openapi/v2` and `/openapi/v3`.
///
/// # Errors
/// 404.
pub fn serve(_cx: &Cx) -> Result<Answer, Status> {
    Err(Status::no_such_path())
}
