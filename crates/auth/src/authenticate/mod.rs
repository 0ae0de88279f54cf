//! Authentication: from a request's TLS certificates and headers to a [`UserInfo`].
//!
//! The order is upstream's: front proxy, client certificate, bearer token; the first that proves an identity is used.
//! An invalid credential rejects the request even where anonymous requests are allowed.
mod bootstrap;
mod cache;
mod front_proxy;
mod headers;
mod impersonate;
pub mod jwt;
mod token_file;
mod webhook;
mod x509;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use http::HeaderMap;
use rustls_pki_types::CertificateDer;

pub use bootstrap::BootstrapTokens;
pub use cache::{CacheUse, CachedTokens};
pub use front_proxy::{FrontProxy, FrontProxyOptions};
pub use headers::{BearerToken, bearer_token, strip_credentials};
pub use impersonate::{Impersonated, impersonate, impersonation_mode, strip_impersonation};
pub use token_file::{TokenFile, TokenFileError};
pub use webhook::WebhookTokens;
pub use x509::{ClientCertificates, Lives};

use crate::token::uses::Remarks;
use crate::{UserInfo, user};

/// The credentials of a request.
#[derive(Clone, Copy)]
pub struct Credentials<'a> {
    /// The headers of the request, among them `Authorization`.
    pub headers: &'a HeaderMap,
    /// The client's certificate chain from TLS, leaf first; TLS has verified that the client has its key. Empty if
    /// there is none.
    pub certificates: &'a [CertificateDer<'a>],
    /// The request path, for anonymous access limited to paths.
    pub path: &'a str,
}

impl fmt::Debug for Credentials<'_> {
    /// Headers are left out, because they contain tokens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("path", &self.path).field("certificates", &self.certificates.len()).finish()
    }
}

/// A proven identity.
#[derive(Clone, Debug)]
pub struct Authenticated {
    /// The user, including groups added by the authenticator.
    pub user: Arc<UserInfo>,
    /// The audiences the credential is valid for; empty when the method has none.
    pub audiences: Arc<[String]>,
    /// Warnings for the client and annotations for the audit log.
    pub remarks: Option<Arc<Remarks>>,
}

impl Authenticated {
    /// Creates an identity from a credential without audiences, which is valid for the API server only.
    pub fn new(user: UserInfo) -> Self {
        Self { user: Arc::new(user), audiences: Arc::from([]), remarks: None }
    }
}

/// Why a credential is not valid. The client only sees `401 Unauthorized`; the message is for the log and for
/// TokenReview's `status.error`. It never contains the credential.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Rejected(pub String);

