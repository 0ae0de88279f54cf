//! Identify: authenticates the sender by certificate or token, and applies impersonation.
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::request::Parts;
use kelson_auth::token::uses::Remarks;
use kelson_auth::{Credentials, UserInfo, authenticate};
use kelson_meta::Status;
use rustls_pki_types::CertificateDer;
use tokio::time::Instant;

use super::authorize;
use crate::request::route::RequestInfo;
use crate::request::selectors::ParsedSelectors;
use crate::shared::Server;
use crate::shared::identity_metrics::AuthenticationResult;

/// The origin of a request.
pub enum Identity {
    /// A connection of the network.
    Network {
        /// The client's certificate chain. The client has proven the key; the issuer is not verified yet.
        certificates: Arc<[CertificateDer<'static>]>,
        /// The other end of the connection.
        peer: IpAddr,
    },
    /// A component of this process.
    Known(Arc<UserInfo>),
}

impl Identity {
    /// The other end of the connection; loopback for components of this process.
    pub fn peer(&self) -> IpAddr {
        match self {
            Self::Network { peer, .. } => *peer,
            Self::Known(_) => Ipv4Addr::LOCALHOST.into(),
        }
    }
}

/// The authenticated sender of a request.
pub struct Authenticated {
    /// The user that the credentials name.
    pub user: Arc<UserInfo>,
    /// Warnings for the client and annotations for the audit log about the credentials.
    pub remarks: Option<Arc<Remarks>>,
}

/// Authenticates the request and removes the credentials from its headers.
///
/// # Errors
/// 401 for invalid credentials.
pub async fn authenticate(server: &Server, parts: &mut Parts, identity: &Identity) -> Result<Authenticated, Status> {
    let authenticated = match identity {
        Identity::Known(user) => Authenticated { user: Arc::clone(user), remarks: None },
        Identity::Network { certificates, .. } => {
            let path = parts.uri.path();
            let credentials = Credentials { headers: &parts.headers, certificates, path };
            let since = Instant::now();
            let found = server.auth.authenticator.authenticate(&credentials).await;
            let proof = match &found {
                Ok(_) => AuthenticationResult::Success,
                Err(_) if certificates.is_empty() && !parts.headers.contains_key(AUTHORIZATION) => {
                    AuthenticationResult::Failure
                }
                Err(_) => AuthenticationResult::Error,
            };
            let user = found.as_ref().ok().map(|found| &*found.user);
            server.metrics.identity().count_authentication(proof, user, since.elapsed());
            let found = found.map_err(|why| {
                if let Some(suppressed) = server.rejections.allow() {
                    let path = shortened(path);
                    tracing::info!(path, %why, suppressed, "unable to authenticate the request");
                }
                Status::unauthorized()
            })?;
            Authenticated { user: found.user, remarks: found.remarks }
        }
    };
    // From here on the credentials can be neither logged nor passed on to a backend.
    server.auth.authenticator.strip(&mut parts.headers);
    Ok(authenticated)
}

/// The user that a request impersonates.
pub struct Impersonated {
    /// The user that the request has from now on.
    pub user: Arc<UserInfo>,
    /// The verb of the constrained impersonation that allowed it; empty for unconstrained impersonation.
    pub constraint: String,
}

/// The impersonated user; `None` without impersonation headers. The headers are removed.
///
/// # Errors
/// 403 if the impersonation is not allowed, 400 if the headers are invalid.
pub async fn impersonate(
    server: &Server,
    parts: &mut Parts,
    info: &RequestInfo,
    selectors: &ParsedSelectors,
    user: &UserInfo,
) -> Result<Option<Impersonated>, Status> {
    let request = authorize::attributes(info, selectors, user, parts.uri.path());
    let (metrics, since) = (server.metrics.impersonation(), Instant::now());
    let other =
        authenticate::impersonate(&parts.headers, &request, &metrics.counting(server.authorizer.as_ref())).await;
    match &other {
        Ok(Some(other)) => metrics.count_attempt(Some(&other.constraint), since.elapsed()),
        // Invalid headers are not counted as an attempt.
        Err(status) if status.code != 400 => metrics.count_attempt(None, since.elapsed()),
        _ => {}
    }
    Ok(other?.map(|other| {
        authenticate::strip_impersonation(&mut parts.headers);
        Impersonated { user: Arc::new(other.user), constraint: other.constraint }
    }))
}

/// The beginning of a string that a client chose, for the log.
fn shortened(text: &str) -> &str {
    const LOGGED_BYTES_MAX: usize = 256;
    &text[..text.floor_char_boundary(LOGGED_BYTES_MAX)]
}
