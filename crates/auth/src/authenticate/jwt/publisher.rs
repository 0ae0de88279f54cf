//! The keys of one issuer, fetched when they are first needed and again for a token with an unknown key ID, and the
//! verification of its tokens.
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use parking_lot::RwLock;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::config::Issuer;
use super::keys;
use super::means::{Means, well_known};

/// The maximum length of a token in bytes.
pub(super) const TOKEN_MAX_BYTES: usize = 32 * 1024;
/// The minimum interval between fetching keys, whatever tokens name.
const REFETCH: Duration = Duration::from_secs(10);
/// The time by which `nbf` may be in the future, since clocks differ (as upstream's go-oidc 2).
const NOT_BEFORE_LEEWAY: Duration = Duration::from_secs(60);
/// The issuer in Google's older tokens, and in its documents (OpenID Connect Core, 15.6.2).
const GOOGLE: [&str; 2] = ["accounts.google.com", "https://accounts.google.com"];

/// The header of a token.
#[derive(Deserialize)]
pub(super) struct Header {
    alg: String,
    #[serde(default)]
    pub kid: String,
}

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

/// A parsed token; nothing in it is trusted yet.
pub(super) struct UnverifiedToken<'a> {
    signed: &'a str,
    signature: Vec<u8>,
    pub header: Header,
    pub claims: Map<String, Value>,
}

impl<'a> UnverifiedToken<'a> {
    /// Parses a token; `None` when it is not a JSON Web Token.
    pub(super) fn of(token: &'a str) -> Option<Self> {
        if token.len() > TOKEN_MAX_BYTES {
            return None;
        }
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        let header = kelson_meta::from_json(&decode(header)?).ok()?;
        let claims = kelson_meta::from_json(&decode(payload)?).ok()?;
        Some(Self { signed, signature: decode(signature)?, header, claims })
    }

    /// The issuer that the token names, which is not verified.
    pub(super) fn issuer(&self) -> Option<&str> {
        let iss = self.claims.get("iss")?.as_str()?;
        Some(if iss == GOOGLE[0] { GOOGLE[1] } else { iss })
    }
}

#[derive(Default)]
struct Fetched {
    keys: Vec<keys::IssuerKey>,
    tried: Option<Timestamp>,
}

/// The keys of one issuer, and the requirements for its tokens.
pub(super) struct Publisher {
    pub url: String,
    discovery_url: String,
    /// The CAs of its server, PEM; empty uses the system's CAs.
    ca_pem: Vec<u8>,
    audiences: Vec<String>,
    algorithms: Vec<String>,
    keys: RwLock<Fetched>,
    /// Held while keys are fetched, so that other requests wait for them.
    turn: tokio::sync::Mutex<()>,
}

