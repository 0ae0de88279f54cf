//! Probes and lifecycle hooks: the handlers as an effect ([`ProbeRunner`]), and one small task per probe of a running
//! container that turns outcomes into results by thresholds. What a result leads to is the pod worker's decision.
mod exec;
mod grpc;
pub mod handlers;
pub(crate) mod http;
mod target;
pub mod task;
mod tcp;
pub mod view;
pub mod words;

use k8s_openapi::api::core::v1::{Container, Probe};

pub use handlers::{Handler, ProbeRunner};
pub use target::{Outcome, Target};

/// The three probes a container may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProbeKind {
    /// Failing means a restart.
    Liveness,
    /// Failing means no traffic.
    Readiness,
    /// Holds the others back until it succeeded.
    Startup,
}

impl ProbeKind {
    /// As events begin.
    pub fn word(self) -> &'static str {
        match self {
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
            Self::Startup => "Startup",
        }
    }
    /// The container's probe of this kind.
    pub fn of(self, c: &Container) -> Option<&Probe> {
        match self {
            Self::Liveness => c.liveness_probe.as_ref(),
            Self::Readiness => c.readiness_probe.as_ref(),
            Self::Startup => c.startup_probe.as_ref(),
        }
    }
}
