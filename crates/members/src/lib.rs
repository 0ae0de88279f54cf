//! Kelson members: an etcd member that a server starts, supervises and keeps, and the membership of its cluster.
//!
//! A server has one member in `DIR/etcd`: `data` is etcd's own directory, `pki` has the CA of the etcd cluster and the member's
//! certificates, `member.json` the settings ([`Settings`]). The API server uses the member as any other etcd, by
//! [`Member::servers`] and [`Member::tls`].
//!
//! - The first server: [`Member::start`] with [`Start::Init`]. Later starts: [`Start::Resume`].
//! - A joining server, which has received `pki/ca.crt` and `pki/ca.key`: [`Joiner::prepare`] opens a listener at its peer URL;
//!   then a server of the cluster is asked to call [`Member::admit`], which dials that URL, adds a learner and returns an
//!   [`InitialCluster`]; [`Joiner::start`] starts the member and returns when the cluster has made it a voter. Where
//!   [`AdmitError::is_temporary`] is true, the joiner asks again. Asking again is also right after an answer was lost.
//! - Voters promote learners that have caught up and remove those that do not ([`LEARNER_MAX`]).
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `version`, `decide`, `timing`, `space`, `steady`, `error`, `event` | pure: releases of etcd, which change of members is safe, timeouts, space, whether members are steady; errors and events |
//! | `system/`, `layout`, `settings`, `options` | what operating systems do differently; files of a member |
//! | `program`, `pki`, `log`, `metrics` | the etcd binary, certificates, lines of etcd's log, metrics |
//! | `http`, `peer`, `local`, `status` | questions to members over their peer URLs and to the member of this server; what members say of themselves |
//! | `process`, `supervise` | one etcd process, and its restarts |
//! | `admit`, `joiner`, `settle` | both sides of a join; the settings of a start |
//! | `steward`, `upkeep` | promotion and removal of learners; certificates, space, alarms and timeouts |
//! | `member`, `cluster` | a running member; the membership as an administrator sees and changes it |
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod admit;
mod cluster;
mod decide;
mod error;
mod event;
mod http;
mod joiner;
mod layout;
mod local;
mod log;
mod member;
mod metrics;
mod options;
mod peer;
mod pki;
mod process;
mod program;
mod settings;
mod settle;
mod space;
mod status;
mod steady;
mod steward;
mod supervise;
mod system;
mod timing;
mod upkeep;
mod version;

pub use admit::{InitialCluster, InitialMember};
pub use cluster::{Cluster, MemberRow, Role};
pub use decide::LEARNER_MAX;
pub use error::{AdmitError, MemberError};
pub use event::MemberEvent;
pub use joiner::Joiner;
pub use layout::{CA, ETCD_DIR, Layout};
pub use member::{Member, check_program, settings};
pub use options::{CLIENT_PORT, MemberOptions, PEER_PORT, peer_url};
pub use settings::{Phase, Settings};
pub use settle::Start;
pub use status::MemberStatus;
pub use timing::Timeouts;
pub use version::{OLDEST, Version, VersionError};
