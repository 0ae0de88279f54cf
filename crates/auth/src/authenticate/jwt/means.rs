//! What it takes to ask an issuer: who fetches, what time it is, and who hears of it.
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use kelson_meta::Clock;

/// Reads documents over HTTPS. The implementation bounds time and size.
#[async_trait]
pub trait Fetch: Send + Sync {
    /// The body of a good answer; `ca_pem` empty: the system's authorities vouch for the server. `bearer` is a token that is shown
    /// to the server, and never repeated in an error.
    async fn get(&self, url: &str, ca_pem: &[u8], bearer: Option<&str>) -> Result<Bytes, String>;
}

/// Hears what becomes of tokens and keys of the issuers that are configured, each named by its URL.
pub trait IssuerUse: Send + Sync {
    /// A token of this issuer was judged, in this time; waiting for keys and claims is part of it.
    fn judged(&self, issuer: &str, good: bool, took: Duration);
    /// The issuer's keys were fetched: the document, or nothing where there was none that can be used.
    fn keys_fetched(&self, issuer: &str, document: Option<&[u8]>);
}

/// Told by those who were given nobody to tell.
pub(super) struct Uncounted;

impl IssuerUse for Uncounted {
    fn judged(&self, _: &str, _: bool, _: Duration) {}
    fn keys_fetched(&self, _: &str, _: Option<&[u8]>) {}
}

/// What it takes to ask an issuer.
pub(super) struct Means<'a> {
    pub fetch: &'a dyn Fetch,
    pub clock: &'a dyn Clock,
    pub observer: &'a dyn IssuerUse,
}

/// Where an issuer's document is when nothing else is said.
pub(super) fn well_known(issuer: &str) -> String {
    format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'))
}
