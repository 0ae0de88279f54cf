//! Claims and volumes: `binder` brings them together and apart, `local_path` makes volumes out of directories of nodes,
//! `ephemeral` makes the claims of pods that bring their own, `attach` has drivers attach volumes to nodes,
//! `expand` tells whom a claim that grows waits for. Which volume suits which claim is said by `kelson-volumes`.
pub mod attach;
pub mod binder;
pub mod ephemeral;
pub mod expand;
mod latest;
pub mod local_path;
