//! Background tasks for extensions of the API: aggregated API servers, custom resources, flow control, identities.
pub mod availability;
pub mod cleanup;
pub mod fairness;
pub mod identity_lease;
pub mod legacy_tokens;
pub mod local;
pub mod others;
pub mod peer_address;
pub mod peers;
pub mod usage;
