//! Webhooks that authenticate or authorize, and the documents of token issuers.
#![allow(clippy::disallowed_methods, reason = "blocking: read at start, before anything is served")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use kelson_auth::ask::Ask;
use kelson_auth::authenticate::jwt::Fetch;
use kelson_webhook::{Call, CallError, NoServices, Target, WebhookClient, fetch};

/// Largest response to a review in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Largest document of an issuer in bytes.
const DOCUMENT_BYTES_MAX: usize = 1 << 20;
/// Timeout of fetching a document.
const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Tries of a review, with pauses that grow by half (upstream `DefaultRetryBackoff`).
const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// A webhook that is configured by a kubeconfig and to which reviews are posted.
pub struct ReviewWebhook {
    client: WebhookClient,
    target: Target,
    timeout: Duration,
    observer: Box<dyn Fn(ReviewOutcome, Duration) + Send + Sync>,
}

/// Outcome of a review after all tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReviewOutcome {
    /// The webhook answered.
    Answered,
    /// No response arrived in time.
    TimedOut,
    /// The webhook could not be reached, or returned an error.
    Failed,
}

impl ReviewOutcome {
    /// The value of the `result` label in upstream's metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Answered => "success",
            Self::TimedOut => "timeout",
            Self::Failed => "error",
        }
    }
}

impl ReviewWebhook {
    /// The webhook in the kubeconfig's current context.
    ///
    /// # Errors
    /// The file cannot be read or is invalid.
    pub fn of_kubeconfig(path: &Path, timeout: Duration) -> Result<Self, String> {
        let (target, credentials) = Target::of_kubeconfig(path)?;
        let client = WebhookClient::new(Arc::new(NoServices), credentials);
        Ok(Self { client, target, timeout, observer: Box::new(|_, _| ()) })
    }

    /// Calls `observer` with the outcome and duration of each review.
    pub fn observed_by(self, observer: impl Fn(ReviewOutcome, Duration) + Send + Sync + 'static) -> Self {
        Self { observer: Box::new(observer), ..self }
    }

    /// Posts a review, and retries errors that may be temporary.
    async fn ask(&self, review: &Bytes) -> Result<Bytes, CallError> {
        let mut pause = FIRST_PAUSE;
        let mut attempt = 1;
        loop {
            let call = Call { body: review.clone(), timeout: self.timeout, answer_bytes_max: ANSWER_BYTES_MAX };
            let failed = match self.client.call(&self.target, call).await {
                Ok(answer) => return Ok(answer),
                Err(e) => e,
            };
            let again = match &failed {
                CallError::Status(status) => status.code == 429 || status.code >= 500,
                CallError::Transport(_) => true,
                CallError::Configuration(_) | CallError::Timeout(_) => false,
            };
            if !again || attempt >= TRIES {
                return Err(failed);
            }
            attempt += 1;
            tokio::time::sleep(pause).await;
            pause = pause.mul_f64(1.5);
        }
    }
}

#[async_trait]
impl Ask for ReviewWebhook {
    async fn post(&self, review: Bytes) -> Result<Bytes, String> {
        let begun = tokio::time::Instant::now();
        let answer = self.ask(&review).await;
        let asked = match &answer {
            Ok(_) => ReviewOutcome::Answered,
            Err(CallError::Timeout(_)) => ReviewOutcome::TimedOut,
            Err(_) => ReviewOutcome::Failed,
        };
        (self.observer)(asked, begun.elapsed());
        answer.map_err(|e| e.to_string())
    }
}

/// Fetches the documents of token issuers.
pub struct IssuerDocuments;

#[async_trait]
impl Fetch for IssuerDocuments {
    async fn get(&self, url: &str, ca_pem: &[u8], bearer: Option<&str>) -> Result<Bytes, String> {
        fetch(url, ca_pem, bearer, DOCUMENT_TIMEOUT, DOCUMENT_BYTES_MAX).await
    }
}
