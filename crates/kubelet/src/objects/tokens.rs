//! Bound service account tokens for projected volumes: requested once, cached, and renewed after 80 % of their lifetime or after a day
//! (upstream: `pkg/kubelet/token`).
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kelson_client::{Client, Object};
use kelson_meta::Clock;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;

use crate::pod;

/// Percentage of its lifetime after which a token is renewed.
const RENEW_PERCENT: u32 = 80;
/// Maximum age of a token before it is renewed.
const RENEW_MAX: Duration = Duration::from_secs(24 * 3600);
/// Maximum clock change backwards before a token counts as issued in the future. The server has the same tolerance.
const EARLY_MAX: Duration = Duration::from_secs(60);
/// Lifetime in seconds of a token whose volume does not set one.
pub const DEFAULT_SECONDS: i64 = 3600;

/// A token. Its `Debug` output omits the token itself.
#[derive(Clone)]
pub struct Token {
    text: Arc<str>,
    /// When it was requested.
    asked: Timestamp,
    /// The time at which it should be renewed.
    pub renew_at: Timestamp,
    /// When it expires.
    pub expires: Timestamp,
}

impl Token {
    /// Returns the token itself.
    pub fn secret(&self) -> &str {
        &self.text
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token(.., renew at {})", self.renew_at)
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    pod: String,
    account: String,
    audience: String,
    seconds: i64,
}

#[derive(Deserialize)]
struct TokenAnswer {
    status: TokenAnswerStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TokenAnswerStatus {
    token: String,
    expiration_timestamp: Timestamp,
}

/// Cache of the tokens of this node's pods. Clones share it.
#[derive(Clone)]
pub struct Tokens {
    client: Client,
    clock: Arc<dyn Clock>,
    kept: Arc<Mutex<HashMap<Key, Token>>>,
}

impl Tokens {
    /// Creates an empty cache; tokens are requested when a volume needs them.
    pub fn new(client: Client, clock: Arc<dyn Clock>) -> Self {
        Self { client, clock, kept: Arc::default() }
    }

    /// Returns a token for `pod`: the cached one if it need not be renewed, otherwise a new one. If the request fails, returns the cached
    /// one as long as it is valid.
    pub async fn get(&self, pod: &Pod, audience: &str, seconds: i64) -> Result<Token, String> {
        let account = pod.spec.as_ref().and_then(|s| s.service_account_name.as_deref()).unwrap_or("default");
        let key =
            Key { pod: pod::uid(pod).to_owned(), account: account.to_owned(), audience: audience.to_owned(), seconds };
        let kept = self.kept.lock().get(&key).cloned();
        let now = self.clock.now();
        // If the token was requested in the future, the clock was set back, and the server rejects such tokens.
        if let Some(t) = kept.as_ref().filter(|t| now < t.renew_at && now + EARLY_MAX >= t.asked) {
            return Ok(t.clone());
        }
        match self.request(pod, account, audience, seconds).await {
            Ok(token) => {
                self.kept.lock().insert(key, token.clone());
                Ok(token)
            }
            Err(e) => match kept.filter(|t| now < t.expires) {
                Some(mut t) => {
                    tracing::warn!(error = %e, "renewing a service account token failed; keeping the current token");
                    t.renew_at = now + Duration::from_secs(30);
                    Ok(t)
                }
                None => Err(format!("failed to fetch token: {e}")),
            },
        }
    }

    async fn request(&self, pod: &Pod, account: &str, audience: &str, seconds: i64) -> Result<Token, String> {
        let audiences: Vec<&str> = if audience.is_empty() { vec![] } else { vec![audience] };
        let body = json!({"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{
            "audiences": audiences, "expirationSeconds": seconds,
            "boundObjectRef": {"apiVersion":"v1","kind":"Pod","name":pod::name(pod),"uid":pod::uid(pod)}}});
        let asked = self.clock.now();
        let namespace = pod::namespace(pod);
        let answer: TokenAnswer = self
            .client
            .create_sub(&<ServiceAccount as Object>::TYPE, namespace, account, "token", &body)
            .await
            .map_err(|e| e.to_string())?;
        let expires = answer.status.expiration_timestamp;
        let life = expires.duration_since(asked);
        let life = if life.is_positive() { life.unsigned_abs() } else { Duration::from_secs(60) };
        let renew = (life * RENEW_PERCENT / 100).min(RENEW_MAX);
        Ok(Token { text: answer.status.token.into(), asked, renew_at: asked + renew, expires })
    }

    /// Removes a pod's tokens.
    pub fn forget(&self, uid: &str) {
        self.kept.lock().retain(|k, _| k.pod != uid);
    }
}
