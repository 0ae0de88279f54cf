//! Which processors and which parts of memory containers have to themselves (upstream: `pkg/kubelet/cm/cpumanager`, `memorymanager`,
//! `topologymanager`). The tables and the merging of hints are pure; `manager` keeps them, writes down what was given, and has the
//! containers without processors of their own moved to those that are left.
pub mod checkpoint;
pub mod checksum;
pub mod cpus;
pub mod hints;
pub mod layout;
pub mod manager;
pub mod memory;
pub mod numa;
pub mod promises;
pub mod spread;
pub mod sysfs;
pub mod take;

pub use manager::Placement;
