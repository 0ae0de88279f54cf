//! Delegated authentication and authorization. Client certificates of the cluster's CA are verified here, tokens with a
//! TokenReview, and requests are authorized with a SubjectAccessReview. Results are cached by digest, so that no token
//! is kept in memory.
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, header};
use k8s_openapi::api::authentication::v1::TokenReview;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kelson_client::Client;
use kelson_meta::Clock;
use kelson_pki::{CertInfo, ClientChains};
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// The time to cache results; upstream's values for control plane components.
const TOKEN_FOR: Duration = Duration::from_secs(10);
const ALLOWED_FOR: Duration = Duration::from_secs(10);
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// The maximum number of cached results of each kind. The oldest are dropped.
const KEPT_MAX: usize = 1000;
/// The maximum number of concurrent reviews. Further requests are rejected, so that a flood of invalid tokens does not
/// become a flood of reviews.
const REVIEWS_MAX: usize = 16;

/// The user who requests metrics or profiles of a component.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The name of the user.
    pub name: String,
    /// The groups, including `system:authenticated` or `system:unauthenticated`.
    pub groups: Vec<String>,
}

impl Caller {
    fn anonymous() -> Self {
        Self { name: "system:anonymous".to_owned(), groups: vec!["system:unauthenticated".to_owned()] }
    }
}

/// The attributes of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attributes {
    /// A non-resource path.
    Path {
        /// The verb, such as `get` or `post`.
        verb: &'static str,
        /// The requested path.
        path: String,
    },
    /// A subresource of a node.
    Node {
        /// The verb, such as `get` or `create`.
        verb: &'static str,
        /// The name of the node.
        name: String,
        /// The subresource, such as `metrics` or `proxy`.
        subresource: &'static str,
    },
}

impl Attributes {
    fn spec(&self) -> (&'static str, Value) {
        match self {
            Self::Path { verb, path } => ("nonResourceAttributes", json!({"verb": verb, "path": path})),
            Self::Node { verb, name, subresource } => (
                "resourceAttributes",
                json!({"verb": verb, "version": "v1", "resource": "nodes", "subresource": subresource, "name": name}),
            ),
        }
    }
}

/// A bounded cache of results with an expiry time.
#[derive(Debug)]
struct ExpiringCache<K, V>(Mutex<HashMap<K, (V, Instant)>>);

impl<K: Eq + Hash + Clone, V: Clone> ExpiringCache<K, V> {
    fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    fn get(&self, key: &K) -> Option<V> {
        self.0.lock().get(key).filter(|(_, until)| Instant::now() < *until).map(|(v, _)| v.clone())
    }

    fn put(&self, key: K, value: V, life: Duration) {
        let now = Instant::now();
        let mut kept = self.0.lock();
        if kept.len() >= KEPT_MAX {
            kept.retain(|_, (_, until)| now < *until);
        }
        if kept.len() >= KEPT_MAX
            && let Some(first) = kept.iter().min_by_key(|(_, (_, until))| *until).map(|(k, _)| k.clone())
        {
            kept.remove(&first);
        }
        kept.insert(key, (value, now + life));
    }
}

/// Authenticates and authorizes requests with the API server, and caches the results.
pub struct Delegated {
    client: Client,
    clock: Arc<dyn Clock>,
    chains: ClientChains,
    tokens: ExpiringCache<[u8; 32], Option<Caller>>,
    decisions: ExpiringCache<(Caller, Attributes), bool>,
    reviews: Semaphore,
}

impl Delegated {
    /// Returns a delegate that uses `client`, whose user needs the role `system:auth-delegator`, and trusts client
    /// certificates of `client_ca_pem`.
    ///
    /// # Errors
    /// Fails if the CA is invalid.
    pub fn new(client: Client, clock: Arc<dyn Clock>, client_ca_pem: &str) -> Result<Self, kelson_pki::PkiError> {
        Ok(Self {
            client,
            clock,
            chains: ClientChains::new(&[client_ca_pem])?,
            tokens: ExpiringCache::new(),
            decisions: ExpiringCache::new(),
            reviews: Semaphore::new(REVIEWS_MAX),
        })
    }

