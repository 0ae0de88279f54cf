//! Endpoint slices of services with a selector. `core` decides; this file watches services, pods, nodes and slices and
//! writes. `hints` says which zones and nodes should use which endpoint.
mod core;
mod hints;
mod metrics;
pub mod mirroring;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kelson_client::{Change, Client, DeleteOptions, EventRecorder, EventType, Object, ObjectRef, WorkQueue};
use kelson_meta::{LabelSelector, ObjectKey};
use parking_lot::Mutex;
use serde_json::json;

use self::core::{Group, SlicePlan};
pub use self::core::{addresses, find_port, hostname, is_headless};
use self::hints::{Closeness, ZONE};
use self::metrics::{Sizes, SliceMetrics};
use crate::shared::context::{Context, SyncError, WORKERS, update_value};
use crate::shared::expectations::Expectations;
use crate::shared::informers::SharedInformer;
use crate::views::{Endpoint, EndpointSliceView, IndexKey, NodeView, PodView, SERVICE_NAME_LABEL, ServiceView};

/// The source of this controller's events.
const COMPONENT: &str = "endpoint-slice-controller";
/// The label with the manager of a slice.
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// The label's value for this controller.
pub const MANAGER: &str = "endpointslice-controller.k8s.io";
/// The label of slices and Endpoints of headless services.
pub const HEADLESS: &str = "service.kubernetes.io/headless";
/// The delay of the next sync if a pod's node is not in the cache.
const NODE_WAIT: Duration = Duration::from_secs(15);

struct EndpointSliceController {
    /// The maximum number of endpoints per slice.
    most: usize,
    client: Client,
    recorder: EventRecorder,
    services: SharedInformer<ServiceView>,
    pods: SharedInformer<PodView>,
    nodes: SharedInformer<NodeView>,
    slices: SharedInformer<EndpointSliceView>,
    expectations: Arc<Expectations>,
    /// Services with hints in proportion to the CPUs of zones.
    hinted: Mutex<HashSet<ObjectKey>>,
    metrics: SliceMetrics,
    queue: WorkQueue<ObjectKey>,
}

/// Starts the endpoint slice controller.
pub fn start(ctx: &Arc<Context>) {
    let client = ctx.client();
    let queue = WorkQueue::default();
    let i = &ctx.informers;
    let me = Arc::new(EndpointSliceController {
        most: ctx.config.slices.own,
        recorder: ctx.recorder(&client, COMPONENT),
        client,
        services: i.services.reader(),
        pods: i.pods.reader(),
        nodes: i.nodes.reader(),
        slices: i.endpoint_slices.reader(),
        expectations: Arc::default(),
        hinted: Mutex::default(),
        metrics: SliceMetrics::new(&ctx.config.metrics),
        queue: queue.clone(),
    });
    let (q, e) = (queue.clone(), Arc::clone(&me.expectations));
    me.services.on_change(move |change| {
        if let Change::Deleted(s) = change {
            e.forget(&s.key());
        }
        q.add(change.object().key());
    });
    let (q, e) = (queue.clone(), Arc::clone(&me.expectations));
    me.slices.on_change(move |change| {
        let slice = change.object();
        if !is_ours(slice) {
            return;
        }
        let Some(service) = slice.metadata.labels.get(SERVICE_NAME_LABEL) else { return };
        let key = ObjectKey::new(&slice.metadata.namespace, service);
        if matches!(change, Change::Added(_)) {
            e.creation_observed(&key);
        }
        q.add(key);
    });
    enqueue_services_of_pods(ctx, &queue, ctx.config.batch_periods.slices);
    let (q, services, pods) = (queue.clone(), me.services.clone(), me.pods.clone());
    me.nodes.on_change(move |change| on_node(&services, &pods, &q, change));
    ctx.run_queue_of(me.services.clone(), &queue, WORKERS, move |key| {
        let me = Arc::clone(&me);
        async move { me.sync(&key).await }
    });
}

fn is_ours(s: &EndpointSliceView) -> bool {
    s.metadata.labels.get(MANAGED_BY).is_some_and(|m| m == MANAGER)
}

