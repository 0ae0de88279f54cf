//! Container logs in the CRI format: reading them as the API promises, and keeping their size bounded.
pub mod line;
pub mod links;
pub mod notify;
pub mod read;
pub mod rotate;
