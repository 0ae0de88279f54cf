//! Tokens that a webhook verifies (`--authentication-token-webhook-config-file`). Its answers, positive and negative,
//! are cached for a configured time.
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kelson_meta::Clock;
use serde::Deserialize;
use serde_json::json;

use super::{AsyncTokenAuthenticator, Authenticated, Rejected, TokenAuthenticator};
use crate::UserInfo;
use crate::ask::Ask;
use crate::bounded::{Bounded, digest};

/// The maximum number of cached answers.
const KEPT_MAX: usize = 4096;
/// The maximum length of a token that is sent, in bytes.
const TOKEN_MAX_BYTES: usize = 64 * 1024;

/// Authenticates tokens by a webhook.
pub struct WebhookTokens {
    ask: Arc<dyn Ask>,
    /// The version of the review: `v1` or `v1beta1`.
    version: &'static str,
    /// The audiences of this API server, of which a token must have one.
    audiences: Vec<String>,
    kept_for: Duration,
    clock: Arc<dyn Clock>,
    kept: Bounded<Result<Option<Authenticated>, Rejected>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct TokenReview {
    status: TokenReviewStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct TokenReviewStatus {
    authenticated: bool,
    user: UserInfo,
    audiences: Vec<String>,
    error: String,
}

impl WebhookTokens {
    /// Creates the authenticator with this version of `authentication.k8s.io`, which caches answers for `kept_for`.
    pub fn new(
        ask: Arc<dyn Ask>,
        version: &'static str,
        audiences: Vec<String>,
        kept_for: Duration,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { ask, version, audiences, kept_for, clock, kept: Bounded::new(KEPT_MAX) }
    }

    fn key(&self, token: &str, audiences: &[String]) -> [u8; 32] {
        digest(std::iter::once(token.as_bytes()).chain(audiences.iter().map(|a| a.as_bytes())))
    }

    fn judge(&self, answer: &[u8], audiences: &[String]) -> Result<Option<Authenticated>, Rejected> {
        let review: TokenReview = kelson_meta::from_json(answer)
            .map_err(|_| Rejected::because("webhook authenticator: the response is not a TokenReview"))?;
        let status = review.status;
        if !status.authenticated {
            return if status.error.is_empty() { Ok(None) } else { Err(Rejected(status.error)) };
        }
        // A webhook that does not support audiences verifies for those of this server.
        let reported = if status.audiences.is_empty() { self.audiences.clone() } else { status.audiences };
        let wanted = if audiences.is_empty() { &self.audiences } else { audiences };
        let shared: Vec<String> = reported.into_iter().filter(|a| wanted.contains(a)).collect();
        if shared.is_empty() && !wanted.is_empty() {
            return Ok(None);
        }
        Ok(Some(Authenticated { user: Arc::new(status.user), audiences: shared.into(), remarks: None }))
    }
}

impl TokenAuthenticator for WebhookTokens {
    fn authenticate_token(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, Rejected> {
        self.kept.get(&self.key(token, audiences), self.clock.now()).unwrap_or(Ok(None))
    }

    fn as_async(&self, token: &str, audiences: &[String]) -> Option<&dyn AsyncTokenAuthenticator> {
        let unknown = self.kept.get(&self.key(token, audiences), self.clock.now()).is_none();
        (unknown && token.len() <= TOKEN_MAX_BYTES).then_some(self)
    }
}

#[async_trait]
impl AsyncTokenAuthenticator for WebhookTokens {
    async fn authenticate_later(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, Rejected> {
        let wanted = if audiences.is_empty() { &self.audiences } else { audiences };
        let review = json!({"apiVersion": format!("authentication.k8s.io/{}", self.version), "kind": "TokenReview",
            "metadata": {}, "spec": {"token": token, "audiences": wanted}, "status": {"user": {}}});
        // A failed call is not cached, since it says nothing about the token.
        let answer = self.ask.post(review.to_string().into()).await;
        let answer = answer.map_err(|why| Rejected(format!("webhook authenticator: {why}")))?;
        let judged = self.judge(&answer, audiences);
        let now = self.clock.now();
        if !self.kept_for.is_zero() {
            self.kept.put(self.key(token, audiences), judged.clone(), now + self.kept_for, now);
        }
        judged
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::HandClock;
    use super::*;
    use bytes::Bytes;
    use parking_lot::Mutex;
    use serde_json::Value;

    /// Accepts the token `good`; other tokens have answers by name.
    #[derive(Default)]
    struct Server(Mutex<Vec<Value>>);

    #[async_trait]
    impl Ask for Server {
        async fn post(&self, review: Bytes) -> Result<Bytes, String> {
            let review: Value = serde_json::from_slice(&review).unwrap();
            let token = review["spec"]["token"].as_str().unwrap().to_owned();
            self.0.lock().push(review);
            let user = json!({"username": "jane", "groups": ["dev"], "extra": {"k": ["v"]}});
            let status = match token.as_str() {
                "good" => json!({"authenticated": true, "user": user}),
                "of-others" => json!({"authenticated": true, "user": user, "audiences": ["others"]}),
                "of-ours" => json!({"authenticated": true, "user": user, "audiences": ["others", "api"]}),
                "faulty" => json!({"error": "it is faulty"}),
                "down" => return Err("connection refused".into()),
                "garbage" => return Ok("{".into()),
                _ => json!({"authenticated": false}),
            };
            Ok(json!({"status": status}).to_string().into())
        }
    }

    #[tokio::test]
    async fn answers_are_kept_and_failures_are_not() {
        let (server, clock) = (Arc::new(Server::default()), HandClock::at("2026-01-01T00:00:00Z"));
        let minutes = Duration::from_secs(120);
        let webhook = WebhookTokens::new(Arc::clone(&server) as _, "v1", vec!["api".into()], minutes, clock.clone());
        let webhook: &dyn TokenAuthenticator = &webhook;
        let ask = async |token: &str| {
            let found = webhook.prove(token, &[]).await;
            found.map(|found| found.map(|f| f.user.name.clone())).map_err(|e| e.0)
        };
        let jane = || Ok(Some("jane".to_owned()));
        for (token, wanted, calls) in [
            ("good", jane(), 1),
            ("bad", Ok(None), 1),
            ("of-ours", jane(), 1),
            ("of-others", Ok(None), 1),
            ("faulty", Err("it is faulty".to_owned()), 1),
            ("down", Err("webhook authenticator: connection refused".to_owned()), 3),
            ("garbage", Err("webhook authenticator: the response is not a TokenReview".to_owned()), 1),
        ] {
            let before = server.0.lock().len();
            for _ in 0..3 {
                assert_eq!(ask(token).await, wanted, "{token}");
            }
            assert_eq!(server.0.lock().len() - before, calls, "{token}");
        }
        let first = server.0.lock()[0].clone();
        assert_eq!(
            (&first["apiVersion"], &first["spec"]["audiences"]),
            (&json!("authentication.k8s.io/v1"), &json!(["api"]))
        );
        let before = server.0.lock().len();
        clock.pass(121);
        assert_eq!(ask("good").await, jane());
        assert_eq!(server.0.lock().len(), before + 1, "asked again after its time");
        let large = "x".repeat(TOKEN_MAX_BYTES + 1);
        assert_eq!(ask(&large).await, Ok(None));
        assert_eq!(server.0.lock().len(), before + 1, "what is too long is not sent");
    }
}
