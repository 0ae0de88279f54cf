//! etcd's version 3 protocol: the messages and a client's calls.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod client;
pub mod proto;
