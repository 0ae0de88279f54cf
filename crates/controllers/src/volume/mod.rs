//! Claims and volumes: `binder` binds and releases them, `local_path` provisions volumes from directories of nodes,
//! `ephemeral` creates the claims of generic ephemeral volumes, `attach` manages VolumeAttachments, and `expand`
//! records events for claims that wait for expansion. `kelson-volumes` has the rules by which claims match volumes.
pub mod attach;
pub mod binder;
pub mod ephemeral;
pub mod expand;
mod latest;
pub mod local_path;
