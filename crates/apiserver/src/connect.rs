//! Connect: logs, exec, attach, port-forward and proxy, carried to the pod's kubelet.
use kelson_meta::Status;

use crate::body::RequestBody;
use crate::catalog::Served;
use crate::context::Cx;
use crate::encode::Answer;

/// Serves a connection.
///
/// # Errors
/// 503 without a way to the kubelets.
pub async fn serve(_cx: &Cx, _served: &Served, _body: RequestBody) -> Result<Answer, Status> {
    Err(Status::unavailable("connections to kubelets are not configured"))
}
