//! Cgroups above those of single pods: the one of all pods, limited to node allocatable, those of QoS classes, and those of system daemons
//! (upstream: `node_container_manager_linux.go`, `qos_container_manager_linux.go`).
#![allow(clippy::disallowed_methods, reason = "blocking: only kernel files, no disk")]

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kelson_meta::Quantity;
use kelson_tasks::FILES;

use super::bounds::{Bounds, ClassMemory};
use super::name::CgroupName;
use super::{CLASSES, Cgroups, Inner};

impl Cgroups {
    /// Sets each class's CPU weight from the pods that run, and its memory protection and limit. `allocatable` is the memory in bytes that
    /// all pods may use.
    pub async fn share_out(&self, pods: &[Arc<Pod>], allocatable: i64) {
        let Some(inner) = &self.inner else { return };
        let asked = ClassMemory::of(pods);
        let mut classes = [
            (CLASSES[0], Bounds::of_burstable(pods, &inner.page_sizes)),
            (CLASSES[1], Bounds::of_best_effort(&inner.page_sizes)),
        ];
        if let Some(qos) = inner.memory.qos.filter(|_| inner.tree.is_unified()) {
            // Protection of a cgroup works only if its ancestors are protected too.
            let (all, burstable) = if qos.is_tiered {
                (asked.guaranteed.saturating_add(asked.burstable), asked.burstable)
            } else {
                (0, 0)
            };
            classes[0].1.memory_low = Some(burstable);
            let whole = Bounds { memory_min: Some(all), ..Bounds::default() };
            for name in inner.roots().into_iter().chain([inner.pods.clone()]) {
                if let Err(error) = inner.hold(name, whole.clone()).await {
                    tracing::warn!(error, "cannot protect the memory requests of pods; retrying later");
                }
            }
            self.kept(if qos.is_tiered { asked } else { ClassMemory::default() });
        }
        for (class, bounds) in &classes {
            if let Err(error) = inner.ensure(inner.pods.join(*class), bounds.clone()).await {
                tracing::warn!(class, error, "cannot update the cgroup of a QoS class; retrying later");
            }
        }
        if let Some(percent) = inner.memory.reserved_percent.filter(|_| allocatable > 0) {
            let (burstable, best_effort) = asked.limits(allocatable, percent);
            inner.bound_class(CLASSES[0], burstable).await;
            inner.bound_class(CLASSES[1], best_effort).await;
        }
    }

    /// Limits all pods together to these amounts.
    ///
    /// # Errors
    /// The kernel rejects a limit, for example because pods use more already.
    pub async fn hold_pods(&self, amounts: &BTreeMap<String, Quantity>) -> Result<(), String> {
        let Some(inner) = &self.inner else { return Ok(()) };
        // The root competes with the system's cgroups, so it needs the weight as well.
        let weight = Bounds::of_amounts(amounts, true);
        for root in inner.roots() {
            inner.hold(root, weight.clone()).await?;
        }
        inner.hold(inner.pods.clone(), Bounds::of_amounts(amounts, false)).await
    }

    /// Limits a cgroup of system daemons to its reservation; only CPU if `only_cpu`.
    ///
    /// # Errors
    /// The cgroup does not exist or the kernel rejects a limit.
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

/// Memory of all pods together, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodsMemory {
    /// Memory limit of all pods.
    pub limit: u64,
    /// Working set: usage without inactive file pages.
    pub used: u64,
}

impl Cgroups {
    /// Memory usage of all pods, if they are limited. Reads kernel files.
    pub fn memory_of_pods(&self) -> Option<PodsMemory> {
        self.inner.as_ref()?.memory()
    }
}

impl Inner {
    /// Returns the ancestors of the cgroup of all pods that are used for pods only.
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

    /// Sets the memory limit of a class, but not below its current usage.
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
            tracing::warn!(class, error, "cannot limit the memory of a QoS class; retrying later");
        }
    }

    /// Sets the limits of an existing cgroup.
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
