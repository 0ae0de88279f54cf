//! A pod's status: pure functions for container states, phase and conditions, and the writer that sends statuses to the API.
pub mod conditions;
pub mod container;
mod ended;
pub mod phase;
pub mod pod;
pub mod resources;
pub mod writer;
