//! Linux, macOS and other Unix systems: file modes, Unix sockets, signals and limits.

pub mod files;
#[cfg(target_os = "linux")]
mod proc;
pub mod process;
pub mod service;
#[cfg(feature = "tokio")]
pub mod signals;
#[cfg(feature = "tokio")]
pub mod sockets;
