//! Interface to webhooks that authenticate tokens and authorize requests.
use async_trait::async_trait;
use bytes::Bytes;

/// A webhook that answers reviews. An implementation bounds time and size, and retries where that can help.
#[async_trait]
pub trait Ask: Send + Sync {
    /// Posts a review and returns the answered review. An error never contains the request.
    async fn post(&self, review: Bytes) -> Result<Bytes, String>;
}