impl Rejected {
    /// Creates the error from a reason, which must not contain a secret.
    pub fn because(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

/// A method to authenticate a request.
pub trait Authenticator: Send + Sync {
    /// `Ok(None)`: the request has no credential of this kind. `Err`: it has an invalid one.
    fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Option<Authenticated>, Rejected>;
}

/// One kind of bearer token.
pub trait TokenAuthenticator: Send + Sync {
    /// `Ok(None)`: not a token of this kind. `audiences` are the required ones (empty: the API server's own).
    fn authenticate_token(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, Rejected>;

    /// Returns the asynchronous variant, if this token cannot be verified from memory (a webhook).
    fn as_async(&self, _token: &str, _audiences: &[String]) -> Option<&dyn AsyncTokenAuthenticator> {
        None
    }
}

/// A token authenticator that makes requests.
#[async_trait]
pub trait AsyncTokenAuthenticator: Send + Sync {
    /// Does the same as [`TokenAuthenticator::authenticate_token`] with requests to another server.
    async fn authenticate_later(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, Rejected>;
}

impl dyn TokenAuthenticator + '_ {
    /// Verifies a token, asynchronously only if necessary.
    ///
    /// # Errors
    /// A token of a known kind that is not valid.
    pub async fn prove(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, Rejected> {
        match self.as_async(token, audiences) {
            Some(waiting) => waiting.authenticate_later(token, audiences).await,
            None => self.authenticate_token(token, audiences),
        }
    }
}

/// Kinds of bearer tokens, tried in order until one knows the token.
#[derive(Clone, Default)]
pub struct TokenChain {
    members: Vec<Arc<dyn TokenAuthenticator>>,
}

impl TokenChain {
    /// Creates a chain of these members.
    pub fn new(members: Vec<Arc<dyn TokenAuthenticator>>) -> Self {
        Self { members }
    }
}

impl TokenAuthenticator for TokenChain {
    fn authenticate_token(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, Rejected> {
        let mut faults: Vec<String> = Vec::new();
        for member in &self.members {
            match member.authenticate_token(token, audiences) {
                Ok(Some(found)) => return Ok(Some(found)),
                Ok(None) => {}
                Err(e) => faults.push(e.0),
            }
        }
        if faults.is_empty() { Ok(None) } else { Err(join(&faults)) }
    }

    /// Asynchronous only if no member before the asynchronous one knows the token.
    fn as_async(&self, token: &str, audiences: &[String]) -> Option<&dyn AsyncTokenAuthenticator> {
        let waits = self.members.iter().position(|m| m.as_async(token, audiences).is_some())?;
        let known = self.members[..waits].iter().any(|m| matches!(m.authenticate_token(token, audiences), Ok(Some(_))));
        (!known).then_some(self)
    }
}

#[async_trait]
impl AsyncTokenAuthenticator for TokenChain {
    async fn authenticate_later(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, Rejected> {
        let mut faults: Vec<String> = Vec::new();
        for member in &self.members {
            match member.prove(token, audiences).await {
                Ok(Some(found)) => return Ok(Some(found)),
                Ok(None) => {}
                Err(e) => faults.push(e.0),
            }
        }
        if faults.is_empty() { Ok(None) } else { Err(join(&faults)) }
    }
}

fn join(faults: &[String]) -> Rejected {
    match faults {
        [one] => Rejected(one.clone()),
        many => Rejected(format!("[{}]", many.join(", "))),
    }
}

/// The requests that are accepted without credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anonymous {
    /// None: such requests get 401.
    Disabled,
    /// All, as `system:anonymous`.
    Enabled,
    /// Requests of exactly these paths (`/livez`, `/readyz`, `/healthz` …).
    Paths(Vec<String>),
}

/// All authentication methods of an API server.
///
/// [`RequestAuthenticator::authenticate`] tries the front proxy, the client certificate and the bearer token in this
/// order and returns the first proven identity. A request with an invalid credential is rejected; only one without any
/// credential may be anonymous. After it, [`RequestAuthenticator::strip`] removes what was read from the headers.
#[derive(Clone)]
pub struct RequestAuthenticator {
    /// The front proxy of extension API servers.
    pub front_proxy: Option<Arc<FrontProxy>>,
    /// Client certificates; `None` ignores certificates.
    pub certificates: Option<Arc<ClientCertificates>>,
    /// Bearer tokens; wrap the chain in [`CachedTokens`].
    pub tokens: Arc<dyn TokenAuthenticator>,
    /// Requests without credentials.
    pub anonymous: Anonymous,
}

impl RequestAuthenticator {
    /// Removes the headers that authentication reads, so that no later step can log or forward them: tokens, and front
    /// proxy headers from any client, which no later step may trust.
    pub fn strip(&self, headers: &mut http::HeaderMap) {
        strip_credentials(headers);
        match &self.front_proxy {
            Some(proxy) => proxy.strip(headers),
            None => FrontProxyOptions::default().strip(headers),
        }
    }

    /// Authenticates a request. Waits only for a token that another server must verify.
    ///
    /// # Errors
    /// Why the answer is 401.
    pub async fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Authenticated, Rejected> {
        let mut faults = Vec::new();
        let front_proxy = self.front_proxy.as_deref().map(|a| a as &dyn Authenticator);
        let certificates = self.certificates.as_deref().map(|a| a as &dyn Authenticator);
        for method in [front_proxy, certificates].into_iter().flatten() {
            match method.authenticate(credentials) {
                Ok(Some(found)) => return Ok(with_authenticated(found)),
                Ok(None) => {}
                Err(e) => faults.push(e.0),
            }
        }
        if let Some(token) = bearer_token(credentials.headers) {
            match self.tokens.prove(token.as_str(), &[]).await {
                Ok(Some(found)) => return Ok(with_authenticated(found)),
                Ok(None) => faults.push("invalid bearer token".to_owned()),
                Err(e) => faults.push(format!("[invalid bearer token, {e}]")),
            }
        }
        if !faults.is_empty() {
            return Err(join(&faults));
        }
        let allowed = match &self.anonymous {
            Anonymous::Disabled => false,
            Anonymous::Enabled => true,
            Anonymous::Paths(paths) => paths.iter().any(|p| p == credentials.path),
        };
        if allowed { Ok(anonymous()) } else { Err(Rejected::because("no credentials were offered")) }
    }
}

fn anonymous() -> Authenticated {
    static ANONYMOUS: std::sync::OnceLock<Authenticated> = std::sync::OnceLock::new();
    ANONYMOUS.get_or_init(|| Authenticated::new(UserInfo::anonymous())).clone()
}

/// Adds `system:authenticated`, unless the method already set one of both groups.
fn with_authenticated(mut found: Authenticated) -> Authenticated {
    let user = &found.user;
    if user.name == user::ANONYMOUS || user.in_group(user::AUTHENTICATED) || user.in_group(user::UNAUTHENTICATED) {
        return found;
    }
    Arc::make_mut(&mut found.user).groups.push(user::AUTHENTICATED.to_owned());
    found
}

#[cfg(test)]
#[path = "tests.rs"]
pub(crate) mod tests;
