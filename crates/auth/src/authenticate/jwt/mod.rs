//! Tokens of other issuers (OpenID Connect): a JSON Web Token whose issuer is configured, signed with one of the keys that the
//! issuer publishes, for one of its audiences, in force now, with claims that name a user. Keys are fetched when they are
//! first needed, and again for a token that names one not known.
mod claims;
mod config;
mod document;
mod keys;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use jiff::Timestamp;
use kelson_meta::Clock;
use parking_lot::RwLock;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{AsyncTokenAuthenticator, Authenticated, Rejected, TokenAuthenticator};
pub use config::{AuthenticationConfiguration, Issuer, OidcFlags};
pub use keys::ALGORITHMS;

/// Longest token looked at.
const TOKEN_MAX_BYTES: usize = 32 * 1024;
/// Keys are not fetched more often than this, whatever tokens name.
const REFETCH: Duration = Duration::from_secs(10);
/// How much of the future `nbf` may be in: clocks differ.
const NOT_BEFORE_LEEWAY: Duration = Duration::from_secs(5 * 60);

/// Reads documents over HTTPS. The implementation bounds time and size.
#[async_trait]
pub trait Fetch: Send + Sync {
    /// The body of a good answer; `ca_pem` empty: the system's authorities vouch for the server.
    async fn get(&self, url: &str, ca_pem: &[u8]) -> Result<Bytes, String>;
}

/// Authenticates tokens of configured issuers.
pub struct Issuers {
    issuers: RwLock<Vec<Arc<Known>>>,
    fetch: Arc<dyn Fetch>,
    clock: Arc<dyn Clock>,
}

struct Known {
    issuer: Arc<Issuer>,
    keys: RwLock<Fetched>,
    /// Held while keys are fetched: whoever comes meanwhile waits for them.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Fetched {
    keys: Vec<keys::Key>,
    tried: Option<Timestamp>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
}

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

/// A token taken apart; nothing of it is believed yet.
struct Parsed<'a> {
    signed: &'a str,
    signature: Vec<u8>,
    header: Header,
    claims: Map<String, Value>,
}

fn parse(token: &str) -> Option<Parsed<'_>> {
    if token.len() > TOKEN_MAX_BYTES {
        return None;
    }
    let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
    let (signed, signature) = token.rsplit_once('.')?;
    let (header, payload) = signed.split_once('.')?;
    let header = serde_json::from_slice(&decode(header)?).ok()?;
    let claims = serde_json::from_slice(&decode(payload)?).ok()?;
    Some(Parsed { signed, signature: decode(signature)?, header, claims })
}

impl Issuers {
    /// Of these issuers; documents are read through `fetch`.
    pub fn new(issuers: Vec<Arc<Issuer>>, fetch: Arc<dyn Fetch>, clock: Arc<dyn Clock>) -> Self {
        Self { issuers: RwLock::new(issuers.into_iter().map(Known::new).collect()), fetch, clock }
    }

    /// Believes tokens of these issuers and no others from now on. First their keys are fetched: nobody's good token is refused
    /// because of the change.
    ///
    /// # Errors
    /// The first issuer whose keys cannot be had; nothing changes then.
    pub async fn replace(&self, issuers: Vec<Arc<Issuer>>) -> Result<(), String> {
        let next: Vec<Arc<Known>> = issuers.into_iter().map(Known::new).collect();
        for known in &next {
            let keys = known.refresh(&*self.fetch).await;
            let keys = keys.map_err(|why| format!("issuer {:?}: {why}", known.issuer.url))?;
            *known.keys.write() = Fetched { keys, tried: Some(self.clock.now()) };
        }
        *self.issuers.write() = next;
        Ok(())
    }

    /// The token, and who says to have issued it; `None` where that is none of ours.
    fn issued<'t>(&self, token: &'t str) -> Option<(Parsed<'t>, Arc<Known>)> {
        let parsed = parse(token)?;
        let iss = parsed.claims.get("iss")?.as_str()?;
        let known = self.issuers.read().iter().find(|known| known.issuer.url == iss).cloned()?;
        Some((parsed, known))
    }
}

impl Known {
    fn new(issuer: Arc<Issuer>) -> Arc<Self> {
        Arc::new(Self { issuer, keys: RwLock::default(), turn: tokio::sync::Mutex::default() })
    }

