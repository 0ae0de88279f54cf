//! Members on a real etcd (`.cache/bin/etcd` of `scripts/deps`; `ETCD` names another binary), each with its own data directory
//! and ports on the loopback address.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod cluster;
mod fixture;
mod single;
