//! The plugins of the default profile: one file each, and one row each in [`table`]. All are functions of data, without
//! I/O.
pub mod balanced_allocation;
pub mod change;
pub mod dynamic_resources;
pub mod image_locality;
pub mod inter_pod_affinity;
pub mod node_affinity;
pub mod node_declared_features;
pub mod node_ports;
pub mod node_resources_fit;
pub mod node_unschedulable;
pub mod node_volume_limits;
pub mod plugin;
pub mod pod_topology_spread;
pub mod table;
pub mod taint_toleration;
pub mod volume_binding;
pub mod volume_restrictions;
