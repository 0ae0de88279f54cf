//! Windows: files inherit who may read them from their directory, there are no sockets in the file system, and what ends a
//! process are events of its console and its session.

pub mod files;
pub mod process;
pub mod service;
#[cfg(feature = "tokio")]
pub mod signals;
#[cfg(feature = "tokio")]
pub mod sockets;
