//! Metrics of the kubelet under upstream's names (`pkg/kubelet/metrics`): starts of pods and containers, calls to the runtime, evictions,
//! device plugins, served requests, and, in a separate registry like in upstream, probes.
mod bounds;
mod calls;
mod claims;
mod counted;
mod devices;
mod lives;
mod placement;
mod requests;
mod resizes;
mod reviews;
mod runtime;
mod shutdown;
mod storage;
mod streams;
#[cfg(test)]
mod testing;
mod volumes;

pub use bounds::USUAL_BOUNDS;
pub use claims::{ClaimMetrics, claims_in_use};
pub use counted::{Metrics, pods};
pub use devices::DeviceMetrics;
pub use lives::{ImageRemoval, LifeMetrics};
pub use placement::PlacementMetrics;
pub use resizes::{ResizeMetrics, resizes};
pub use reviews::ReviewMetrics;
pub use runtime::MeteredRuntime;
pub use shutdown::ShutdownMetrics;
pub use storage::StorageMetrics;
pub use streams::StreamMetrics;
pub use volumes::{ClaimUsage, claims_room};
