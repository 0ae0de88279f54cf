//! Authentication and authorization of the kubelet's clients: by client certificate or TokenReview, and by SubjectAccessReview of the API
//! server; results are cached (upstream: `pkg/kubelet/server/auth.go`).
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, header};
use k8s_openapi::api::authentication::v1::TokenReview;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kelson_client::Client;
use kelson_meta::Clock;
use kelson_metrics::Registry;
use kelson_pki::{CertInfo, ClientChains};
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::config::{Config, ReviewRules};
use crate::metrics::ReviewMetrics;

/// The time for which an invalid token is cached, so that clients without a valid token do not cause requests to the API server.
const BAD_TOKEN_FOR: Duration = Duration::from_secs(10);
/// Maximum number of concurrent token reviews; a request waits up to [`REVIEW_WAIT`].
const REVIEWS_MAX: usize = 8;
/// Maximum wait for a token review slot.
const REVIEW_WAIT: Duration = Duration::from_secs(2);
/// Maximum length of a token in bytes; longer ones are rejected.
const TOKEN_BYTES_MAX: usize = 16 * 1024;
/// Maximum number of cache entries of each kind.
const KEPT_MAX: usize = 1000;

/// A client, as its certificate or token identifies it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct User {
    /// User name for authorization.
    pub name: String,
    /// UID of the user; empty if unknown.
    pub uid: String,
    /// Groups for authorization.
    pub groups: Vec<String>,
    /// Further attributes for authorization.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Key of a certificate's ID in the user's extra attributes.
const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";

/// SHA-256 of a token; the token itself is never stored.
type TokenDigest = [u8; 32];

/// Authenticates and authorizes clients, with caches.
pub struct Auth {
    client: Client,
    clock: Arc<dyn Clock>,
    node_name: String,
    kept: ReviewRules,
    chains: Option<ClientChains>,
    tokens: Mutex<HashMap<TokenDigest, (Option<User>, Instant)>>,
    reviews: Semaphore,
    decisions: Mutex<HashMap<(User, &'static str, &'static str), (bool, Instant)>>,
    metrics: ReviewMetrics,
}

impl Auth {
    /// Creates it with the CA certificates of clients in `cas`. Metrics of reviews go to `registry`.
    ///
    /// # Errors
    /// A certificate of `cas` is invalid.
    pub fn new(
        client: Client,
        clock: Arc<dyn Clock>,
        config: &Config,
        cas: &[&str],
        registry: &Registry,
    ) -> Result<Self, String> {
        let chains = if cas.is_empty() { None } else { Some(ClientChains::new(cas).map_err(|e| e.to_string())?) };
        Ok(Self {
            client,
            clock,
            node_name: config.node_name.clone(),
            kept: config.server.reviews,
            chains,
            tokens: Mutex::default(),
            reviews: Semaphore::new(REVIEWS_MAX),
            decisions: Mutex::default(),
            metrics: ReviewMetrics::new(registry),
        })
    }

    /// Replaces the CA certificates of clients, from the next request on.
    ///
    /// # Errors
    /// They are invalid; the previous ones stay.
    pub fn trust(&self, ca_pem: &str) -> Result<(), String> {
        self.chains.as_ref().map_or(Ok(()), |chains| chains.replace(&[ca_pem]).map_err(|e| e.to_string()))
    }

