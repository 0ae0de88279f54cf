//! One signed request, repeated while the fault may pass.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Method, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use kelson_client::{Response, Transport};
use url::Url;

use crate::error::S3Error;

/// How long the server may take to answer a request with at most one part of a file.
const ANSWER_MAX: Duration = Duration::from_secs(300);
/// How often a request is sent at most.
const ATTEMPTS_MAX: u32 = 4;
/// The pause after the first attempt. Each further one is four times as long.
const PAUSE: Duration = Duration::from_secs(1);
/// The largest answer that is not a file: a list of a thousand files has at most 2 MB.
pub(crate) const ANSWER_BYTES_MAX: usize = 8 << 20;
/// The longest code and message of the server in an error, in bytes.
const MESSAGE_BYTES_MAX: usize = 300;

/// Sends a request until the server accepts or rejects it. `sign` is called for each attempt.
///
/// # Errors
/// The server rejected it, or the last attempt failed.
pub(crate) async fn send(
    transport: &dyn Transport,
    method: &Method,
    body: &Bytes,
    sign: impl Fn() -> Url,
) -> Result<Response, S3Error> {
    let (mut pause, mut attempt) = (PAUSE, 1);
    loop {
        let error = match once(transport, method, body, &sign()).await {
            Ok(response) if response.status().is_success() => return Ok(response),
            Ok(response) if !may_pass(response.status()) => return Err(rejected(response).await),
            Ok(response) => rejected(response).await,
            Err(error) => error,
        };
        if attempt == ATTEMPTS_MAX {
            return Err(error);
        }
        tracing::debug!(%error, attempt, "a request to S3 failed; retrying");
        tokio::time::sleep(pause).await;
        (pause, attempt) = (pause * 4, attempt + 1);
    }
}

async fn once(transport: &dyn Transport, method: &Method, body: &Bytes, url: &Url) -> Result<Response, S3Error> {
    let target = match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    };
    let mut request = http::Request::builder().method(method).uri(target);
    if [Method::PUT, Method::POST].contains(method) {
        // Servers of S3 answer 411 without it, also where the body is empty; HTTP clients leave it out there.
        request = request.header(CONTENT_LENGTH, body.len());
    }
    // The error of the builder could have the signature.
    let request = request.body(body.clone());
    let request = request.map_err(|_| S3Error::Options("the name of the file is not valid in a URL".to_owned()))?;
    match tokio::time::timeout(ANSWER_MAX, transport.send(request)).await {
        Ok(answer) => answer.map_err(|error| S3Error::Unreachable(error.to_string())),
        Err(_) => Err(S3Error::Unreachable(format!("no answer within {} s", ANSWER_MAX.as_secs()))),
    }
}

/// Reports whether the same request may succeed later (S3's documentation: 500, 503 `SlowDown`; proxies: 502, 504).
fn may_pass(status: StatusCode) -> bool {
    status.is_server_error() || [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT].contains(&status)
}

/// Reads an answer that is not a file.
///
/// # Errors
/// The connection ends, or the answer is too large.
pub(crate) async fn read(response: Response) -> Result<Bytes, S3Error> {
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect();
    let read = tokio::time::timeout(ANSWER_MAX, body).await;
    let read = read.map_err(|_| S3Error::Unreachable(format!("no answer within {} s", ANSWER_MAX.as_secs())))?;
    read.map(http_body_util::Collected::to_bytes).map_err(|error| S3Error::Unreachable(error.to_string()))
}

async fn rejected(response: Response) -> S3Error {
    let status = response.status();
    let body = read(response).await.unwrap_or_default();
    fault(status, &String::from_utf8_lossy(&body))
}

/// Returns the error of an answer with S3's `Error` element. Other elements of it repeat parts of the request.
pub(crate) fn fault(status: StatusCode, text: &str) -> S3Error {
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        let (value, _) = rest.split_once(&format!("</{name}>"))?;
        let end = value.char_indices().map(|(at, _)| at).find(|at| *at >= MESSAGE_BYTES_MAX).unwrap_or(value.len());
        Some(value[..end].to_owned())
    };
    let code = element("Code").or_else(|| status.canonical_reason().map(str::to_owned)).unwrap_or_default();
    let hint =
        if status.is_redirection() { "the bucket is in another region; set --s3-region or --s3-endpoint" } else { "" };
    let message = element("Message").filter(|_| hint.is_empty()).unwrap_or_else(|| hint.to_owned());
    S3Error::Rejected { status: status.as_u16(), code, message }
}
