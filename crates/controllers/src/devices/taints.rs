//! Evicts pods that use devices with `NoExecute` taints that their claims do not tolerate (KEP-5055). Only taints in
//! ResourceSlices count, since taint rules need a feature gate that is off. Upstream
//! `pkg/controller/devicetainteviction`.
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kelson_client::{
    Change, Client, DeleteOptions, EventRecorder, EventType, ObjectRef, PatchKind, WorkQueue, WriteOptions,
};
use kelson_devices::{DeviceView, Granted, ResourceClaimView, ResourceSliceView};
use kelson_meta::{Clock, ObjectKey};
use kelson_metrics::{Histogram, IntCounter};

use super::plan::{NamedClaim, evicted_at, is_for, named};
use crate::shared::context::{Context, SyncError, WORKERS};
use crate::shared::evictions::Evictions;
use crate::shared::informers::SharedInformer;
use crate::shared::pods::disruption_target;
use crate::views::{IndexKey, PodView};

/// The source of this controller's events.
const COMPONENT: &str = "device-taint-eviction-controller";
/// Buckets in seconds from a taint's effect to the deletion of the pod.
const LATENCIES: [f64; 12] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0];

struct DeviceTaintController {
    client: Client,
    recorder: EventRecorder,
    clock: Arc<dyn Clock>,
    pods: SharedInformer<PodView>,
    claims: SharedInformer<ResourceClaimView>,
    slices: SharedInformer<ResourceSliceView>,
    queue: WorkQueue<ObjectKey>,
    evictions: Evictions,
    deletions: IntCounter,
    latency: Histogram,
}

/// Starts the controller.
pub fn start(ctx: &Arc<Context>) {
    let (client, metrics) = (ctx.client(), &ctx.config.metrics);
    let name = "device_taint_eviction_controller_pod_deletions_total";
    let deletions = metrics.counter(name, "Pods deleted because of taints of their devices.");
    let name = "device_taint_eviction_controller_pod_deletion_duration_seconds";
    let latency =
        metrics.histogram(name, "Time in seconds from a taint's effect to the deletion of a pod.", &LATENCIES);
    let me = Arc::new(DeviceTaintController {
        recorder: ctx.recorder(&client, COMPONENT),
        client,
        clock: Arc::clone(&ctx.clock),
        pods: ctx.informers.pods.reader(),
        claims: ctx.informers.resource_claims.reader(),
        slices: ctx.informers.resource_slices.reader(),
        queue: WorkQueue::default(),
        evictions: Evictions::default(),
        deletions,
        latency,
    });
    follow(&me);
    let queue = me.queue.clone();
    ctx.run_queue_of(me.pods.clone(), &queue, WORKERS, move |key| {
        let me = Arc::clone(&me);
        async move { me.sync(&key).await }
    });
}

fn follow(me: &Arc<DeviceTaintController>) {
    let to = Arc::clone(me);
    me.pods.on_change(move |change| {
        let pod = change.object();
        if let Change::Deleted(_) = change {
            to.evictions.forget(&pod.metadata.uid);
        } else if !pod.spec.device_claims.is_empty() && !pod.spec.node_name.is_empty() {
            to.queue.add(pod.metadata.key());
        }
    });
    let to = Arc::clone(me);
    me.claims.on_change(move |change| {
        let (Change::Added(claim) | Change::Deleted(claim) | Change::Updated { new: claim, .. }) = change;
        let same = |old: &ResourceClaimView| old.status == claim.status;
        if !matches!(change, Change::Updated { old, .. } if same(old)) {
            to.users_of(claim);
        }
    });
    let to = Arc::clone(me);
    me.slices.on_change(move |change| {
        let (old, new) = match change {
            Change::Added(new) => (None, Some(new)),
            Change::Updated { old, new } => (Some(old), Some(new)),
            Change::Deleted(old) => (Some(old), None),
        };
        let tainted = |s: Option<&Arc<ResourceSliceView>>| {
            s.is_some_and(|s| s.spec.devices.iter().flat_map(|d| &d.taints).any(kelson_devices::DeviceTaint::evicts))
        };
        if !tainted(old) && !tainted(new) {
            return;
        }
        let spec = &change.object().spec;
        let of_pool = |g: &Granted| g.driver == spec.driver && g.pool == spec.pool.name;
        for claim in to.claims.list() {
            let allocation = claim.status.allocation.iter().flat_map(|a| &a.devices.results);
            if allocation.into_iter().any(of_pool) {
                to.users_of(&claim);
            }
        }
    });
}