    /// Authenticates a client; `None` without a valid certificate or token, which results in status 401.
    pub async fn authenticate(&self, chain: &[CertificateDer<'static>], headers: &HeaderMap) -> Option<User> {
        if let (Some(chains), Some(leaf)) = (&self.chains, chain.first())
            && chains.verify(chain, self.clock.now()).is_ok()
        {
            let info = CertInfo::from_der(leaf).ok()?;
            // A certificate without a common name does not identify a user.
            if !info.common_name.is_empty() {
                return Some(User {
                    name: info.common_name,
                    uid: String::new(),
                    groups: with_authenticated(info.organizations),
                    extra: BTreeMap::from([(CREDENTIAL.to_owned(), vec![credential(leaf)])]),
                });
            }
        }
        let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        let token = value.strip_prefix("Bearer ")?.trim();
        if token.is_empty() || token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        if self.kept.takes_tokens { self.review(token).await } else { None }
    }

    async fn review(&self, token: &str) -> Option<User> {
        let digest: TokenDigest = Sha256::digest(token.as_bytes()).into();
        if let Some(known) = self.known(&digest) {
            return known;
        }
        let _turn = tokio::time::timeout(REVIEW_WAIT, self.reviews.acquire()).await.ok()?.ok()?;
        // Another request may have reviewed the same token meanwhile.
        if let Some(known) = self.known(&digest) {
            return known;
        }
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
        let began = Instant::now();
        let answer = self.client.create::<TokenReview>("", &review).await;
        self.metrics.authentication.asked(&answer, began.elapsed());
        let answer = match answer {
            Ok(a) => a.status.unwrap_or_default(),
            Err(e) => {
                // Not cached, because the error does not concern the token.
                tracing::warn!(error = %e, "token review failed; rejecting the request");
                return None;
            }
        };
        let user = answer.user.filter(|_| answer.authenticated == Some(true));
        let user = user.map(|u| User {
            name: u.username.unwrap_or_default(),
            uid: u.uid.unwrap_or_default(),
            groups: u.groups.unwrap_or_default(),
            extra: u.extra.unwrap_or_default(),
        });
        let mut tokens = self.tokens.lock();
        if tokens.len() >= KEPT_MAX {
            tokens.retain(|_, (user, at)| at.elapsed() < self.kept_for(user.as_ref()));
        }
        // Invalid tokens are removed first, so that many of them do not cause reviews of valid tokens.
        if tokens.len() >= KEPT_MAX {
            tokens.retain(|_, (user, _)| user.is_some());
        }
        if tokens.len() >= KEPT_MAX
            && let Some(oldest) = tokens.iter().min_by_key(|(_, (_, at))| *at).map(|(digest, _)| *digest)
        {
            tokens.remove(&oldest);
        }
        tokens.insert(digest, (user.clone(), Instant::now()));
        user
    }

    fn kept_for(&self, user: Option<&User>) -> Duration {
        if user.is_some() { self.kept.token_for } else { BAD_TOKEN_FOR }
    }

    /// Returns the cached result of a token, if there is one.
    fn known(&self, digest: &TokenDigest) -> Option<Option<User>> {
        let tokens = self.tokens.lock();
        let (user, at) = tokens.get(digest)?;
        (at.elapsed() < self.kept_for(user.as_ref())).then(|| user.clone())
    }

    /// Authorizes `verb` on any of the node's `subresources`.
    ///
    /// # Errors
    /// The message for status 403.
    pub async fn authorize(
        &self,
        user: &User,
        verb: &'static str,
        subresources: &'static [&'static str],
    ) -> Result<(), String> {
        if user.groups.iter().any(|g| g == "system:masters") {
            return Ok(());
        }
        for sub in subresources {
            if self.allowed(user, verb, sub).await {
                return Ok(());
            }
        }
        let node = &self.node_name;
        let wanted = subresources.last().copied().unwrap_or("proxy");
        Err(format!("Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{wanted}]) on {node}", user.name))
    }

    async fn allowed(&self, user: &User, verb: &'static str, sub: &'static str) -> bool {
        let key = (user.clone(), verb, sub);
        let kept = self.decisions.lock().get(&key).copied();
        if let Some((answer, _)) = kept.filter(|(a, at)| at.elapsed() < self.kept.decision(*a)) {
            return answer;
        }
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
            "user": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra, "resourceAttributes": {
                "verb": verb, "version": "v1", "resource": "nodes", "subresource": sub, "name": self.node_name}}});
        let began = Instant::now();
        let answer = self.client.create::<SubjectAccessReview>("", &review).await;
        self.metrics.authorization.asked(&answer, began.elapsed());
        let answer = match answer {
            Ok(r) => r.status.is_some_and(|s| s.allowed),
            Err(e) => {
                // Not cached; the next request asks again.
                tracing::warn!(error = %e, "subject access review failed; denying the request");
                return false;
            }
        };
        let mut decisions = self.decisions.lock();
        if decisions.len() >= KEPT_MAX {
            decisions.clear();
        }
        decisions.insert(key, (answer, Instant::now()));
        answer
    }
}

/// The ID of a certificate: its SHA-256.
fn credential(leaf: &CertificateDer<'_>) -> String {
    let sum: [u8; 32] = Sha256::digest(leaf).into();
    let hex: String = sum.iter().map(|b| format!("{b:02x}")).collect();
    format!("X509SHA256={hex}")
}

