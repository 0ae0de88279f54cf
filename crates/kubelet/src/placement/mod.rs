//! Exclusive CPUs and memory with NUMA alignment (upstream: `pkg/kubelet/cm/cpumanager`, `memorymanager`, `topologymanager`). The tables
//! and the merging of hints are pure; `manager` holds them, writes checkpoints, and triggers the update of containers in the shared pool.
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
