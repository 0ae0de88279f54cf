//! A pod's status: containers' states, phase and conditions as pure functions, and the one writer to the API.
pub mod conditions;
pub mod container;
mod ended;
pub mod phase;
pub mod pod;
pub mod resources;
pub mod writer;
