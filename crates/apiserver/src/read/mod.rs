//! Reads: get, list and watch, and the form in which objects are answered.
pub mod encode;
pub mod frames;
pub mod list;
pub mod watch;
pub mod websocket;
