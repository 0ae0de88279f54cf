//! Allocates devices to the claims of a pod before the pod is bound (PreBind): writes the allocations and the
//! reservation for the pod into the claims, and waits for drivers that must prepare devices first (KEP-5007).
use std::collections::BTreeSet;
use std::time::Duration;

use kelson_client::{ClientError, EventType, PatchKind, WriteOptions};
use kelson_devices::{Readiness, ResourceClaimView, names};
use kelson_meta::{ObjectKey, format_seconds};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::write::Writer;
use crate::cluster::devices::ClaimPlan;
use crate::core::DeviceBinding;
use crate::metrics::ExtensionPoint;
use crate::view::Pod;

/// The message when devices were not ready in time.
const OVERDUE: &str = "device binding timeout: context deadline exceeded";
/// The maximum number of attempts to write one claim when other clients write it at the same time.
const TRIES_MAX: usize = 5;

impl Writer {
    /// Writes allocations into the claims, waits for the devices, and continues with the volumes and the pod.
    pub(super) async fn bind_devices_and_pod(&self, binding: &DeviceBinding, binds: &Semaphore) {
        let begun = std::time::Instant::now();
        let done = self.bind_devices(binding).await;
        self.count(binding, done.as_ref().err(), begun.elapsed());
        if let Err(why) = done {
            return self.devices_failed(binding, &why).await;
        }
        if let Some(volumes) = &binding.volumes {
            return self.bind_volumes_and_pod(volumes, binds).await;
        }
        // The semaphore is never closed.
        let Ok(_permit) = binds.acquire().await else { return };
        self.bind(&binding.pod).await;
    }

    /// Records the duration of the allocation, and the devices that had to be prepared.
    fn count(&self, binding: &DeviceBinding, why: Option<&String>, took: Duration) {
        let scheduler = &binding.pod.spec.scheduler_name;
        self.metrics.bound_in(scheduler, ExtensionPoint::PreBind, why.is_none(), took);
        let extended = binding.plan.extended.iter().map(|e| &e.allocation);
        let allocations = binding.plan.claims.iter().filter_map(|claim| claim.allocation.as_ref()).chain(extended);
        let results = allocations.filter_map(|a| a["devices"]["results"].as_array()).flatten();
        let waited = results.filter(|r| r["bindingConditions"].as_array().is_some_and(|all| !all.is_empty()));
        let drivers: BTreeSet<&str> = waited.filter_map(|r| r["driver"].as_str()).collect();
        let drivers: Vec<String> = drivers.into_iter().map(str::to_owned).collect();
        let status = match why {
            None => "success",
            Some(why) if why == OVERDUE => "timeout",
            Some(_) => "failure",
        };
        self.metrics.made_ready(scheduler, &drivers, status, took);
    }

    async fn bind_devices(&self, binding: &DeviceBinding) -> Result<(), String> {
        for claim in &binding.plan.claims {
            self.bind_claim(claim, &binding.pod).await?;
        }
        let made = match &binding.plan.extended {
            Some(plan) => Some(self.bind_extended(plan, &binding.pod).await?),
            None => None,
        };
        let end = Instant::now() + self.voice(&binding.pod).devices_within;
        let mut reported = false;
        loop {
            let known = self.shared.known.notified();
            tokio::pin!(known);
            // Registered before the check, so that no change is missed between check and wait.
            known.as_mut().enable();
            match self.shared.core.lock().devices_progress(binding, made.as_ref()) {
                Readiness::Ready => return Ok(()),
                Readiness::Failed(why) => return Err(why),
                Readiness::Waits => {}
            }
            if !std::mem::replace(&mut reported, true) {
                let node = &binding.pod.node_name;
                let text = format!("waiting for binding conditions for device on node {node}");
                self.announce(&binding.pod, EventType::Normal, "BindingConditionsPending", "Scheduling", text);
            }
            tokio::select! {
                () = known => {}
                () = tokio::time::sleep_until(end) => {
                    self.shared.core.lock().devices_overdue(binding, made.as_ref());
                    return Err(OVERDUE.into());
                }
            }
        }
    }

    /// Writes the allocation of one claim and the reservation for the pod.
    pub(super) async fn bind_claim(&self, plan: &ClaimPlan, pod: &Pod) -> Result<(), String> {
        let name = format!("{}/{}", plan.key.namespace, plan.key.name);
        let known = self.shared.core.lock().cluster.devices.claim(&plan.key).cloned();
        let mut claim = known.map(|c| ResourceClaimView::clone(&c));
        for _ in 0..TRIES_MAX {
            let Some(now) = claim.filter(|c| c.metadata.uid == plan.uid) else {
                return Err(format!("resourceclaim.resource.k8s.io {:?} not found", plan.key.name));
            };
            match self.try_bind_claim(plan, pod, &now).await {
                Ok(()) => return Ok(()),
                Err(Fault::Said(why)) => return Err(why),
                Err(Fault::Client(e)) if e.is_conflict() => {}
                Err(Fault::Client(e)) => {
                    let what = if plan.allocation.is_some() { "allocation and reservation" } else { "reservation" };
                    return Err(format!("add {what} to claim {name}: {e}"));
                }
            }
            let (namespace, of) = (&plan.key.namespace, &plan.key.name);
            let fresh = self.client.get_opt::<ResourceClaimView>(namespace, of).await;
            claim = fresh.map_err(|e| format!("get updated claim {name} after conflict: {e}"))?;
        }
        Err(format!("claim {name}: too many conflicting updates"))
    }

