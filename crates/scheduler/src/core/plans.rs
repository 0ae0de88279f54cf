//! Plans for the claims of a pod on the chosen node: volumes to bind, and devices to allocate.
use std::sync::Arc;

use kelson_devices::Readiness;

use super::Core;
use super::step::{DeviceBinding, PendingBinding};
use crate::cluster::devices::{ClaimPlan, DevicePlan};
use crate::cluster::storage::{Claims, Plan, Progress};
use crate::view::Pod;

impl Core {
    /// Reserves the volumes of a pod on the node it is assumed on. Other pods see them as bound from now on (Reserve).
    pub(super) fn volumes_of(&mut self, pod: &Pod, node: usize) -> Option<Arc<Plan>> {
        if pod.spec.claims.is_empty() {
            return None;
        }
        let Claims::Needs(needs) = self.cluster.storage.claims(&pod.spec) else { return None };
        let plan = needs.place(&self.cluster.storage, &self.cluster.nodes()[node].node).ok()?;
        let plan = (!plan.is_empty()).then(|| Arc::new(plan))?;
        self.cluster.storage.begin(&pod.uid, Arc::clone(&plan));
        Some(plan)
    }

    /// Reserves devices for the claims of a pod on the node it is assumed on. Other pods see them as allocated from now
    /// on (Reserve).
    pub(super) fn devices_of(&mut self, pod: &Pod, node: usize) -> Option<Arc<DevicePlan>> {
        if pod.spec.devices.is_empty() && pod.spec.extended.is_empty() {
            return None;
        }
        let node = Arc::clone(&self.cluster.nodes()[node].node);
        let plan = self.cluster.devices.plan(&pod.spec, &node).filter(|p| !p.is_empty()).map(Arc::new)?;
        self.cluster.devices.begin(&plan);
        self.plans.insert(Arc::clone(&pod.uid), Arc::clone(&plan));
        Some(plan)
    }

    /// Ends the plans of a pod that was bound or given up. Returns whether there was one for volumes, and one for
    /// devices.
    pub(super) fn end_plans(&mut self, uid: &str) -> (bool, bool) {
        let volumes = self.cluster.storage.end(uid);
        let devices = self.plans.remove(uid);
        if let Some(plan) = &devices {
            self.cluster.devices.end(plan);
        }
        (volumes, devices.is_some())
    }

    /// Returns the progress of binding a pod's volumes.
    pub fn volumes_progress(&self, binding: &PendingBinding) -> Progress {
        if self.cluster.node_of(&binding.pod.uid) != Some(&*binding.plan.node) {
            return Progress::Failed("the pod was deleted".into());
        }
        let node = self.cluster.position(&binding.plan.node).map(|i| &*self.cluster.nodes()[i].node);
        self.cluster.storage.progress(&binding.plan, node)
    }

    /// Returns the progress of a pod's devices; `made` is a claim that was created for the pod.
    pub fn devices_progress(&self, binding: &DeviceBinding, made: Option<&ClaimPlan>) -> Readiness {
        if self.cluster.node_of(&binding.pod.uid) != Some(&*binding.pod.node_name) {
            return Readiness::Failed("the pod was deleted".into());
        }
        self.cluster.devices.progress(&binding.plan, made)
    }

    /// Records that the devices of a pod were not ready in time.
    pub fn devices_overdue(&mut self, binding: &DeviceBinding, made: Option<&ClaimPlan>) {
        for claim in binding.plan.claims.iter().chain(made) {
            self.cluster.devices.note_overdue(&claim.uid);
        }
    }
}
