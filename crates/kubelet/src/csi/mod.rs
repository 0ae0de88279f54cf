//! CSI drivers on this node. `messages` and `client` speak to a driver, `drivers` lists the registered ones, `registration` registers and
//! unregisters plugins, and `in_use` reports used volumes. The module `volumes` mounts.
pub mod client;
pub mod drivers;
pub mod in_use;
#[allow(missing_docs, reason = "the fields are named by the interface")]
mod messages;
pub mod registration;
