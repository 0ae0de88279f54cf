//! Cgroups above those of single pods: that of all pods, held to the node's allocatable, the two classes, and what others run
//! in (upstream: `node_container_manager_linux.go`, `qos_container_manager_linux.go`).
#![allow(clippy::disallowed_methods, reason = "blocking: the kernel's memory, no disk")]

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kelson_meta::Quantity;
use kelson_tasks::FILES;

use super::bounds::{Bounds, ClassMemory};
use super::name::CgroupName;
use super::{CLASSES, Cgroups, Inner};

impl Cgroups {
    /// Gives each class its weight among the pods that run, and of the memory what is kept for it and what is not for it;
    /// `allocatable` is how much of that all pods may use together.
    pub async fn share_out(&self, pods: &[Arc<Pod>], allocatable: i64) {
        let Some(inner) = &self.inner else { return };
        let asked = ClassMemory::of(pods);
        let mut classes = [
            (CLASSES[0], Bounds::of_burstable(pods, &inner.page_sizes)),
            (CLASSES[1], Bounds::of_best_effort(&inner.page_sizes)),
        ];
        if let Some(qos) = inner.memory.qos.filter(|_| inner.tree.is_unified()) {
            // What is kept for the pods below must be kept for the whole, or it is not kept at all.
            let (all, burstable) = if qos.is_tiered {
                (asked.guaranteed.saturating_add(asked.burstable), asked.burstable)
            } else {
                (0, 0)
            };
            classes[0].1.memory_low = Some(burstable);
            let whole = Bounds { memory_min: Some(all), ..Bounds::default() };
            for name in inner.roots().into_iter().chain([inner.pods.clone()]) {
                if let Err(error) = inner.hold(name, whole.clone()).await {
                    tracing::warn!(error, "no memory is kept for pods");
                }
            }
            self.kept(if qos.is_tiered { asked } else { ClassMemory::default() });
        }
        for (class, bounds) in &classes {
            if let Err(error) = inner.ensure(inner.pods.join(*class), bounds.clone()).await {
                tracing::warn!(class, error, "the cgroup of a class of pods is not as it should be");
            }
        }
        if let Some(percent) = inner.memory.reserved_percent.filter(|_| allocatable > 0) {
            let (burstable, best_effort) = asked.limits(allocatable, percent);
            inner.bound_class(CLASSES[0], burstable).await;
            inner.bound_class(CLASSES[1], best_effort).await;
        }
    }

    /// Holds all pods together to these amounts.
    ///
    /// # Errors
    /// When the kernel refuses, as where the pods use more already.
    pub async fn hold_pods(&self, amounts: &BTreeMap<String, Quantity>) -> Result<(), String> {
        let Some(inner) = &self.inner else { return Ok(()) };
        // Beside the system's own cgroups it is the root that weighs.
        let weight = Bounds::of_amounts(amounts, true);
        for root in inner.roots() {
            inner.hold(root, weight.clone()).await?;
        }
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
    /// The cgroups above that of all pods which are there for pods alone.
    fn roots(&self) -> Vec<CgroupName> {
        if self.own_root { self.pods.above() } else { Vec::new() }
    }

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

    /// Bounds the memory of a class; one that uses more already gets no more than that.
    async fn bound_class(self: &Arc<Self>, class: &'static str, bytes: i64) {
        let name = self.pods.join(class);
        let bound = |bytes: i64| Bounds { memory: Some(bytes.max(0)), ..Bounds::default() };
        let Err(why) = self.hold(name.clone(), bound(bytes)).await else { return };
        let current = if self.tree.is_unified() { "memory.current" } else { "memory.usage_in_bytes" };
        let file = self.tree.file(&self.path(&name), "memory", current);
        let used = FILES.run(move || std::fs::read_to_string(file)).await.ok().and_then(Result::ok);
        let used = used.and_then(|text| text.trim().parse::<i64>().ok());
        let again = match used.filter(|used| *used > bytes) {
            Some(used) => self.hold(name, bound(used)).await,
            None => Err(why),
        };
        if let Err(error) = again {
            tracing::warn!(class, error, "the memory of a class of pods is not bounded");
        }
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
