//! Volumes of pods: setting them up below the pod's directory, keeping configuration in them fresh, the mounts of each
//! container, and taking all of it down again. PersistentVolumeClaims and drivers are not here yet: such a volume fails
//! with a message that says so.
pub mod atomic;
pub mod container;
pub mod mounts;
pub mod payload;
pub mod setup;
pub mod subpath;

pub use setup::{PodVolumes, VolumeError};