    /// Replaces the CAs of client certificates with `client_ca_pem`, from the next request on.
    ///
    /// # Errors
    /// Fails when the CA cannot be parsed. The previous CAs then stay in use.
    pub fn trust(&self, client_ca_pem: &str) -> Result<(), kelson_pki::PkiError> {
        self.chains.replace(&[client_ca_pem])
    }

    /// Authenticates a request. Returns `None` for invalid credentials (401). Without credentials, the caller is
    /// anonymous.
    pub async fn authenticate(&self, chain: &[CertificateDer<'static>], headers: &HeaderMap) -> Option<Caller> {
        if let Some(leaf) = chain.first() {
            self.chains.verify(chain, self.clock.now()).ok()?;
            let info = CertInfo::from_der(leaf).ok()?;
            // A certificate without a common name names no user.
            if !info.common_name.is_empty() {
                let mut groups = info.organizations;
                groups.push("system:authenticated".to_owned());
                return Some(Caller { name: info.common_name, groups });
            }
        }
        let Some(value) = headers.get(header::AUTHORIZATION) else { return Some(Caller::anonymous()) };
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("Bearer") {
            return None;
        }
        self.review(token.trim()).await
    }

    async fn review(&self, token: &str) -> Option<Caller> {
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(kept) = self.tokens.get(&digest) {
            return kept;
        }
        let _turn = self.reviews.try_acquire().ok()?;
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
        let status = match self.client.create::<TokenReview>("", &review).await {
            Ok(answer) => answer.status.unwrap_or_default(),
            Err(e) => {
                // Errors are not cached, so the next request retries.
                tracing::warn!(error = %e, "TokenReview failed");
                return None;
            }
        };
        let user = status.user.filter(|_| status.authenticated == Some(true));
        let caller =
            user.map(|u| Caller { name: u.username.unwrap_or_default(), groups: u.groups.unwrap_or_default() });
        self.tokens.put(digest, caller.clone(), TOKEN_FOR);
        caller
    }

    /// Returns whether the caller is authorized. If the API server does not answer, the request is denied.
    pub async fn allows(&self, caller: &Caller, wants: Attributes) -> bool {
        if caller.groups.iter().any(|g| g == "system:masters") {
            return true;
        }
        let (attributes, spec) = wants.spec();
        let key = (caller.clone(), wants);
        if let Some(kept) = self.decisions.get(&key) {
            return kept;
        }
        let Ok(_turn) = self.reviews.try_acquire() else { return false };
        let mut review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": caller.name, "groups": caller.groups}});
        review["spec"][attributes] = spec;
        match self.client.create::<SubjectAccessReview>("", &review).await {
            Ok(answer) => {
                let allowed = answer.status.is_some_and(|s| s.allowed);
                self.decisions.put(key, allowed, if allowed { ALLOWED_FOR } else { REFUSED_FOR });
                allowed
            }
            Err(e) => {
                tracing::warn!(error = %e, "SubjectAccessReview failed");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answers_end_and_are_bounded() {
        let kept = ExpiringCache::new();
        kept.put(0, "a", Duration::from_secs(10));
        assert_eq!(kept.get(&0), Some("a"));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(kept.get(&0), None);
        for i in 1..=KEPT_MAX {
            kept.put(i, "b", Duration::from_secs(60));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(kept.0.lock().len(), KEPT_MAX, "the one that ended made room");
        kept.put(KEPT_MAX + 1, "c", Duration::from_secs(60));
        assert_eq!((kept.get(&1), kept.get(&2), kept.get(&(KEPT_MAX + 1))), (None, Some("b"), Some("c")));
    }
}