/// Queues the services that may be affected by a change of a pod, after the batch period.
pub(crate) fn enqueue_services_of_pods(ctx: &Arc<Context>, queue: &WorkQueue<ObjectKey>, wait: Duration) {
    let (services, queue) = (ctx.informers.services.reader(), queue.clone());
    ctx.informers.pods.on_change(move |change| {
        let (old, new) = match change {
            Change::Updated { old, new } => {
                if !endpoint_changed(old, new) {
                    return;
                }
                (Some(old), new)
            }
            Change::Added(p) | Change::Deleted(p) => (None, p),
        };
        for s in services.in_namespace(&new.metadata.namespace) {
            let Some(selector) = s.spec.selector.as_ref().filter(|s| !s.is_empty()) else { continue };
            let selects = |p: &PodView| selector.iter().all(|(k, v)| p.metadata.labels.get(k) == Some(v));
            if selects(new) || old.is_some_and(|o| selects(o)) {
                queue.add_after(s.key(), wait);
            }
        }
    });
}

fn endpoint_changed(a: &PodView, b: &PodView) -> bool {
    let of = |p: &PodView| {
        let ips: Vec<String> = p.status.pod_ips.iter().map(|i| i.ip.clone()).collect();
        (
            ips,
            p.status.pod_ip.clone(),
            p.is_ready(),
            p.is_terminal(),
            p.metadata.is_deleting(),
            p.spec.node_name.clone(),
        )
    };
    a.metadata.uid != b.metadata.uid || a.metadata.labels != b.metadata.labels || of(a) != of(b)
}

/// Queues the services of a node's pods when the node is added, deleted, or moved to another zone.
fn on_node(
    services: &SharedInformer<ServiceView>,
    pods: &SharedInformer<PodView>,
    queue: &WorkQueue<ObjectKey>,
    change: &Change<NodeView>,
) {
    let counts = |n: &NodeView| hints::counted(n).map(|(zone, cpu)| (zone.map(str::to_owned), cpu));
    if !matches!(change, Change::Updated { old, new } if counts(old) == counts(new)) {
        let auto = services.list().into_iter().filter(|s| hints::closeness(s) == hints::Closeness::Auto);
        auto.for_each(|s| queue.add(s.key()));
    }
    if let Change::Updated { old, new } = change
        && old.metadata.labels.get(ZONE) == new.metadata.labels.get(ZONE)
    {
        return;
    }
    let on_node = pods.bucket(&IndexKey::Node(change.object().metadata.name.clone()));
    for p in on_node {
        for s in services.in_namespace(&p.metadata.namespace) {
            if s.spec
                .selector
                .as_ref()
                .is_some_and(|sel| !sel.is_empty() && sel.iter().all(|(k, v)| p.metadata.labels.get(k) == Some(v)))
            {
                queue.add(s.key());
            }
        }
    }
}

