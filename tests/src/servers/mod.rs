//! Several servers on one machine, and what goes wrong with them: machines are network namespaces on one bridge, each with its own
//! host name and disk. A nemesis follows a schedule that a seed decides, under a load whose history is checked.
//!
//! | room | what is in it |
//! |---|---|
//! | `failover` | nodes whose servers are killed |
//! | `round` | one round: load, faults, end, checks |
//! | `pods`, `watcher`, `load` | what clients do in a round |
//! | `record` | the history of a round |
//! | `nemesis` | carries out a schedule |
//! | `faults` | schedules of faults |
//! | `cluster` | servers and nodes, on their machines |
//! | `member` | etcd |
//! | `https` | a client of one server |
//! | `program` | a process on a machine |
//! | `disk`, `network` | disks and the network of the machines |

mod cluster;
mod disk;
mod failover;
mod faults;
mod https;
mod load;
mod member;
mod nemesis;
mod network;
mod pods;
mod program;
mod record;
mod round;
mod watcher;

pub use cluster::{Cluster, Reference, Station, etcd};
pub use failover::failover;
pub use https::{Https, TOKEN, trust};
pub use member::Datastore;
pub use network::Network;
pub use program::Program;
pub use round::{Report, round};
