//! CSI volumes: of claims, staged once per node and published for each pod, and inline (upstream: `pkg/volume/csi`). `data` is the metadata
//! on disk, `state` the state in memory, `mount` stages and publishes, `expand` expands, and `growth` computes the claims' status (pure).
mod capability;
mod data;
mod expand;
mod growth;
mod mount;
mod state;

pub use expand::VolumeGrowth;
pub(super) use mount::{Inline, set_up};
pub use state::CsiVolumes;
