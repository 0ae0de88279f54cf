//! The informers that update the core.
use std::sync::Arc;

use kelson_client::{Change, Client, Informer, InformerConfig, InformerHandle, Object};
use kelson_devices::{DeviceClassView, ResourceClaimView, ResourceSliceView};
use kelson_meta::ObjectKey;
use kelson_tasks::{OnPanic, Tasks};
use kelson_volumes::{ClaimView, StorageClassView, VolumeView};
use tokio::time::Instant;

use super::shared::Shared;
use super::write::Writer;
use crate::cluster::workloads::owner_selector;
use crate::core::Core;
use crate::plugins::change::Change as What;
use crate::view::{
    CsiDriver, CsiNode, DisruptionBudget, Namespace, Node, Pod, ReplicaSet, ReplicationController, Service,
    StatefulSet, StorageCapacity,
};

/// The message the API server writes for a gated pod.
const GATED: &str = "Scheduling is blocked due to non-empty scheduling gates";

/// Handles of the informers that decisions need beside pods. Dropping them stops the informers.
pub(super) struct Surroundings(
    #[expect(dead_code, reason = "held until dropped")]
    (InformerHandle<Node>, InformerHandle<Namespace>, Followed4, Stored, Offered, InformerHandle<DisruptionBudget>),
);

/// Starts all informers but that of pods. Returns when all have listed their objects once.
pub(super) async fn surroundings(shared: &Arc<Shared>, client: &Client, tasks: &Tasks) -> Surroundings {
    let all = InformerConfig::default;
    let nodes = follow::<Node>(shared, client, tasks, all(), |core, c, now| match present(c) {
        Some(node) => core.put_node(node, now),
        None => core.remove_node(c.object().name(), now),
    });
    let namespaces = follow::<Namespace>(shared, client, tasks, all(), |core, c, now| {
        let before = core.cluster.namespaces_epoch();
        match present(c) {
            Some(ns) => core.cluster.namespaces().put(ns),
            None => core.cluster.namespaces().remove(c.object().name()),
        }
        if core.cluster.namespaces_epoch() == before {
            return;
        }
        core.changed(What::Namespaces, None, now);
    });
    let workloads = follow_workloads(shared, client, tasks);
    let storage = follow_storage(shared, client, tasks);
    let devices = follow_devices(shared, client, tasks);
    let budgets = follow::<DisruptionBudget>(shared, client, tasks, all(), |core, c, _| {
        match present(c) {
            Some(b) => core.budgets.insert(b.key(), DisruptionBudget::clone(b)),
            None => core.budgets.remove(&c.object().key()),
        };
    });
    nodes.synced().await;
    namespaces.synced().await;
    storage.synced().await;
    devices.0.synced().await;
    devices.1.synced().await;
    devices.2.synced().await;
    workloads.0.synced().await;
    workloads.1.synced().await;
    workloads.2.synced().await;
    workloads.3.synced().await;
    budgets.synced().await;
    Surroundings((nodes, namespaces, workloads, storage, devices, budgets))
}

/// Starts the informer of pods that have not ended. Returns when it has listed them once.
pub(super) async fn pods(shared: &Arc<Shared>, writer: &Arc<Writer>, tasks: &Tasks) -> InformerHandle<Pod> {
    let unfinished =
        InformerConfig { fields: "status.phase!=Succeeded,status.phase!=Failed".into(), ..InformerConfig::default() };
    let names = shared.core.lock().names();
    let gates = GateReporter { writer: Arc::clone(writer), tasks: tasks.clone(), names };
    let pods = follow::<Pod>(shared, &writer.client, tasks, unfinished, move |core, c, now| match c {
        Change::Deleted(pod) => core.remove_pod(pod, now),
        Change::Added(pod) | Change::Updated { new: pod, .. } => {
            core.put_pod(Arc::clone(pod), now);
            gates.look(pod);
        }
    });
    pods.synced().await;
    pods
}

