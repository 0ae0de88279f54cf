//! What the claims of a pod get on the node that is chosen: volumes that are to be bound, devices that are to be written.
use std::sync::Arc;

use kelson_devices::Readiness;

use super::Core;
use super::step::{DeviceBinding, PendingBinding};
use crate::cluster::devices::{ClaimPlan, DevicePlan};
use crate::cluster::storage::{Claims, Plan, Progress};
use crate::view::Pod;

impl Core {
    /// What must be bound for a pod on the node it is assumed on; from now on others take it as bound (Reserve).
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

    /// What its claims get on the node that a pod is assumed on; from now on others take it as theirs (Reserve).
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

    /// What a pod's claims were to get is bound, or free again: whether that was volumes, and whether it was devices.
    pub(super) fn end_plans(&mut self, uid: &str) -> (bool, bool) {
        let volumes = self.cluster.storage.end(uid);
        let devices = self.plans.remove(uid);
        if let Some(plan) = &devices {
            self.cluster.devices.end(plan);
        }
        (volumes, devices.is_some())
    }

    /// How far the binding of a pod's volumes is.
    pub fn volumes_progress(&self, binding: &PendingBinding) -> Progress {
        if self.cluster.node_of(&binding.pod.uid) != Some(&*binding.plan.node) {
            return Progress::Failed("the pod was deleted".into());
        }
        let node = self.cluster.position(&binding.plan.node).map(|i| &*self.cluster.nodes()[i].node);
        self.cluster.storage.progress(&binding.plan, node)
    }

    /// How far the devices of a pod are, with those of a claim that was made for it.
    pub fn devices_progress(&self, binding: &DeviceBinding, made: Option<&ClaimPlan>) -> Readiness {
        if self.cluster.node_of(&binding.pod.uid) != Some(&*binding.pod.node_name) {
            return Readiness::Failed("the pod was deleted".into());
        }
        self.cluster.devices.progress(&binding.plan, made)
    }

    /// The devices of a pod were not ready in time.
    pub fn devices_overdue(&mut self, binding: &DeviceBinding, made: Option<&ClaimPlan>) {
        for claim in binding.plan.claims.iter().chain(made) {
            self.cluster.devices.note_overdue(&claim.uid);
        }
    }
}
