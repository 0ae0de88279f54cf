//! What issuers need: fetching documents, the clock, and metrics.
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use kelson_meta::Clock;

/// Reads documents over HTTPS. An implementation bounds time and size.
#[async_trait]
pub trait Fetch: Send + Sync {
    /// Returns the body of a successful answer; with an empty `ca_pem` the system's CAs verify the server. `bearer` is
    /// a token for the server, and never part of an error.
    async fn get(&self, url: &str, ca_pem: &[u8], bearer: Option<&str>) -> Result<Bytes, String>;
}

/// Records the use of tokens and keys of the configured issuers, each named by its URL.
pub trait IssuerUse: Send + Sync {
    /// A token of this issuer was verified in this time, including the wait for keys and claims.
    fn judged(&self, issuer: &str, good: bool, took: Duration);
    /// The issuer's keys were fetched: the document, or `None` when there was no usable one.
    fn keys_fetched(&self, issuer: &str, document: Option<&[u8]>);
}

/// Ignores all events, for authenticators without metrics.
pub(super) struct Uncounted;

impl IssuerUse for Uncounted {
    fn judged(&self, _: &str, _: bool, _: Duration) {}
    fn keys_fetched(&self, _: &str, _: Option<&[u8]>) {}
}

/// The dependencies of an issuer.
pub(super) struct Means<'a> {
    pub fetch: &'a dyn Fetch,
    pub clock: &'a dyn Clock,
    pub observer: &'a dyn IssuerUse,
}

/// Returns the default URL of an issuer's discovery document.
pub(super) fn well_known(issuer: &str) -> String {
    format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'))
}
