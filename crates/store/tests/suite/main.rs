//! Tests of the store's public interface: histories under load, kills, power cuts, failing and damaged disks.
// Helper functions of a test fail by panicking, as the test itself does.
#![allow(clippy::unwrap_used)]

mod damage;
mod damaged_files;
mod durability;
mod faults;
mod history;
mod kills;
mod locked;
mod model;
mod power;
