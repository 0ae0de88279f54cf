//! Compiles a checked tree to nodes, and evaluates them.
pub(crate) mod activation;
pub(crate) mod budget;
mod calls;
mod fold;
mod machine;
pub(crate) mod node;
mod path;
pub(crate) mod plan;
pub(crate) mod program;
