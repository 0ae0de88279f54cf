//! Claims and volumes: `binder` brings them together and apart, `local_path` makes volumes out of directories of nodes,
//! `ephemeral` makes the claims of pods that bring their own. Which volume suits which claim is said by `kelson-volumes`.
pub mod binder;
pub mod ephemeral;
mod latest;
pub mod local_path;
