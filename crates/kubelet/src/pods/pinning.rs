//! Keeps containers on their exclusive CPUs or on the shared pool (upstream: `cpumanager` reconcileState).
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kelson_cri::{Runtime, proto as cri};

use crate::placement::Placement;
use crate::runtime::labels;

/// Reconciles the CPU sets of running containers.
#[derive(Clone)]
pub struct CpuPinning {
    /// Current CPU assignments.
    pub placement: Placement,
    /// Receives the CPU sets of containers.
    pub runtime: Arc<dyn Runtime>,
    /// Interval of reconciliation without changes.
    pub every: Duration,
}

impl CpuPinning {
    /// Reconciles after each change of assignments, and periodically.
    pub async fn run(self) {
        let mut changes = self.placement.changes();
        let mut written: HashMap<String, String> = HashMap::new();
        loop {
            written = self.look(written).await;
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(self.every) => {}
            }
        }
    }

    /// Updates running containers whose CPU set differs from `written`, the sets that were last written. Returns the sets that are written
    /// now. Failures are retried the next time.
    async fn look(&self, mut written: HashMap<String, String>) -> HashMap<String, String> {
        let running = cri::ContainerStateValue { state: cri::ContainerState::ContainerRunning as i32 };
        let filter = cri::ContainerFilter { state: Some(running), ..Default::default() };
        let Ok(containers) = self.runtime.list_containers(Some(filter)).await else { return written };
        let mut now = HashMap::new();
        for c in containers {
            let label = |key: &str| c.labels.get(key).map(String::as_str).unwrap_or_default();
            let wanted = self.placement.placed(label(labels::POD_UID), label(labels::CONTAINER_NAME)).cpus;
            let before = written.remove(&c.id);
            if wanted.is_empty() || before.as_ref() == Some(&wanted) {
                now.extend(before.map(|cpus| (c.id, cpus)));
                continue;
            }
            let resources = cri::LinuxContainerResources { cpuset_cpus: wanted.clone(), ..Default::default() };
            let request = cri::UpdateContainerResourcesRequest {
                container_id: c.id.clone(),
                linux: Some(resources),
                ..Default::default()
            };
            match self.runtime.update_container_resources(request).await {
                Ok(()) => drop(now.insert(c.id, wanted)),
                Err(e) if e.is_not_found() => {}
                Err(error) => {
                    tracing::warn!(container = c.id, cpus = wanted, %error, "cannot update the CPUs of a container; retrying later")
                }
            }
        }
        now
    }
}
