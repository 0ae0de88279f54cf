//! The front: sockets, then the filters that every request passes in turn, until the handler that answers it.
pub mod activity;
pub mod dispatch;
pub mod handle;
pub mod heavy;
pub mod inprocess;
pub mod listen;
pub mod peers;
