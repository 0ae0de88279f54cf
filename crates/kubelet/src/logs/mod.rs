//! Container logs in CRI format: reading with the options of the API, and rotation.
pub mod directories;
pub mod line;
pub mod links;
pub mod notify;
pub mod read;
pub mod rotate;
