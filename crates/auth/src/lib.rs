//! Kelson auth: authentication (`authenticate`), authorization (`authorize`), and the tokens that the cluster issues
//! (`token`).
//!
//! Everything is decided in memory: objects are read through [`Objects`] or followed by `apply` calls, which the API
//! server makes from the store's log. No sockets and no store here; TLS accepts any client certificate that proves its
//! key and leaves the judgement to [`authenticate`].
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `user`, `attributes`, `objects`, `ask`, `bounded` | users, attributes of a request, access to objects, calls to other servers |
//! | `authorize/` | authorizers (`modes`, `rbac`, `node`, `policy`, `webhook`, `config`) |
//! | `token/`, `authenticate/` | the tokens of the cluster; authenticators; `jwt/` has the tokens of other issuers, from the configuration file to the user |
//!
//! All decisions are made from memory. An authenticator or authorizer that must call another server returns itself from
//! `as_async`, for the requests that need it and no others. The callers pass in the connection. `token/uses` counts uses of
//! tokens; the API server writes the dates of those in Secrets.
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
