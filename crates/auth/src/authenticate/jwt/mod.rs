//! Tokens of external issuers (OpenID Connect): a JSON Web Token with a configured issuer, signed with one of the keys
//! that the issuer publishes, for one of its audiences, valid now, with claims that name a user. Keys are fetched when
//! they are first needed, and again for a token with an unknown key ID.
mod claims;
mod config;
mod distributed;
mod document;
mod keys;
mod means;
mod publisher;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use kelson_meta::Clock;
use parking_lot::RwLock;

use super::{AsyncTokenAuthenticator, Authenticated, Rejected, TokenAuthenticator};
pub use config::{AuthenticationConfiguration, Issuer, OidcFlags};
use distributed::Resolver;
pub use keys::ALGORITHMS;
pub use means::{Fetch, IssuerUse};
use means::{Means, Uncounted};
use publisher::{Publisher, UnverifiedToken};

/// Authenticates tokens of configured issuers.
pub struct Issuers {
    issuers: RwLock<Vec<Arc<IssuerState>>>,
    fetch: Arc<dyn Fetch>,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn IssuerUse>,
}

/// The keys of an issuer cannot be fetched.
#[derive(Debug, thiserror::Error)]
#[error("issuer {issuer:?}: {reason}")]
pub struct IssuerKeysError {
    /// The URL of the issuer.
    pub issuer: String,
    /// The step that failed and its error, for the log.
    pub reason: String,
}

struct IssuerState {
    issuer: Arc<Issuer>,
    publisher: Publisher,
    resolver: Resolver,
}

impl Issuers {
    /// Creates an authenticator of these issuers, which reads documents through `fetch`.
    pub fn new(issuers: Vec<Arc<Issuer>>, fetch: Arc<dyn Fetch>, clock: Arc<dyn Clock>) -> Self {
        let issuers = RwLock::new(issuers.into_iter().map(IssuerState::new).collect());
        Self { issuers, fetch, clock, observer: Arc::new(Uncounted) }
    }

    /// Reports tokens and fetched keys to `observer`.
    pub fn with_observer(self, observer: Arc<dyn IssuerUse>) -> Self {
        Self { observer, ..self }
    }

    fn means(&self) -> Means<'_> {
        Means { fetch: &*self.fetch, clock: &*self.clock, observer: &*self.observer }
    }

    /// Replaces the trusted issuers. Their keys are fetched first, so that the change rejects no valid token.
    ///
    /// # Errors
    /// The keys of an issuer cannot be fetched; nothing changes then.
    pub async fn replace(&self, issuers: Vec<Arc<Issuer>>) -> Result<(), IssuerKeysError> {
        let next: Vec<Arc<IssuerState>> = issuers.into_iter().map(IssuerState::new).collect();
        for known in &next {
            let fetched = known.publisher.refresh(&self.means()).await;
            fetched.map_err(|reason| IssuerKeysError { issuer: known.issuer.url.clone(), reason })?;
        }
        *self.issuers.write() = next;
        Ok(())
    }

    /// Parses the token and finds its issuer; `None` when it is not a configured one.
    fn issued<'t>(&self, token: &'t str) -> Option<(UnverifiedToken<'t>, Arc<IssuerState>)> {
        let parsed = UnverifiedToken::of(token)?;
        let iss = parsed.issuer()?;
        let known = self.issuers.read().iter().find(|known| known.issuer.url == iss).cloned()?;
        Some((parsed, known))
    }

    fn observed<T>(&self, known: &IssuerState, begun: Instant, judged: Result<T, Rejected>) -> Result<T, Rejected> {
        self.observer.judged(&known.issuer.url, judged.is_ok(), begun.elapsed());
        judged
    }
}

impl IssuerState {
    fn new(issuer: Arc<Issuer>) -> Arc<Self> {
        let publisher = Publisher::of(&issuer);
        Arc::new(Self { issuer, publisher, resolver: Resolver::default() })
    }

    /// Reports whether verifying this token requires a request to the issuer.
    fn must_ask(&self, parsed: &UnverifiedToken<'_>, now: jiff::Timestamp) -> bool {
        let elsewhere = |claim| matches!(distributed::source(&parsed.claims, claim), Ok(Some(_)));
        self.publisher.lacks(&parsed.header.kid, now) || self.issuer.rules.groups_claim().is_some_and(elsewhere)
    }

    fn verify(&self, parsed: &UnverifiedToken<'_>, now: jiff::Timestamp) -> Result<(), Rejected> {
        self.publisher.verify(parsed, now).map_err(|why| Rejected(format!("oidc: verify token: {why}")))
    }

    /// Returns the user of a verified token whose claims are complete.
    fn user(&self, parsed: &UnverifiedToken<'_>) -> Result<Authenticated, Rejected> {
        let user = self.issuer.rules.user(&parsed.claims).map_err(|why| Rejected(format!("oidc: {why}")))?;
        Ok(Authenticated::new(user))
    }

    async fn judge_later(
        &self,
        parsed: &mut UnverifiedToken<'_>,
        means: &Means<'_>,
    ) -> Result<Authenticated, Rejected> {
        self.publisher.prepare(&parsed.header.kid, means).await;
        // No request is made for an invalid token.
        self.verify(parsed, means.clock.now())?;
        if let Some(claim) = self.issuer.rules.groups_claim() {
            let fault = |why: &str| Rejected(format!("oidc: could not expand distributed claims: {why}"));
            if let Some(source) = distributed::source(&parsed.claims, claim).map_err(fault)? {
                let value = self.resolver.resolve(&self.publisher, &source, claim, means).await;
                parsed.claims.insert(claim.to_owned(), value.map_err(|why| fault(&why))?);
            }
        }
        self.user(parsed)
    }

    fn judge(&self, parsed: &UnverifiedToken<'_>, now: jiff::Timestamp) -> Result<Authenticated, Rejected> {
        self.verify(parsed, now)?;
        if let Some(claim) = self.issuer.rules.groups_claim() {
            let elsewhere = distributed::source(&parsed.claims, claim);
            if let Err(why) = elsewhere.and_then(|source| source.map_or(Ok(()), |_| Err("is not available yet"))) {
                return Err(Rejected(format!("oidc: could not expand distributed claims: {why}")));
            }
        }
        self.user(parsed)
    }
}

impl TokenAuthenticator for Issuers {
    fn authenticate_token(&self, token: &str, _: &[String]) -> Result<Option<Authenticated>, Rejected> {
        let begun = Instant::now();
        let Some((parsed, known)) = self.issued(token) else { return Ok(None) };
        self.observed(&known, begun, known.judge(&parsed, self.clock.now())).map(Some)
    }

    fn as_async(&self, token: &str, _: &[String]) -> Option<&dyn AsyncTokenAuthenticator> {
        let (parsed, known) = self.issued(token)?;
        known.must_ask(&parsed, self.clock.now()).then_some(self)
    }
}

#[async_trait]
impl AsyncTokenAuthenticator for Issuers {
    async fn authenticate_later(&self, token: &str, _: &[String]) -> Result<Option<Authenticated>, Rejected> {
        let begun = Instant::now();
        let Some((mut parsed, known)) = self.issued(token) else { return Ok(None) };
        let judged = known.judge_later(&mut parsed, &self.means()).await;
        self.observed(&known, begun, judged).map(Some)
    }
}
