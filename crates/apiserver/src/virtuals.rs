//! Resources that are answered, not stored: reviews and component statuses.
use kelson_meta::Status;

use crate::body::RequestBody;
use crate::catalog::Served;
use crate::context::Cx;
use crate::encode::Answer;

/// Serves them.
///
/// # Errors
/// 404 for those not served yet.
pub async fn serve(_cx: &Cx, _served: &Served, _body: RequestBody) -> Result<Answer, Status> {
    Err(Status::no_such_path())
}