impl DeviceTaintController {
    fn users_of(&self, claim: &ResourceClaimView) {
        for pod in self.pods.bucket(&IndexKey::DeviceClaim(claim.metadata.key())) {
            self.queue.add(pod.metadata.key());
        }
    }

    /// Returns when a pod must be evicted.
    fn eviction(&self, pod: &PodView) -> Option<Timestamp> {
        if pod.spec.node_name.is_empty() {
            return None;
        }
        let slices = self.slices.list();
        let of_entry = |entry| {
            let NamedClaim::As { name, own } = named(pod, entry) else { return None };
            let claim = self.claims.get(&ObjectKey::new(&pod.metadata.namespace, name))?;
            if (own && !is_for(&claim, pod)) || !claim.is_reserved_for(&pod.metadata.uid) {
                return None;
            }
            evicted_at(&claim.status.allocation.as_ref()?.devices.results, |g| device(&slices, g))
        };
        pod.spec.device_claims.iter().filter_map(of_entry).min()
    }

    async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let Some(pod) = self.pods.get(key).filter(|p| !p.metadata.is_deleting()) else { return Ok(()) };
        let about = ObjectRef::of(&*pod);
        let event = |text: &str| self.recorder.event(&about, EventType::Normal, "DeviceTaintManagerEviction", text);
        let uid = &pod.metadata.uid;
        let Some(at) = self.eviction(&pod) else {
            if self.evictions.cancel(uid) {
                event("Cancelling deletion");
            }
            return Ok(());
        };
        let now = self.clock.now();
        let left = now.duration_until(at);
        if left.is_positive() {
            self.evictions.schedule(uid);
            self.queue.add_after(key.clone(), left.unsigned_abs() + Duration::from_millis(1));
            return Ok(());
        }
        if !self.evictions.begin(uid) {
            return Ok(());
        }
        event("Marking for deletion");
        let evicted = self.evict(key, &pod, now).await;
        match &evicted {
            Ok(true) => {
                self.deletions.inc();
                self.latency.observe(self.clock.now().duration_since(at).as_secs_f64());
            }
            Ok(false) => {}
            Err(_) => self.evictions.failed(uid),
        }
        evicted.map(|_| ())
    }

    /// Deletes a pod and sets its condition. Returns whether it existed.
    async fn evict(&self, key: &ObjectKey, pod: &PodView, now: Timestamp) -> Result<bool, SyncError> {
        let message = "Device Taint manager: deleting due to NoExecute taint";
        let patch = disruption_target(&pod.metadata, "DeletionByDeviceTaintManager", message, now);
        let (namespace, name, o) = (&key.namespace, &key.name, WriteOptions::default());
        let patched = self.client.patch::<PodView>(namespace, name, "status", PatchKind::Strategic, &patch, &o);
        match patched.await {
            // If another pod has the name now, the next sync handles that one.
            Err(e) if e.is_not_found() => return Ok(false),
            Err(e) => return Err(e.into()),
            Ok(()) => {}
        }
        let options = DeleteOptions::default().with_uid(&pod.metadata.uid);
        match self.client.delete::<PodView>(namespace, name, &options).await {
            Err(e) if e.is_not_found() => Ok(false),
            Err(e) => Err(e.into()),
            Ok(()) => Ok(true),
        }
    }
}

/// Returns a device in the newest generation of its pool, and the creation time of its slice.
fn device<'s>(slices: &'s [Arc<ResourceSliceView>], granted: &Granted) -> Option<(&'s DeviceView, Timestamp)> {
    let of_pool = || slices.iter().filter(|s| s.spec.driver == granted.driver && s.spec.pool.name == granted.pool);
    let newest = of_pool().map(|s| s.spec.pool.generation).max()?;
    let current = of_pool().filter(|s| s.spec.pool.generation == newest);
    current.into_iter().find_map(|slice| {
        let device = slice.spec.devices.iter().find(|d| d.name == granted.device)?;
        Some((device, slice.metadata.creation_timestamp.parse().unwrap_or(Timestamp::MIN)))
    })
}
