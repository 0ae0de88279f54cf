//! Kelson flowcontrol: priority and fairness of requests (KEP-1040), as `flowcontrol.apiserver.k8s.io` objects say. A request is
//! sorted by the first flow schema that matches it, gets seats of that schema's priority level, and waits in one of the level's
//! queues while all seats are taken. It knows nothing of how requests come or are answered.
//!
//! Files, the lowest first: `config` (what objects say, judged), `shuffle` (which queues a flow may use), `work` (how many seats
//! a request takes), `allocation` (who may have how many of the server's seats), `demand` (how many a level could have used),
//! `retry` (when one that was refused may come again), `utilization` (which part of something is used, over time) ← `matching` (what a schema matches) and `queues` (fair queuing) are pure
//! and are handed the time ← `objects` (the ones every cluster has) ← `counters` ← `level` (queues with requests in them) ←
//! `control` (the face), `dump` and `scrape` (what it looks like inside, for people and as metrics).
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
