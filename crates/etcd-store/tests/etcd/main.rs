//! Stores on a real etcd (Debian's `etcd-server`; `ETCD` names another binary): what one writes another sees, faults of
//! etcd, encryption. The etcd of each test listens on sockets in a directory of its own.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod encrypted;
mod faults;
mod fixture;
mod kine;
mod members;
mod shared;
