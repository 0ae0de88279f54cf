//! Reads: get, list and watch, and the form in which objects are answered.
pub mod choose;
pub mod encode;
pub mod frames;
pub mod get;
pub mod list;
mod page;
pub mod table;
pub mod watch;
pub mod websocket;
