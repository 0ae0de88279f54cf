//! Joins of other servers: `POST /kelson/join` asks this server to let another one into its cluster. The path exists only in Kelson. Only
//! administrators and users with a role for it can post to it; [`JoinHandler`](crate::config::JoinHandler) answers.
use http::StatusCode;
use kelson_meta::Status;

use crate::catalog::ObjectSchema;
use crate::request::answer::{self, Answer};
use crate::request::body::RequestBody;
use crate::request::negotiate::Accepted;
use crate::shared::context::RequestContext;

/// The path of joins.
pub const PATH: &str = "/kelson/join";

/// Answers a request, which is authorized already.
///
/// # Errors
/// 404 without a handler; those of the handler.
pub async fn serve(cx: &RequestContext, body: RequestBody) -> Result<Answer, Status> {
    let Some(handler) = &cx.server.config.join else { return Err(Status::no_such_path()) };
    let body = body.read().await?;
    let answer = handler.answer(&cx.user, &body).await?;
    answer::tree(StatusCode::OK, &Accepted::JSON, &ObjectSchema::Open, answer)
}
