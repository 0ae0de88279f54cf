//! Identify: who asks, by certificate or token, and who they ask to be.
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
use crate::shared::identity_metrics::Proof;

/// How a request came.
pub enum Identity {
    /// Over the network.
    Network {
        /// The client's certificate chain: its key is proven, its issuer is not.
        certificates: Arc<[CertificateDer<'static>]>,
        /// The other end of the connection.
        peer: IpAddr,
    },
    /// From a component of this process.
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

/// The sender of a request, as its credentials tell.
pub struct Proven {
    /// The user whom the credentials name.
    pub user: Arc<UserInfo>,
    /// What the client and the audit log are told of the credentials.
    pub remarks: Option<Arc<Remarks>>,
}

/// The user that the credentials prove. They are taken out of the headers.
///
/// # Errors
/// 401 for credentials that prove nothing.
pub async fn authenticate(server: &Server, parts: &mut Parts, identity: &Identity) -> Result<Proven, Status> {
    let proven = match identity {
        Identity::Known(user) => Proven { user: Arc::clone(user), remarks: None },
        Identity::Network { certificates, .. } => {
            let path = parts.uri.path();
            let credentials = Credentials { headers: &parts.headers, certificates, path };
            let since = Instant::now();
            let found = server.auth.authenticator.authenticate(&credentials).await;
            let proof = match &found {
                Ok(_) => Proof::Success,
                Err(_) if certificates.is_empty() && !parts.headers.contains_key(AUTHORIZATION) => Proof::Failure,
                Err(_) => Proof::Error,
            };
            let user = found.as_ref().ok().map(|found| &*found.user);
            server.metrics.identity().proven(proof, user, since.elapsed());
            let found = found.map_err(|why| {
                if let Some(untold) = server.rejections.allow() {
                    let path = shortened(path);
                    tracing::info!(path, %why, untold, "unable to authenticate the request");
                }
                Status::unauthorized()
            })?;
            Proven { user: found.user, remarks: found.remarks }
        }
    };
    // From here on nobody can log the credentials or pass them on to a backend.
    server.auth.authenticator.strip(&mut parts.headers);
    Ok(proven)
}

/// Whom a request acts as.
pub struct ActingAs {
    /// The user that it is of from now on.
    pub user: Arc<UserInfo>,
    /// The verb of the constrained way that allowed it; empty for the old way.
    pub constraint: String,
}

/// Whom the user asks to be; `None` when they stay who they are. Headers that ask for it are taken out.
///
/// # Errors
/// 403 for an impersonation that is not allowed.
pub async fn impersonate(
    server: &Server,
    parts: &mut Parts,
    info: &RequestInfo,
    selectors: &ParsedSelectors,
    user: &UserInfo,
) -> Result<Option<ActingAs>, Status> {
    let request = authorize::attributes(info, selectors, user, parts.uri.path());
    let (metrics, since) = (server.metrics.impersonation(), Instant::now());
    let other = authenticate::impersonate(&parts.headers, &request, &metrics.over(server.authorizer.as_ref())).await;
    match &other {
        Ok(Some(other)) => metrics.attempted(Some(&other.constraint), since.elapsed()),
        // Headers that make no sense are no attempt.
        Err(status) if status.code != 400 => metrics.attempted(None, since.elapsed()),
        _ => {}
    }
    Ok(other?.map(|other| {
        authenticate::strip_impersonation(&mut parts.headers);
        ActingAs { user: Arc::new(other.user), constraint: other.constraint }
    }))
}

/// The beginning of a text that a client chose, for the log.
fn shortened(text: &str) -> &str {
    const LOGGED_BYTES_MAX: usize = 256;
    &text[..text.floor_char_boundary(LOGGED_BYTES_MAX)]
}
