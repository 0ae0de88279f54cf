//! What `cargo xtask definitions` wrote: the type table, the table of served resources, and the lifecycles of kinds.
pub(crate) mod lifecycles;
pub(crate) mod resources;
pub(crate) mod types;
