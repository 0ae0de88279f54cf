//! Devices of the node that plugins offer (upstream: `pkg/kubelet/cm/devicemanager`): who registers, which devices there are,
//! which container has which, and how it gets them. `table` holds it all and knows no sockets; what pods hold is on disk
//! before they start (`checkpoint`), so that a kubelet that starts again gives no device to two.
pub mod checkpoint;
pub mod client;
pub mod grpc;
pub mod listing;
pub mod messages;
pub mod plugins;
pub mod registration;
pub mod table;

pub use plugins::{DeviceAllocation, DeviceTurn, Devices};
