//! The Node object: registration, status, and the Lease as a heartbeat.
pub mod disk;
pub mod facts;
pub mod lease;
pub mod register;
pub mod runtime;
pub mod status;
pub mod sync;
