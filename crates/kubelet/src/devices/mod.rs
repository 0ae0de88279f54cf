//! Devices of device plugins (upstream: `pkg/kubelet/cm/devicemanager`): registration, inventory, assignment to containers, and the
//! parameters by which a container gets them. `table` holds the state without any I/O. Assignments are written to a checkpoint before
//! containers start (`checkpoint`), so that after a restart no device is assigned twice.
pub mod checkpoint;
pub mod client;
pub mod grpc;
pub mod listing;
pub mod messages;
pub mod plugins;
pub mod registration;
pub mod table;

pub use plugins::{DeviceAllocation, Devices, PodDeviceAllocation};
