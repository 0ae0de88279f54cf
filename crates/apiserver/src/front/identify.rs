//! Identify: who asks, by certificate or token, and who they ask to be.
use std::sync::Arc;

use http::request::Parts;
use kelson_auth::{Credentials, UserInfo, authenticate};
use kelson_meta::Status;
use rustls_pki_types::CertificateDer;

use crate::shared::Server;

/// How a request came.
pub enum Identity {
    /// Over the network, with the client's certificate chain (its key is proven, its issuer is not).
    Network(Arc<[CertificateDer<'static>]>),
    /// From a component of this process.
    Known(Arc<UserInfo>),
}

/// The user that a request is served as. Headers that ask for impersonation are taken out.
///
/// # Errors
/// 401 for credentials that prove nothing, 403 for an impersonation that is not allowed.
pub async fn identify(server: &Server, parts: &mut Parts, identity: Identity) -> Result<Arc<UserInfo>, Status> {
    let user = match identity {
        Identity::Known(user) => user,
        Identity::Network(certificates) => {
            let path = parts.uri.path();
            let credentials = Credentials { headers: &parts.headers, certificates: &certificates, path };
            let found = server.auth.authenticator.authenticate(&credentials).await.map_err(|why| {
                server.metrics.rejected_credentials();
                if let Some(untold) = server.rejections.allow() {
                    let path = shortened(path);
                    tracing::info!(path, %why, untold, "unable to authenticate the request");
                }
                Status::unauthorized()
            })?;
            found.user
        }
    };
    // From here on nobody can log the credentials or pass them on to a backend.
    server.auth.authenticator.strip(&mut parts.headers);
    let other = authenticate::impersonate(&parts.headers, &user, server.authorizer.as_ref()).await?;
    Ok(other.map_or(user, |other| {
        authenticate::strip_impersonation(&mut parts.headers);
        Arc::new(other)
    }))
}

/// The beginning of a text that a client chose, for the log.
fn shortened(text: &str) -> &str {
    const LOGGED_BYTES_MAX: usize = 256;
    &text[..text.floor_char_boundary(LOGGED_BYTES_MAX)]
}
