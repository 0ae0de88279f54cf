//! Probes and lifecycle hooks: handlers behind the trait [`ProbeRunner`], and one task per probe of a running container that converts
//! outcomes to results by thresholds. The pod worker decides what follows from a result.
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

/// The three kinds of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProbeKind {
    /// Restarts the container when it fails.
    Liveness,
    /// Removes the pod from Services while it fails.
    Readiness,
    /// Delays the other probes until it succeeds.
    Startup,
}

impl ProbeKind {
    /// Name at the beginning of event messages.
    pub fn word(self) -> &'static str {
        match self {
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
            Self::Startup => "Startup",
        }
    }
    /// Returns the container's probe of this kind.
    pub fn of(self, c: &Container) -> Option<&Probe> {
        match self {
            Self::Liveness => c.liveness_probe.as_ref(),
            Self::Readiness => c.readiness_probe.as_ref(),
            Self::Startup => c.startup_probe.as_ref(),
        }
    }
}
