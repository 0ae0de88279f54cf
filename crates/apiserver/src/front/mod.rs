//! The front: sockets, then the filters that every request passes in turn, up to the handler that answers it.
pub mod activity;
pub mod audit;
pub mod authorize;
pub mod dispatch;
pub mod flow;
pub mod gather;
pub mod handle;
pub mod heads;
pub mod heavy;
pub mod identify;
pub mod inprocess;
pub mod listen;
pub mod locked;
pub mod peers;
pub mod spans;
