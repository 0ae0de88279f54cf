//! Keeps containers on the processors that are theirs, or on those that nobody has alone (upstream: `cpumanager` reconcileState).
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kelson_cri::{Runtime, proto as cri};

use crate::placement::Placement;
use crate::runtime::labels;

/// What it works with.
#[derive(Clone)]
pub struct Pinning {
    /// Who has which processors.
    pub placement: Placement,
    /// Is told where containers run.
    pub runtime: Arc<dyn Runtime>,
    /// How often it looks though nothing changed.
    pub every: Duration,
}

impl Pinning {
    /// Looks whenever somebody gets processors alone or gives them back, and every so often.
    pub async fn run(self) {
        let mut changes = self.placement.changes();
        let mut told: HashMap<String, String> = HashMap::new();
        loop {
            told = self.look(told).await;
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(self.every) => {}
            }
        }
    }

    /// Tells the runtime of each running container that is to run elsewhere than `told`; what is told now. A fault is tried again
    /// the next time.
    async fn look(&self, mut told: HashMap<String, String>) -> HashMap<String, String> {
        let running = cri::ContainerStateValue { state: cri::ContainerState::ContainerRunning as i32 };
        let filter = cri::ContainerFilter { state: Some(running), ..Default::default() };
        let Ok(containers) = self.runtime.list_containers(Some(filter)).await else { return told };
        let mut now = HashMap::new();
        for c in containers {
            let label = |key: &str| c.labels.get(key).map(String::as_str).unwrap_or_default();
            let wanted = self.placement.placed(label(labels::POD_UID), label(labels::CONTAINER_NAME)).cpus;
            let before = told.remove(&c.id);
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
                Err(error) => tracing::warn!(container = c.id, cpus = wanted, %error, "a container is not moved"),
            }
        }
        now
    }
}
