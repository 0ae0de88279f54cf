//! Dynamic resource allocation on the node (upstream: `pkg/kubelet/cm/dra`). The scheduler has chosen the devices of a claim; here their
//! drivers prepare them before a pod's containers start and unprepare them after the last pod of the claim ended. `prepared` records claims
//! and their pods without any I/O; it is written to a checkpoint before drivers are called, so that no claim stays prepared without a
//! record. `health` has the drivers' reports about devices.
pub mod checkpoint;
pub mod client;
pub mod drivers;
pub mod health;
pub mod manager;
#[allow(missing_docs, reason = "the fields are named by the interface")]
pub mod messages;
pub mod prepared;

pub use manager::DynamicResources;
