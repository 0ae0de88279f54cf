//! One question to an API server, with a limit of time.
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use kelson_client::{Client, ClientError};
use thiserror::Error;

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum AskError {
    /// It did not come in time.
    #[error("no answer within {} s", .0.as_secs())]
    Late(Duration),
    /// The server cannot be reached, or answered with an error.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Sends a GET request for `path` and returns the body.
///
/// # Errors
/// There is no answer within `limit`, or it is an error.
pub async fn get(client: &Client, path: &str, limit: Duration) -> Result<Bytes, AskError> {
    within(limit, client.call(Method::GET, path, "", Bytes::new())).await
}

/// Waits at most `limit` for an answer.
///
/// # Errors
/// As [`get`].
pub async fn within<T>(limit: Duration, answer: impl Future<Output = Result<T, ClientError>>) -> Result<T, AskError> {
    Ok(tokio::time::timeout(limit, answer).await.map_err(|_| AskError::Late(limit))??)
}
