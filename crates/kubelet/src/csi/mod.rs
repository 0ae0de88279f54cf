//! Drivers of volumes on this node (CSI): `messages` and `client` are what is said to a driver, `drivers` which of them are
//! here, `registration` how they come and go, `in_use` what the node reports of their volumes. Mounting is the volumes' room.
pub mod client;
pub mod drivers;
pub mod in_use;
#[allow(missing_docs, reason = "the fields are named by the interface")]
mod messages;
pub mod registration;
