//! Who is asked elsewhere about identity: webhooks of authentication and authorization, and the documents of token issuers.
#![allow(clippy::disallowed_methods, reason = "blocking: read at start, before anything is served")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use kelson_auth::ask::Ask;
use kelson_auth::authenticate::jwt::Fetch;
use kelson_webhook::{Call, CallError, NoServices, Target, WebhookClient, fetch};

/// Longest answer of a review.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Longest document of an issuer.
const DOCUMENT_BYTES_MAX: usize = 1 << 20;
/// How long a document may take.
const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(10);
/// A review is tried so often, after pauses that grow by half (upstream `DefaultRetryBackoff`).
const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// The server of a kubeconfig, to which reviews are posted.
pub struct Reviews {
    client: WebhookClient,
    target: Target,
    timeout: Duration,
    told: Box<dyn Fn(Asked, Duration) + Send + Sync>,
}

/// What became of a review, all its tries together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// There is an answer.
    Answered,
    /// None came in time.
    TimedOut,
    /// The server could not be asked, or refused.
    Failed,
}

impl Asked {
    /// As upstream's metrics call it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Answered => "success",
            Self::TimedOut => "timeout",
            Self::Failed => "error",
        }
    }
}

impl Reviews {
    /// Of the current context of this kubeconfig.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn of_kubeconfig(path: &Path, timeout: Duration) -> Result<Self, String> {
        let (target, credentials) = Target::of_kubeconfig(path)?;
        let client = WebhookClient::new(Arc::new(NoServices), credentials);
        Ok(Self { client, target, timeout, told: Box::new(|_, _| ()) })
    }

    /// The same, telling what became of each review and how long it took.
    pub fn telling(self, told: impl Fn(Asked, Duration) + Send + Sync + 'static) -> Self {
        Self { told: Box::new(told), ..self }
    }

    /// Asks, and again where that may help.
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
impl Ask for Reviews {
    async fn post(&self, review: Bytes) -> Result<Bytes, String> {
        let begun = tokio::time::Instant::now();
        let answer = self.ask(&review).await;
        let asked = match &answer {
            Ok(_) => Asked::Answered,
            Err(CallError::Timeout(_)) => Asked::TimedOut,
            Err(_) => Asked::Failed,
        };
        (self.told)(asked, begun.elapsed());
        answer.map_err(|e| e.to_string())
    }
}

/// The documents of token issuers.
pub struct IssuerDocuments;

#[async_trait]
impl Fetch for IssuerDocuments {
    async fn get(&self, url: &str, ca_pem: &[u8], bearer: Option<&str>) -> Result<Bytes, String> {
        fetch(url, ca_pem, bearer, DOCUMENT_TIMEOUT, DOCUMENT_BYTES_MAX).await
    }
}
