//! What all requests share, and what the steps of one request share. Parts are made by `start` and read from everywhere above.
pub mod allocations;
pub mod context;
pub mod identity;
pub mod metrics;
pub mod objects;