fn with_authenticated(mut groups: Vec<String>) -> Vec<String> {
    groups.push("system:authenticated".into());
    groups
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use jiff::Timestamp;
    use kelson_client::{Request, Response, Transport, TransportError, full_body};
    use kelson_doubles::TokioClock;

    use super::*;

    /// An API server that knows one token and counts requests.
    #[derive(Default)]
    struct Reviews {
        asked: AtomicUsize,
        last: Mutex<serde_json::Value>,
        at_once: AtomicUsize,
        most: AtomicUsize,
    }

    struct Wire(Arc<Reviews>);

    impl Transport for Wire {
        fn send(&self, request: Request) -> Pin<Box<dyn Future<Output = Result<Response, TransportError>> + Send>> {
            let counts = Arc::clone(&self.0);
            Box::pin(async move {
                counts.asked.fetch_add(1, Ordering::SeqCst);
                counts.most.fetch_max(counts.at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(100)).await;
                counts.at_once.fetch_sub(1, Ordering::SeqCst);
                let asked: serde_json::Value = serde_json::from_slice(request.body()).expect("json");
                let good = asked["spec"]["token"] == "good";
                let user = json!({"username": "u", "uid": "7", "groups": ["g"], "extra": {"k": ["v", "w"]}});
                let mut status = if good { json!({"authenticated": true, "user": user}) } else { json!({}) };
                if asked["kind"] == "SubjectAccessReview" {
                    status = json!({"allowed": asked["spec"]["extra"]["k"][1] == "w"});
                }
                *counts.last.lock() = asked["spec"].clone();
                Ok(Response::new(full_body(json!({"metadata": {}, "spec": {}, "status": status}).to_string())))
            })
        }
    }

    fn clock() -> Arc<TokioClock> {
        Arc::new(TokioClock::starting_at(Timestamp::from_second(1_800_000_000).expect("time")))
    }

    fn config() -> Config {
        Config::new("n1", std::path::Path::new("/"))
    }

    fn auth() -> (Arc<Reviews>, Auth) {
        let reviews = Arc::new(Reviews::default());
        let client = Client::new(Arc::new(Wire(Arc::clone(&reviews))), "test");
        (reviews, Auth::new(client, clock(), &config(), &[], &Registry::new()).expect("auth"))
    }

    #[tokio::test(start_paused = true)]
    async fn clients_are_believed_as_go_believes_them() {
        for row in kelson_doubles::chains::rows_of(kelson_pki::Usage::Client) {
            let client = Client::new(Arc::new(Wire(Arc::default())), "test");
            let auth = Auth::new(client, clock(), &config(), &[&row.bundle_pem()], &Registry::new()).expect("auth");
            let found = auth.authenticate(&row.shown, &HeaderMap::new()).await.map(|user| user.name);
            assert_eq!(found, row.is_accepted.then(|| "jane".to_owned()), "{}", row.what);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_certificate_without_a_name_authenticates_no_one() {
        let now = clock().now();
        let ca = kelson_pki::Authority::create("ca", now).expect("a CA");
        let spec = kelson_pki::LeafSpec {
            common_name: "",
            organizations: &["system:masters".to_owned()],
            sans: &[],
            purpose: kelson_pki::Purpose::Client,
            lifetime: Duration::from_secs(3600),
        };
        let issued = ca.issue(&spec, now).expect("issued");
        let shown = kelson_pki::certificates_from_pem(&issued.cert_pem).expect("a certificate");
        let client = Client::new(Arc::new(Wire(Arc::default())), "test");
        let auth = Auth::new(client, clock(), &config(), &[ca.cert_pem()], &Registry::new()).expect("auth");
        assert!(auth.authenticate(&shown, &HeaderMap::new()).await.is_none());
        let by_token = auth.authenticate(&shown, &bearer("good")).await.expect("by its token");
        assert_eq!(by_token.name, "u");
    }

    #[tokio::test(start_paused = true)]
    async fn invalid_tokens_do_not_evict_valid_ones_from_the_cache() {
        let (reviews, auth) = auth();
        assert!(auth.authenticate(&[], &bearer("good")).await.is_some());
        for n in 0..KEPT_MAX + 2 {
            auth.tokens.lock().insert(Sha256::digest(n.to_string()).into(), (None, Instant::now()));
        }
        assert!(auth.authenticate(&[], &bearer("bad")).await.is_none());
        let asked = reviews.asked.load(Ordering::SeqCst);
        assert!(auth.authenticate(&[], &bearer("good")).await.is_some());
        assert_eq!(reviews.asked.load(Ordering::SeqCst), asked, "it is remembered");
    }

    fn bearer(token: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, format!("Bearer {token}").parse().expect("a header"))])
    }

    #[tokio::test(start_paused = true)]
    async fn a_bad_token_is_asked_about_once_in_ten_seconds() {
        let (reviews, auth) = auth();
        for _ in 0..5 {
            assert_eq!(auth.authenticate(&[], &bearer("bad")).await, None);
        }
        assert_eq!(reviews.asked.load(Ordering::SeqCst), 1);
        tokio::time::sleep(BAD_TOKEN_FOR).await;
        assert_eq!(auth.authenticate(&[], &bearer("bad")).await, None);
        assert_eq!(reviews.asked.load(Ordering::SeqCst), 2);
        for _ in 0..2 {
            assert_eq!(auth.authenticate(&[], &bearer("good")).await.map(|u| u.name).as_deref(), Some("u"));
        }
        assert_eq!(reviews.asked.load(Ordering::SeqCst), 3);
        assert_eq!(auth.authenticate(&[], &bearer(&"x".repeat(TOKEN_BYTES_MAX + 1))).await, None);
        assert_eq!(reviews.asked.load(Ordering::SeqCst), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn user_attributes_are_sent_for_authorization() {
        let (reviews, auth) = auth();
        let user = auth.authenticate(&[], &bearer("good")).await.expect("known");
        auth.authorize(&user, "create", &["proxy"]).await.expect("allowed for what is known of him");
        let spec = reviews.last.lock().clone();
        assert_eq!((&spec["user"], &spec["uid"], &spec["groups"]), (&json!("u"), &json!("7"), &json!(["g"])));
        assert_eq!(spec["extra"], json!({"k": ["v", "w"]}));
        // A user with other attributes is reviewed separately.
        let other = User { extra: BTreeMap::new(), ..user };
        assert!(auth.authorize(&other, "create", &["proxy"]).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn reviews_are_cached_as_configured() {
        let reviews = Arc::new(Reviews::default());
        let mut config = config();
        let seconds = Duration::from_secs;
        config.server.reviews =
            ReviewRules { token_for: seconds(5), allowed_for: seconds(7), ..ReviewRules::default() };
        let of = |config: &Config| {
            let client = Client::new(Arc::new(Wire(Arc::clone(&reviews))), "test");
            Auth::new(client, clock(), config, &[], &Registry::new()).expect("auth")
        };
        let auth = of(&config);
        let user = auth.authenticate(&[], &bearer("good")).await.expect("known");
        auth.authorize(&user, "get", &["metrics"]).await.expect("allowed");
        tokio::time::sleep(seconds(6)).await;
        auth.authenticate(&[], &bearer("good")).await.expect("known");
        auth.authorize(&user, "get", &["metrics"]).await.expect("allowed");
        assert_eq!(reviews.asked.load(Ordering::SeqCst), 3, "the token alone was asked about again");
        config.server.reviews.takes_tokens = false;
        assert_eq!(of(&config).authenticate(&[], &bearer("good")).await, None, "no review is requested");
        assert_eq!(reviews.asked.load(Ordering::SeqCst), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn reviews_are_counted_by_status_code() {
        let registry = Registry::new();
        let client = Client::new(Arc::new(Wire(Arc::default())), "test");
        let auth = Auth::new(client, clock(), &config(), &[], &registry).expect("auth");
        let user = auth.authenticate(&[], &bearer("good")).await.expect("known");
        auth.authorize(&user, "get", &["metrics"]).await.expect("allowed");
        auth.authorize(&user, "get", &["metrics"]).await.expect("allowed, as it was before");
        let text = registry.text();
        for line in [
            "apiserver_delegated_authn_request_total{code=\"201\"} 1",
            "apiserver_delegated_authn_request_duration_seconds_bucket{code=\"201\",le=\"0.25\"} 1",
            "apiserver_delegated_authz_request_total{code=\"201\"} 1",
            "apiserver_delegated_authz_request_duration_seconds_count{code=\"201\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_tokens_is_few_requests_at_once() {
        let (reviews, auth) = auth();
        let all = (0..200).map(|n| {
            let auth = &auth;
            async move { auth.authenticate(&[], &bearer(&format!("bad-{n}"))).await }
        });
        assert!(futures::future::join_all(all).await.iter().all(Option::is_none));
        assert_eq!(reviews.most.load(Ordering::SeqCst), REVIEWS_MAX);
        assert!(reviews.asked.load(Ordering::SeqCst) < 200, "those that waited too long are refused unasked");
    }
}