/// Passes changes of one type to the core.
fn follow<T: Object>(
    shared: &Arc<Shared>,
    client: &Client,
    tasks: &Tasks,
    config: InformerConfig,
    f: impl Fn(&mut Core, &Change<T>, Instant) + Send + Sync + 'static,
) -> InformerHandle<T> {
    let to = Arc::clone(shared);
    Informer::new(client.clone(), config)
        .on_change(move |change| {
            f(&mut to.core.lock(), change, Instant::now());
            to.changed.notify_one();
            to.known.notify_waiters();
        })
        .start_in(tasks)
}

/// Returns the current object of a change; `None` when it was deleted.
fn present<T>(change: &Change<T>) -> Option<&Arc<T>> {
    match change {
        Change::Deleted(_) => None,
        other => Some(other.object()),
    }
}

/// Reports to the core what a change means for waiting pods: of an object that was added, deleted or updated.
fn announce<T>(core: &mut Core, c: &Change<T>, means: [Option<What>; 3], about: Option<&ObjectKey>, now: Instant) {
    let what = match c {
        Change::Added(_) => means[0],
        Change::Updated { .. } => means[1],
        Change::Deleted(_) => means[2],
    };
    if let Some(what) = what {
        core.changed(what, about, now);
    }
}

/// Handles of the informers for objects that select pods.
type Followed4 = (
    InformerHandle<Service>,
    InformerHandle<ReplicationController>,
    InformerHandle<ReplicaSet>,
    InformerHandle<StatefulSet>,
);

fn follow_workloads(shared: &Arc<Shared>, client: &Client, tasks: &Tasks) -> Followed4 {
    let all = InformerConfig::default;
    let services = follow::<Service>(shared, client, tasks, all(), |core, c, _| {
        let selector = present(c).and_then(|s| s.spec.selector.as_ref());
        core.cluster.workloads.put_service(&c.object().key(), selector);
    });
    let controllers = follow::<ReplicationController>(shared, client, tasks, all(), |core, c, _| {
        let selector = present(c).and_then(|s| s.spec.selector.as_ref());
        let selector = selector.map(kelson_meta::LabelSelector::from_map);
        core.cluster.workloads.put_owner("ReplicationController", &c.object().key(), selector);
    });
    let sets = follow::<ReplicaSet>(shared, client, tasks, all(), |core, c, _| {
        let selector = present(c).and_then(|s| owner_selector(s.spec.selector.as_ref()));
        core.cluster.workloads.put_owner("ReplicaSet", &c.object().key(), selector);
    });
    let stateful = follow::<StatefulSet>(shared, client, tasks, all(), |core, c, _| {
        let selector = present(c).and_then(|s| owner_selector(s.spec.selector.as_ref()));
        core.cluster.workloads.put_owner("StatefulSet", &c.object().key(), selector);
    });
    (services, controllers, sets, stateful)
}

/// Handles of the informers for storage.
struct Stored {
    claims: InformerHandle<ClaimView>,
    volumes: InformerHandle<VolumeView>,
    classes: InformerHandle<StorageClassView>,
    limits: InformerHandle<CsiNode>,
    drivers: InformerHandle<CsiDriver>,
    capacities: InformerHandle<StorageCapacity>,
}

impl Stored {
    async fn synced(&self) {
        self.claims.synced().await;
        self.volumes.synced().await;
        self.classes.synced().await;
        self.limits.synced().await;
        self.drivers.synced().await;
        self.capacities.synced().await;
    }
}

