//! Windows: files inherit access from their directory, there are no Unix sockets, and console and session events ask a
//! process to stop.

pub mod files;
pub mod process;
pub mod service;
#[cfg(feature = "tokio")]
pub mod signals;
#[cfg(feature = "tokio")]
pub mod sockets;
