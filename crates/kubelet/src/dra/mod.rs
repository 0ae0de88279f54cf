//! Devices of claims on this node (upstream: `pkg/kubelet/cm/dra`): the scheduler has chosen them, here their drivers make them ready
//! before a pod's containers start, and take that back when the last pod that uses a claim has ended. `prepared` knows what is
//! ready and for whom, and no sockets; it is on disk before drivers are asked, so that nothing stays ready for nobody. `health` is
//! what they say of devices that pods have.
pub mod checkpoint;
pub mod client;
pub mod drivers;
pub mod health;
pub mod manager;
#[allow(missing_docs, reason = "the fields are named by the interface")]
pub mod messages;
pub mod prepared;

pub use manager::DynamicResources;
