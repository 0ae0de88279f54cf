//! Who are you: from a request's TLS certificates and headers to a [`UserInfo`].
use std::fmt;
use std::sync::Arc;

use http::HeaderMap;
use rustls_pki_types::CertificateDer;

use crate::UserInfo;

/// What a request offers as proof.
#[derive(Clone, Copy)]
pub struct Credentials<'a> {
    /// Request headers.
    pub headers: &'a HeaderMap,
    /// The client's certificate chain from TLS, leaf first; its key's possession is already proven. Empty if none.
    pub certificates: &'a [CertificateDer<'a>],
    /// Request path, for anonymous access limited to paths.
    pub path: &'a str,
}

impl fmt::Debug for Credentials<'_> {
    /// Never the headers: they hold tokens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("path", &self.path).field("certificates", &self.certificates.len()).finish()
    }
}

/// A proven identity.
#[derive(Clone, Debug)]
pub struct Authenticated {
    /// Who.
    pub user: Arc<UserInfo>,
    /// Audiences the credential was good for; empty when the method knows none.
    pub audiences: Arc<[String]>,
}

/// Why credentials that were offered are no good. The client only ever sees `401 Unauthorized`; the text is for the log
/// and for TokenReview's `status.error`. It never contains the credential.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Rejected(pub String);

/// One way to prove an identity by a request.
pub trait Authenticator: Send + Sync {
    /// `Ok(None)`: no credential of this kind was offered. `Err`: one was, and it is no good.
    fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Option<Authenticated>, Rejected>;
}

/// One kind of bearer token.
pub trait TokenAuthenticator: Send + Sync {
    /// `Ok(None)`: not a token of this kind. `audiences` are the ones wanted (empty: the API server's own).
    fn authenticate_token(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, Rejected>;
}
