//! What `cargo xtask schema` wrote: the type table and the table of served resources.
pub(crate) mod resources;
pub(crate) mod types;
