//! Results of probes of a pod's running containers.
use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1::Container;

/// Results of probes, by container ID.
#[derive(Clone, Debug, Default)]
pub struct ProbeView {
    /// Containers whose liveness probe failed.
    pub liveness_failed: HashSet<String>,
    /// Containers whose startup probe failed.
    pub startup_failed: HashSet<String>,
    /// Containers whose startup probe succeeded.
    pub started: HashSet<String>,
    /// Latest readiness of each container.
    pub ready: HashMap<String, bool>,
}

impl ProbeView {
    /// Returns whether a running container counts as started.
    pub fn is_started(&self, c: &Container, id: &str) -> bool {
        c.startup_probe.is_none() || self.started.contains(id)
    }
    /// Returns whether a running container is ready.
    pub fn is_ready(&self, c: &Container, id: &str) -> bool {
        self.is_started(c, id) && (c.readiness_probe.is_none() || self.ready.get(id).copied().unwrap_or(false))
    }
}
