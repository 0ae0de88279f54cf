//! Joining of servers. A server with an etcd member lets other servers into its cluster (`service`); a new one contacts it with a
//! token (`contact`), receives the CAs and settings of the cluster, and adds its own etcd member (`joiner`).
//!
//! The new server makes two requests, to `POST /kelson/join`: the first one returns the keys of the cluster, sealed with the token;
//! the second one adds the member, which listens at its peer URL by then. A vote has a member only, and receives the CA of the etcd
//! cluster instead of all keys.

mod contact;
mod joiner;
mod keys;
mod request;
mod service;

pub use joiner::{enter, enter_as_vote, receive};
pub use keys::pins_of;
pub use service::{Admits, JoinService};

#[cfg(test)]
mod tests;
