//! Servers elsewhere that review who somebody is and what they may: webhooks of authentication and authorization.
use async_trait::async_trait;
use bytes::Bytes;

/// A server that answers reviews. Who implements it bounds time and size, and tries again where that can help.
#[async_trait]
pub trait Ask: Send + Sync {
    /// Posts a review, and gives the review that comes back. An error never repeats what was sent.
    async fn post(&self, review: Bytes) -> Result<Bytes, String>;
}
