//! The Node object: registration, status, and the Lease that shows this kubelet alive.
pub mod disk;
pub mod facts;
pub mod lease;
pub mod register;
pub mod runtime;
pub mod status;
pub mod sync;
