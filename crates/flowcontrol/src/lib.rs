//! Kelson flowcontrol: API priority and fairness (KEP-1040), configured by `flowcontrol.apiserver.k8s.io` objects. A
//! request is matched to the first flow schema, and gets seats of the schema's priority level. While all seats are
//! taken, it waits in one of the level's queues. The crate does not receive or answer requests.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `config`, `shuffle`, `work`, `allocation`, `demand`, `retry`, `utilization` | contents of objects, the queues of a flow, seats of a request, seats of a level, seats that a level could have used, the time of a retry, use over time; pure |
//! | `matching`, `queues` | which schema matches a request, fair queuing; pure |
//! | `objects` | the objects that every cluster has |
//! | `counters` | metrics |
//! | `level` | the queues of a level, with requests |
//! | `control/` | the interface |
//! | `dump`, `scrape` | the state, for people and as metrics |
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod allocation;
mod config;
mod control;
mod counters;
mod demand;
mod dump;
mod level;
mod matching;
pub mod objects;
mod queues;
mod retry;
mod scrape;
mod shuffle;
mod utilization;
mod work;

pub use config::{FlowSchema, PriorityLevelConfiguration};
pub use control::{Admission, Classified, Dangling, FlowControl};
pub use level::{Refused, Seats};
pub use utilization::Utilization;
pub use work::{ListWork, Work};
