//! Kelson auth: who are you (`authenticate`), may you (`authorize`), and the tokens the cluster itself issues (`token`).
//!
//! Everything is decided in memory: objects are read through [`Objects`] or followed by `apply` calls, which the API
//! server makes from the store's log. No sockets and no store here; TLS accepts any client certificate that proves its
//! key and leaves the judgement to [`authenticate`].

pub mod attributes;
pub mod authenticate;
pub mod authorize;
pub mod objects;
pub mod user;

pub use attributes::Attributes;
pub use authenticate::{Authenticated, Authenticator, Credentials, Rejected, TokenAuthenticator};
pub use authorize::{Authorizer, AuthorizerChain, Decision};
pub use objects::{Change, Objects};
pub use user::UserInfo;