    /// Whether keys must be fetched before this token can be judged.
    fn lacks(&self, kid: &str, now: Timestamp) -> bool {
        let fetched = self.keys.read();
        let there = !fetched.keys.is_empty() && (kid.is_empty() || fetched.keys.iter().any(|key| key.is_named(kid)));
        let lately = fetched.tried.is_some_and(|at| now.duration_since(at).unsigned_abs() < REFETCH);
        !there && !lately
    }

    async fn refresh(&self, fetch: &dyn Fetch) -> Result<Vec<keys::Key>, String> {
        let issuer = &self.issuer;
        let document = fetch.get(&issuer.discovery_url, &issuer.ca_pem).await?;
        let found: Discovery = serde_json::from_slice(&document).map_err(|e| format!("no discovery document: {e}"))?;
        if found.issuer != issuer.url {
            return Err(format!("the discovery document is of issuer {:?}", found.issuer));
        }
        if !found.jwks_uri.starts_with("https://") {
            return Err("jwks_uri is no https URL".into());
        }
        keys::parse(&fetch.get(&found.jwks_uri, &issuer.ca_pem).await?)
    }

    fn judge(&self, parsed: &Parsed<'_>, now: Timestamp) -> Result<Authenticated, Rejected> {
        let reject = |why: &str| Rejected(format!("oidc: verify token: {why}"));
        let algorithm = parsed.header.alg.as_str();
        if !self.issuer.algorithms.iter().any(|known| known == algorithm) {
            return Err(reject("its signature is of an algorithm that is not allowed"));
        }
        let fetched = self.keys.read();
        if fetched.keys.is_empty() {
            return Err(reject("the issuer's keys are not known yet"));
        }
        let mut named = fetched.keys.iter().filter(|key| key.is_named(&parsed.header.kid));
        if !named.any(|key| key.verifies(algorithm, parsed.signed.as_bytes(), &parsed.signature)) {
            return Err(reject("failed to verify signature"));
        }
        drop(fetched);
        let claims = &parsed.claims;
        let for_us =
            |audience: &Value| audience.as_str().is_some_and(|a| self.issuer.audiences.iter().any(|own| own == a));
        let audience = match claims.get("aud") {
            Some(Value::Array(list)) => list.iter().any(for_us),
            Some(one) => for_us(one),
            None => false,
        };
        if !audience {
            return Err(reject("expected another audience"));
        }
        let time = |claim: &str| match claims.get(claim) {
            None => Ok(None),
            Some(value) => {
                let seconds = value.as_f64().map(|s| s as i64).and_then(|s| Timestamp::from_second(s).ok());
                seconds.map(Some).ok_or_else(|| reject("a time is no number"))
            }
        };
        match time("exp")? {
            Some(end) if now < end => {}
            Some(_) => return Err(reject("token is expired")),
            None => return Err(reject("token does not expire")),
        }
        if time("nbf")?.is_some_and(|begin| now.checked_add(NOT_BEFORE_LEEWAY).is_ok_and(|now| now < begin)) {
            return Err(reject("token is not valid yet"));
        }
        let user = self.issuer.rules.user(claims).map_err(|why| Rejected(format!("oidc: {why}")))?;
        Ok(Authenticated::new(user))
    }
}

impl TokenAuthenticator for Issuers {
    fn authenticate_token(&self, token: &str, _: &[String]) -> Result<Option<Authenticated>, Rejected> {
        match self.issued(token) {
            Some((parsed, known)) => known.judge(&parsed, self.clock.now()).map(Some),
            None => Ok(None),
        }
    }

    fn as_async(&self, token: &str, _: &[String]) -> Option<&dyn AsyncTokenAuthenticator> {
        let (parsed, known) = self.issued(token)?;
        known.lacks(&parsed.header.kid, self.clock.now()).then_some(self)
    }
}

#[async_trait]
impl AsyncTokenAuthenticator for Issuers {
    async fn authenticate_later(&self, token: &str, _: &[String]) -> Result<Option<Authenticated>, Rejected> {
        let Some((parsed, known)) = self.issued(token) else { return Ok(None) };
        let turn = known.turn.lock().await;
        if known.lacks(&parsed.header.kid, self.clock.now()) {
            let found = known.refresh(&*self.fetch).await;
            let mut fetched = known.keys.write();
            fetched.tried = Some(self.clock.now());
            match found {
                Ok(keys) => fetched.keys = keys,
                // What was known stays good.
                Err(why) => tracing::warn!(issuer = known.issuer.url, why, "the issuer's keys were not fetched"),
            }
        }
        drop(turn);
        known.judge(&parsed, self.clock.now()).map(Some)
    }
}
