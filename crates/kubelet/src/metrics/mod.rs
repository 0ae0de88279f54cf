//! What the kubelet counts of its own work, under upstream's names (`pkg/kubelet/metrics`): pods and containers started,
//! calls to the runtime, evictions, requests it served, and, in a registry of their own as upstream, its probes.
mod bounds;
mod calls;
mod counted;
mod requests;
mod runtime;

pub use counted::{Metrics, pods};
pub use runtime::MeteredRuntime;
