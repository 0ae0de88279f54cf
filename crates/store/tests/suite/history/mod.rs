//! Histories of a store under load, for the checker of `kelson-history`.

pub mod load;

pub use kelson_history::{Answer, Call, Checked, History, Line, Registers, Version};