impl Publisher {
    /// Creates the publisher of a configured issuer.
    pub(super) fn of(issuer: &Issuer) -> Self {
        Self {
            url: issuer.url.clone(),
            discovery_url: issuer.discovery_url.clone(),
            ca_pem: issuer.ca_pem.clone(),
            audiences: issuer.audiences.clone(),
            algorithms: issuer.algorithms.clone(),
            keys: RwLock::default(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// Creates the publisher of another issuer with the same requirements.
    pub(super) fn beside(&self, url: &str) -> Self {
        Self {
            url: url.to_owned(),
            discovery_url: well_known(url),
            ca_pem: self.ca_pem.clone(),
            audiences: self.audiences.clone(),
            algorithms: self.algorithms.clone(),
            keys: RwLock::default(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn ca_pem(&self) -> &[u8] {
        &self.ca_pem
    }

    /// Reports whether keys must be fetched before this token can be verified.
    pub(super) fn lacks(&self, kid: &str, now: Timestamp) -> bool {
        let fetched = self.keys.read();
        let there = !fetched.keys.is_empty() && (kid.is_empty() || fetched.keys.iter().any(|key| key.is_named(kid)));
        let lately = fetched.tried.is_some_and(|at| now.duration_since(at).unsigned_abs() < REFETCH);
        !there && !lately
    }

    /// Fetches the keys for this token if necessary and possible. Known keys stay valid.
    pub(super) async fn prepare(&self, kid: &str, means: &Means<'_>) {
        let _turn = self.turn.lock().await;
        if !self.lacks(kid, means.clock.now()) {
            return;
        }
        if let Err(why) = self.refresh(means).await {
            tracing::warn!(issuer = self.url, why, "fetching the issuer's keys failed");
        }
    }

    /// Fetches the keys now.
    ///
    /// # Errors
    /// Why they are not available; known keys stay.
    pub(super) async fn refresh(&self, means: &Means<'_>) -> Result<(), String> {
        let found = self.fetched(means).await;
        let mut fetched = self.keys.write();
        fetched.tried = Some(means.clock.now());
        fetched.keys = found?;
        Ok(())
    }

    async fn fetched(&self, means: &Means<'_>) -> Result<Vec<keys::IssuerKey>, String> {
        let document = means.fetch.get(&self.discovery_url, &self.ca_pem, None).await?;
        let found: Discovery =
            kelson_meta::from_json(&document).map_err(|e| format!("fetching the discovery document failed: {e}"))?;
        if found.issuer != self.url {
            return Err(format!("the discovery document is of issuer {:?}", found.issuer));
        }
        if !found.jwks_uri.starts_with("https://") {
            return Err("jwks_uri is not an https URL".into());
        }
        let set = means.fetch.get(&found.jwks_uri, &self.ca_pem, None).await;
        let keys = set.as_ref().map_err(Clone::clone).and_then(|text| keys::parse(text));
        means.observer.keys_fetched(&self.url, set.ok().filter(|_| keys.is_ok()).as_deref());
        keys
    }

    /// Verifies signature, audience and times of a token of this issuer.
    ///
    /// # Errors
    /// Why it is not valid; the message contains nothing of the token.
    pub(super) fn verify(&self, parsed: &UnverifiedToken<'_>, now: Timestamp) -> Result<(), &'static str> {
        self.signature(parsed)?;
        let claims = &parsed.claims;
        let for_us = |audience: &Value| audience.as_str().is_some_and(|a| self.audiences.iter().any(|own| own == a));
        let audience = match claims.get("aud") {
            Some(Value::Array(list)) => list.iter().any(for_us),
            Some(one) => for_us(one),
            None => false,
        };
        if !audience {
            return Err("the audience does not match");
        }
        let time = |claim: &str| match claims.get(claim) {
            None => Ok(None),
            Some(value) => {
                let seconds = value.as_f64().map(|s| s as i64).and_then(|s| Timestamp::from_second(s).ok());
                seconds.map(Some).ok_or("a time is not a number")
            }
        };
        match time("exp")? {
            Some(end) if now < end => {}
            Some(_) => return Err("token is expired"),
            None => return Err("token does not expire"),
        }
        if time("nbf")?.is_some_and(|begin| now.checked_add(NOT_BEFORE_LEEWAY).is_ok_and(|now| now < begin)) {
            return Err("token is not valid yet");
        }
        Ok(())
    }

    fn signature(&self, parsed: &UnverifiedToken<'_>) -> Result<(), &'static str> {
        let algorithm = parsed.header.alg.as_str();
        if !self.algorithms.iter().any(|known| known == algorithm) {
            return Err("its signature algorithm is not allowed");
        }
        let fetched = self.keys.read();
        if fetched.keys.is_empty() {
            return Err("the issuer's keys are not available yet");
        }
        let mut named = fetched.keys.iter().filter(|key| key.is_named(&parsed.header.kid));
        let signed = parsed.signed.as_bytes();
        if named.any(|key| key.verifies(algorithm, signed, &parsed.signature)) {
            return Ok(());
        }
        Err("failed to verify signature")
    }
}
