//! Stores on a real etcd (that of `.cache/bin`, else of the system; `ETCD` names another binary): visibility of writes between
//! stores, faults of etcd, encryption. The etcd of each test listens on sockets in a separate directory.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod encrypted;
mod faults;
mod fixture;
mod kine;
mod members;
mod migrate;
mod shared;
