//! Volumes of drivers (CSI): of claims, staged once for the node and published for each pod, and of a pod's own (upstream:
//! `pkg/volume/csi`). `data` is what lies on the disk, `state` what is known, `mount` what is done, `expand` how they grow (`growth`: what claims say of it, pure).
mod capability;
mod data;
mod expand;
mod growth;
mod mount;
mod state;

pub use expand::VolumeGrowth;
pub(super) use mount::{Inline, set_up};
pub use state::CsiVolumes;
