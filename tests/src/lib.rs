//! Black-box harness: selects and starts the subject, and tests it with a user's tools. Independent of Kelson's crates;
//! every expectation must hold for any conformant cluster.

pub mod device_plugin;
pub mod dra_driver;
pub mod driver;
pub mod extension;
pub mod grpc;
mod guard;
mod harness;
pub mod issuer;
pub mod key_service;
mod kubectl;
mod machine;
pub mod operator;
mod raw;
mod reference;
pub mod registry;
pub mod servers;
mod subject;
pub mod webhook;

pub use guard::ChildGuard;
pub use harness::{Needs, Test, run};
pub use kubectl::{Kubectl, Output, eventually, lines_of};
pub use machine::{Agent, Machine, sh};
pub use raw::{Answer, Raw};
pub use subject::{Process, Subject, SubjectKind, binary, free_port, program, reference, repo_root};

/// The result of a test; the error is printed in the log.
pub type Outcome = anyhow::Result<()>;