impl EndpointSliceController {
    async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let Some(service) = self.services.get(key) else {
            self.hinted.lock().remove(key);
            self.metrics.forget(key);
            return Ok(());
        };
        if service.spec.r#type == "ExternalName" || service.metadata.is_deleting() {
            return Ok(());
        }
        let Some(selector) = service.spec.selector.as_ref() else { return Ok(()) };
        // Created slices that are not in the cache yet would be created twice. Their watch events queue the service
        // again.
        if !self.expectations.satisfied(key) {
            return Ok(());
        }
        let selector = LabelSelector::from_map(selector);
        let mut pods = self.pods.in_namespace(&key.namespace);
        pods.retain(|p| selector.matches(&p.metadata.labels));
        let zone = |node: &str| {
            if node.is_empty() {
                return Err(());
            }
            let node = self.nodes.get(&ObjectKey::new("", node)).ok_or(())?;
            Ok(node.metadata.labels.get(ZONE).cloned())
        };
        let (mut desired, missing_node) = core::desired(&service, &pods, zone);
        let mut existing = self.slices.in_namespace(&key.namespace);
        existing.retain(|s| {
            is_ours(s) && s.metadata.labels.get(SERVICE_NAME_LABEL) == Some(&key.name) && !s.metadata.is_deleting()
        });
        self.hint(&service, &mut desired, &existing);
        let labels = slice_labels(&service);
        let outdated = |s: &EndpointSliceView| s.metadata.labels != labels;
        let sizes = Sizes::of(&desired, self.most);
        let plan = core::plan(&core::families(&service), desired, &existing, outdated, self.most);
        self.metrics.synced(&service, sizes, &plan, existing.len());
        if let Err(e) = self.carry_out(&service, plan, &existing, &labels).await {
            if matches!(&e, SyncError::Client(c) if c.is_namespace_terminating()) {
                return Ok(());
            }
            if !e.is_ordinary() {
                let message = format!("Error updating Endpoint Slices for Service {key}: {e}");
                let about = ObjectRef::of(&*service);
                self.recorder.event(&about, EventType::Warning, "FailedToUpdateEndpointSlices", message);
            }
            return Err(e);
        }
        if missing_node {
            self.queue.add_after(key.clone(), NODE_WAIT);
        }
        Ok(())
    }

    /// Sets the hints of the endpoints of a service.
    fn hint(
        &self,
        service: &ServiceView,
        desired: &mut BTreeMap<Group, Vec<Endpoint>>,
        existing: &[Arc<EndpointSliceView>],
    ) {
        let event = |kind: EventType, reason: &str, message: &str, family: &str| {
            let message = format!("{message}, addressType: {family}");
            self.recorder.event(&ObjectRef::of(service), kind, reason, message);
        };
        let closeness = hints::closeness(service);
        let families = core::families(service);
        if closeness != Closeness::Auto && self.hinted.lock().remove(&service.key()) {
            let family = families.first().map_or("", String::as_str);
            event(EventType::Warning, hints::DISABLED.0, hints::DISABLED.1, family);
        }
        match closeness {
            Closeness::Anywhere => return,
            Closeness::Near { nodes } => return hints::near(desired.values_mut().flatten(), nodes),
            Closeness::Auto => {}
        }
        let shares = hints::shares(&self.nodes.list());
        let known = existing.iter().flat_map(|s| &s.endpoints);
        let before = known.filter_map(|e| Some((core::key_of(e), e.hints.as_ref()?.for_zones.first()?.name.clone())));
        let before = before.collect();
        for family in &families {
            let of_family = desired.iter_mut().filter(|((f, _), _)| f == family).flat_map(|(_, endpoints)| endpoints);
            match hints::share_out(&mut of_family.collect::<Vec<_>>(), &before, shares.as_ref()) {
                Ok(()) if self.hinted.lock().insert(service.key()) => {
                    event(EventType::Normal, hints::ENABLED.0, hints::ENABLED.1, family);
                }
                Ok(()) => {}
                Err(why) => {
                    self.hinted.lock().remove(&service.key());
                    event(EventType::Warning, hints::DISABLED.0, &why, family);
                }
            }
        }
    }

    async fn carry_out(
        &self,
        service: &ServiceView,
        plan: SlicePlan,
        existing: &[Arc<EndpointSliceView>],
        labels: &BTreeMap<String, String>,
    ) -> Result<(), SyncError> {
        let ns = &service.metadata.namespace;
        let key = service.key();
        if !plan.create.is_empty() {
            self.expectations.expect_creations(&key, plan.create.len());
        }
        let mut left = plan.create.len();
        for (group, endpoints) in &plan.create {
            let body = new_slice(service, group, endpoints, labels);
            if let Err(e) = self.client.create::<EndpointSliceView>(ns, &body).await {
                for _ in 0..left {
                    self.expectations.creation_observed(&key);
                }
                return Err(e.into());
            }
            left -= 1;
        }
        for (name, endpoints) in &plan.update {
            let seen = existing.iter().find(|s| &s.metadata.name == name);
            let seen = seen.map_or("", |s| s.metadata.resource_version.as_str());
            update_value::<EndpointSliceView>(&self.client, ns, name, "", seen, |v| {
                v["metadata"]["labels"] = json!(labels);
                v["endpoints"] = json!(endpoints);
            })
            .await?;
        }
        for name in &plan.delete {
            match self.client.delete::<EndpointSliceView>(ns, name, &DeleteOptions::default()).await {
                Err(e) if !e.is_not_found() => return Err(e.into()),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns the labels of a slice: the service's labels, its name and the manager.
fn slice_labels(s: &ServiceView) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::clone(&s.metadata.labels);
    labels.remove(HEADLESS);
    labels.insert(SERVICE_NAME_LABEL.into(), s.metadata.name.clone());
    labels.insert(MANAGED_BY.into(), MANAGER.into());
    if is_headless(s) {
        labels.insert(HEADLESS.into(), String::new());
    }
    labels
}

fn new_slice(
    service: &ServiceView,
    (family, ports): &Group,
    endpoints: &[Endpoint],
    labels: &BTreeMap<String, String>,
) -> serde_json::Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "generateName": format!("{}-", service.metadata.name),
            "namespace": service.metadata.namespace,
            "labels": labels,
            "ownerReferences": [crate::shared::ownership::controller_ref(service)],
        },
        "addressType": family, "endpoints": endpoints, "ports": ports,
    })
}

#[cfg(test)]
mod tests;
