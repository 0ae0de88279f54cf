//! What the server does of itself for those who extend the API.
pub mod availability;
pub mod cleanup;
pub mod local;
