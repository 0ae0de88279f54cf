//! Linux, macOS and other systems of their kind: modes of files, sockets in the file system, signals, limits.

pub mod files;
#[cfg(target_os = "linux")]
mod proc;
pub mod process;
pub mod service;
#[cfg(feature = "tokio")]
pub mod signals;
#[cfg(feature = "tokio")]
pub mod sockets;
