//! Kelson auth: authentication (`authenticate`), authorization (`authorize`), and the tokens that the cluster issues
//! (`token`).
//!
//! Everything is decided in memory: objects are read through [`Objects`] or followed by `apply` calls, which the API
//! server makes from the store's log. This crate opens no sockets and no store; TLS accepts any client certificate
//! whose key the client has, and [`authenticate`] verifies it.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod ask;
pub mod attributes;
pub mod authenticate;
pub mod authorize;
mod bounded;
pub mod objects;
pub mod token;
pub mod user;

pub use attributes::Attributes;
pub use authenticate::{
    Anonymous, AsyncTokenAuthenticator, Authenticated, Authenticator, Credentials, Rejected, RequestAuthenticator,
    TokenAuthenticator, TokenChain,
};
pub use authorize::{AsyncAuthorizer, Authorizer, AuthorizerChain, Decision};
pub use objects::{Change, Objects};
pub use user::UserInfo;

/// Compares secrets in constant time.
pub(crate) fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0u8, |acc, (x, y)| acc | (x ^ y)) == 0
}
