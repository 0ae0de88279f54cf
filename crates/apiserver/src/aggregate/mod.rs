//! Aggregation: group versions that aggregated API servers serve, according to `APIService` objects. This server authorizes requests
//! for them and forwards them with its front proxy certificate and the user in headers. Upstream: `kube-aggregator`.
pub mod forward;
pub mod local;
pub mod registry;
pub mod remote;
pub mod service;
