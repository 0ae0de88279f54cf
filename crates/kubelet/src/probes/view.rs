//! What probes have said so far of a pod's running containers.
use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1::Container;

/// What probes say of running containers, by container ID.
#[derive(Clone, Debug, Default)]
pub struct ProbeView {
    /// The liveness probe failed for good.
    pub liveness_failed: HashSet<String>,
    /// The startup probe failed for good.
    pub startup_failed: HashSet<String>,
    /// The startup probe has succeeded (absent: not yet).
    pub started: HashSet<String>,
    /// The newest readiness.
    pub ready: HashMap<String, bool>,
}

impl ProbeView {
    /// Whether a running container counts as started.
    pub fn is_started(&self, c: &Container, id: &str) -> bool {
        c.startup_probe.is_none() || self.started.contains(id)
    }
    /// Whether a running container is ready.
    pub fn is_ready(&self, c: &Container, id: &str) -> bool {
        self.is_started(c, id) && (c.readiness_probe.is_none() || self.ready.get(id).copied().unwrap_or(false))
    }
}
