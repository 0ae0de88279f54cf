//! Aggregation: group versions that other servers answer for, as `APIService` objects say. Requests for them are authorized
//! here and then carried there, under the front proxy's certificate with the user in headers. Upstream: `kube-aggregator`.
pub mod local;
pub mod registry;
pub mod remote;
pub mod service;
