//! Volumes of drivers (CSI): of claims, staged once for the node and published for each pod, and of a pod's own (upstream:
//! `pkg/volume/csi`). `data` is what lies on the disk, `state` what is known, `mount` what is done.
mod data;
mod mount;
mod state;

pub(super) use mount::{Inline, set_up};
pub use state::CsiVolumes;
