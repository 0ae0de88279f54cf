//! Cgroups above those of single pods: that of all pods, held to the node's allocatable, the two classes, and what others run
//! in (upstream: `node_container_manager_linux.go`, `qos_container_manager_linux.go`).
#![allow(clippy::disallowed_methods, reason = "blocking: the kernel's memory, no disk")]

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kelson_meta::Quantity;
use kelson_tasks::FILES;

use super::bounds::Bounds;
use super::name::CgroupName;
use super::{CLASSES, Cgroups, Inner};

impl Cgroups {
    /// Gives each class its weight among the pods that run.
    pub async fn share_out(&self, pods: &[Arc<Pod>]) {
        let Some(inner) = &self.inner else { return };
        let classes = [
            (CLASSES[0], Bounds::of_burstable(pods, &inner.page_sizes)),
            (CLASSES[1], Bounds::of_best_effort(&inner.page_sizes)),
        ];
        for (class, bounds) in classes {
            if let Err(error) = inner.ensure(inner.pods.join(class), bounds).await {
                tracing::warn!(class, error, "the cgroup of a class of pods is not as it should be");
            }
        }
    }

    /// Holds all pods together to these amounts.
    ///
    /// # Errors
    /// When the kernel refuses, as where the pods use more already.
    pub async fn hold_pods(&self, amounts: &BTreeMap<String, Quantity>) -> Result<(), String> {
        let Some(inner) = &self.inner else { return Ok(()) };
        inner.hold(inner.pods.clone(), Bounds::of_amounts(amounts, false)).await
    }

    /// Holds a cgroup that others have made to what is reserved for it; in CPU alone where `only_cpu`.
    ///
    /// # Errors
    /// When it is not there or the kernel refuses.
    pub async fn hold_reserved(
        &self,
        name: &str,
        amounts: &BTreeMap<String, Quantity>,
        only_cpu: bool,
    ) -> Result<(), String> {
        let Some(inner) = &self.inner else { return Ok(()) };
        inner.hold(CgroupName::parse(name, inner.driver), Bounds::of_amounts(amounts, only_cpu)).await
    }
}

/// Memory of all pods together, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodsMemory {
    /// What they may use.
    pub limit: u64,
    /// Their working set: what they use, without files that nobody has used lately.
    pub used: u64,
}

impl Cgroups {
    /// What all pods use, where they are held to something. Reads files of the kernel's.
    pub fn memory_of_pods(&self) -> Option<PodsMemory> {
        self.inner.as_ref()?.memory()
    }
}

impl Inner {
    fn memory(&self) -> Option<PodsMemory> {
        let path = self.path(&self.pods);
        let [current, idle] = match self.tree.is_unified() {
            true => ["memory.current", "inactive_file "],
            false => ["memory.usage_in_bytes", "total_inactive_file "],
        };
        let read = |name: &str| std::fs::read_to_string(self.tree.file(&path, "memory", name)).ok();
        let limit = self.tree.bound(&path, ("memory", "memory.limit_in_bytes"), "memory.max")?;
        let used: u64 = read(current)?.trim().parse().ok()?;
        let stat = read("memory.stat")?;
        let idle = stat.lines().find_map(|l| l.strip_prefix(idle)?.trim().parse::<u64>().ok()).unwrap_or(0);
        Some(PodsMemory { limit: u64::try_from(limit).ok()?, used: used.saturating_sub(idle) })
    }

    /// Holds a cgroup that is there, and says when that fails.
    async fn hold(self: &Arc<Self>, name: CgroupName, bounds: Bounds) -> Result<(), String> {
        let me = Arc::clone(self);
        let (path, held) = (self.path(&name), bounds.clone());
        FILES.run(move || me.tree.hold(&path, &held)).await.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
        if let Some(slices) = &self.slices {
            let properties = bounds.properties(self.tree.is_unified());
            slices.set(&name.slice().0, &properties).await.map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}