    async fn try_bind_claim(&self, plan: &ClaimPlan, pod: &Pod, claim: &ResourceClaimView) -> Result<(), Fault> {
        let name = format!("{}/{}", plan.key.namespace, plan.key.name);
        if claim.metadata.is_deleting() {
            return Err(Fault::Said(format!("claim {name} got deleted in the meantime")));
        }
        let mut version = claim.metadata.resource_version.clone();
        let mut status = json!({});
        if let Some(allocation) = &plan.allocation {
            if claim.status.allocation.is_some() {
                return Err(Fault::Said(format!("claim {name} got allocated elsewhere in the meantime")));
            }
            if !claim.is_protected() {
                let mut finalizers = claim.metadata.finalizers.clone();
                finalizers.push(names::FINALIZER.into());
                let patch = json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}});
                version = self.patch_claim(&plan.key, "", &patch).await?;
            }
            status["allocation"] = allocation.clone();
        }
        let timed = match &claim.status.allocation {
            // An allocation cannot be changed.
            Some(_) => true,
            None if plan.allocation.is_none() => {
                return Err(Fault::Said(format!("claim {name} got deallocated elsewhere in the meantime")));
            }
            None => false,
        };
        if !timed {
            status["allocation"]["allocationTimestamp"] = format_seconds(self.clock.now()).into();
        }
        if !claim.is_reserved_for(&pod.uid) {
            let own = json!({"resource": "pods", "name": &*pod.name, "uid": &*pod.uid});
            status["reservedFor"] = consumers(claim, |_| true, Some(own));
        }
        if status.as_object().is_some_and(serde_json::Map::is_empty) {
            return Ok(());
        }
        let patch = json!({"metadata": {"resourceVersion": version}, "status": status});
        self.patch_claim(&plan.key, "status", &patch).await?;
        Ok(())
    }

    /// Changes a claim and returns its new version.
    pub(super) async fn patch_claim(
        &self,
        key: &ObjectKey,
        subresource: &str,
        patch: &Value,
    ) -> Result<String, ClientError> {
        let (options, kind) = (WriteOptions::default(), PatchKind::Merge);
        let written = self.client.patch_and_read::<ResourceClaimView>(
            &key.namespace,
            &key.name,
            subresource,
            kind,
            patch,
            &options,
        );
        let claim = written.await?;
        let version = claim.metadata.resource_version.clone();
        self.shared.core.lock().cluster.devices.wrote_claim(claim);
        Ok(version)
    }

    /// Deallocates a claim that no pod uses, so that the next attempt can find better devices.
    pub(super) async fn free_claim(&self, key: &ObjectKey) {
        let known = self.shared.core.lock().cluster.devices.claim(key).cloned();
        let Some(claim) = known else { return };
        let patch = json!({"metadata": {"resourceVersion": claim.metadata.resource_version},
            "status": {"allocation": null, "reservedFor": null, "devices": null}});
        if let Err(e) = self.patch_claim(key, "status", &patch).await {
            tracing::info!(claim = %key, error = %e, "deallocating the devices of a resource claim failed");
        }
    }

    /// Removes the reservations of a pod (Unreserve). The claims keep their devices until another pod needs others.
    async fn release_claims(&self, binding: &DeviceBinding) {
        for plan in &binding.plan.claims {
            let known = self.shared.core.lock().cluster.devices.claim(&plan.key).cloned();
            let Some(claim) = known.filter(|c| c.is_reserved_for(&binding.pod.uid)) else { continue };
            let left = consumers(&claim, |uid| uid != &*binding.pod.uid, None);
            let patch = json!({"metadata": {"resourceVersion": claim.metadata.resource_version},
                "status": {"reservedFor": left}});
            if let Err(e) = self.patch_claim(&plan.key, "status", &patch).await {
                // The next binding of the pod finds the reservation, and a controller removes it when the pod is
                // deleted.
                tracing::info!(claim = %plan.key, error = %e, "removing the pod's reservation from a resource claim failed");
            }
        }
    }

    async fn devices_failed(&self, binding: &DeviceBinding, why: &str) {
        self.release_claims(binding).await;
        self.pre_bind_failed(&binding.pod, "DynamicResources", why).await;
    }
}

/// Why a claim was not written.
enum Fault {
    /// The write is no longer valid.
    Said(String),
    Client(ClientError),
}

impl From<ClientError> for Fault {
    fn from(e: ClientError) -> Self {
        Self::Client(e)
    }
}

/// The current consumers of a claim that should stay, and one more.
fn consumers(claim: &ResourceClaimView, wanted: impl Fn(&str) -> bool, more: Option<Value>) -> Value {
    let kept = claim.status.reserved_for.iter().filter(|c| wanted(&c.uid)).map(|c| {
        let mut out = json!({"resource": c.resource, "name": c.name, "uid": c.uid});
        if !c.api_group.is_empty() {
            out["apiGroup"] = c.api_group.as_str().into();
        }
        out
    });
    kept.chain(more).collect()
}
