//! The other API servers on the same storage. While servers of two releases run, or servers with different `--runtime-config`, some
//! serve group versions or resources that others do not: a server forwards requests for what only its peers serve, and lists it in
//! aggregated discovery. Upstream: KEP-4020, `apiserver/pkg/util/peerproxy`.
pub mod listing;
pub mod merge;
pub mod metrics;
pub mod server;
