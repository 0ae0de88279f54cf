//! The Node object: registration, status, and the Lease that shows this kubelet alive.
pub mod facts;
pub mod lease;
pub mod register;
pub mod status;
pub mod sync;
