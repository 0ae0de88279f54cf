//! What the server does of itself for those who extend the API.
pub mod availability;
pub mod cleanup;
pub mod fairness;
pub mod identity_lease;
pub mod legacy_tokens;
pub mod local;
pub mod others;