fn follow_storage(shared: &Arc<Shared>, client: &Client, tasks: &Tasks) -> Stored {
    let all = InformerConfig::default;
    let claims = follow::<ClaimView>(shared, client, tasks, all(), |core, c, now| {
        core.cluster.storage.put_claim(c.object().key(), present(c).map(|c| ClaimView::clone(c)));
        announce(core, c, [Some(What::ClaimAdd), Some(What::ClaimUpdate), None], Some(&c.object().key()), now);
    });
    let volumes = follow::<VolumeView>(shared, client, tasks, all(), |core, c, now| {
        core.cluster.storage.put_volume(c.object().name(), present(c).map(|v| VolumeView::clone(v)));
        announce(core, c, [Some(What::VolumeAdd), Some(What::VolumeUpdate), None], None, now);
    });
    let classes = follow::<StorageClassView>(shared, client, tasks, all(), |core, c, now| {
        core.cluster.storage.put_class(c.object().name(), present(c).map(|s| StorageClassView::clone(s)));
        if matches!(c, Change::Updated { old, new } if old.allowed_topologies == new.allowed_topologies) {
            return;
        }
        announce(core, c, [Some(What::ClassAdd), Some(What::ClassUpdate), None], None, now);
    });
    let limits = follow::<CsiNode>(shared, client, tasks, all(), |core, c, now| {
        core.cluster.storage.put_csi_node(c.object().name(), present(c).map(|n| &**n));
        if matches!(c, Change::Updated { old, new } if !new.spec.allows_more_than(&old.spec)) {
            return;
        }
        announce(core, c, [Some(What::CsiNodeAdd), Some(What::CsiNodeUpdate), Some(What::CsiNodeDelete)], None, now);
    });
    let drivers = follow::<CsiDriver>(shared, client, tasks, all(), |core, c, now| {
        core.cluster.storage.put_driver(c.object().name(), present(c).map(|d| &**d));
        // When a driver stops publishing its capacity, capacity rejects no pod.
        let says = |d: &CsiDriver| d.spec.storage_capacity == Some(true);
        if matches!(c, Change::Updated { old, new } if !says(old) || says(new)) {
            return;
        }
        announce(core, c, [None, Some(What::CsiDriverUpdate), None], None, now);
    });
    let capacities = follow::<StorageCapacity>(shared, client, tasks, all(), |core, c, now| {
        core.cluster.storage.put_capacity(c.object().key(), present(c).map(|s| &**s));
        if matches!(c, Change::Updated { old, new } if !new.has_more_than(old)) {
            return;
        }
        announce(core, c, [Some(What::CapacityAdd), Some(What::CapacityUpdate), None], None, now);
    });
    Stored { claims, volumes, classes, limits, drivers, capacities }
}

/// Handles of the informers for devices.
type Offered = (InformerHandle<ResourceClaimView>, InformerHandle<ResourceSliceView>, InformerHandle<DeviceClassView>);

fn follow_devices(shared: &Arc<Shared>, client: &Client, tasks: &Tasks) -> Offered {
    let all = InformerConfig::default;
    let claims = follow::<ResourceClaimView>(shared, client, tasks, all(), |core, c, now| {
        core.put_resource_claim(c.object().key(), present(c).cloned(), now);
    });
    let slices = follow::<ResourceSliceView>(shared, client, tasks, all(), |core, c, now| {
        core.cluster.devices.put_slice(c.object().name(), present(c).cloned());
        announce(core, c, [Some(What::SliceAdd), Some(What::SliceUpdate), None], None, now);
    });
    let classes = follow::<DeviceClassView>(shared, client, tasks, all(), |core, c, now| {
        core.cluster.devices.put_class(c.object().name(), present(c).cloned());
        let about = Some(&c.object().metadata.key());
        announce(core, c, [Some(What::DeviceClassAdd), Some(What::DeviceClassUpdate), None], about, now);
    });
    (claims, slices, classes)
}

/// Writes the condition of gated pods that the API server has not written.
struct GateReporter {
    writer: Arc<Writer>,
    tasks: Tasks,
    names: Vec<Box<str>>,
}

impl GateReporter {
    fn look(&self, pod: &Arc<Pod>) {
        let ours = pod.is_pending() && self.names.contains(&pod.spec.scheduler_name);
        if ours && !pod.spec.gates.is_empty() && pod.condition.is_none() {
            let (writer, pod) = (Arc::clone(&self.writer), Arc::clone(pod));
            self.tasks.spawn_graceful("scheduler-gated", OnPanic::Contain, async move {
                writer.condition(&pod, "SchedulingGated", GATED).await;
            });
        }
    }
}
