//! Reads: get, list and watch, and the encoding of objects.
pub mod choose;
pub mod encode;
pub mod frames;
pub mod get;
pub mod list;
mod page;
mod partial;
pub mod table;
pub mod watch;
pub mod websocket;
