//! Shared parts of webhooks and policies: reading configurations, matching requests, and converting objects. Both are
//! stored objects; a change applies to the next request, because every request reads the store's newest state and
//! decodes only what has changed.
pub mod conditions;
pub mod expressions;
pub mod manifests;
pub mod matching;
pub mod protect;
pub mod source;
pub mod versioned;

pub use conditions::Conditions;
pub use manifests::Manifests;
pub use matching::{ByResource, Criteria, Match, is_exempt_from_policies, is_exempt_from_webhooks};
pub use protect::protect;
pub use source::{Items, Source};
pub use versioned::{Versioned, VersionedObjects};
