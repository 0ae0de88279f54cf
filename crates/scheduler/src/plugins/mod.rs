//! The plugins of the default profile. `local` holds those that look at one node alone; the others count pods over
//! topologies. All are plain functions of data; nothing here waits or speaks to the API.
pub mod interpod;
pub mod local;
pub mod spread;

/// The best score of one plugin before its weight.
pub const SCORE_MAX: i64 = 100;
