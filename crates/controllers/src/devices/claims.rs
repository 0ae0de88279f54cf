//! The resource claims of pods: created from templates with generated names, which are in the pod's status; reserved
//! for pods that were not bound by a scheduler; released, deallocated and deleted when pods terminate. Upstream
//! `pkg/controller/resourceclaim`.
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use kelson_client::{
    Change, Client, DeleteOptions, EventRecorder, EventType, Object as _, ObjectRef, PatchKind, WorkQueue, WriteOptions,
};
use kelson_devices::{Consumer, ResourceClaimView, names};
use kelson_meta::ObjectKey;
use kelson_metrics::IntCounterVec;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::plan::{NamedClaim, SeenPod, is_done, is_for, keeps, name_prefix, named, needs_work};
use crate::shared::context::{Context, SyncError, WORKERS};
use crate::shared::informers::SharedInformer;
use crate::views::{IndexKey, PodDeviceClaim, PodView, ResourceClaimTemplateView, uid_number};

/// The source of this controller's events.
const COMPONENT: &str = "resource_claim";
/// The field manager of claim names in the status of pods.
const FIELD_MANAGER: &str = "ResourceClaimController";
/// The number of remembered deleted pods, for which no request is necessary.
const GONE_MAX: usize = 500;

/// A key of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum DeviceWork {
    Pod(ObjectKey),
    Claim(ObjectKey),
}

impl fmt::Display for DeviceWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(key) => write!(f, "pod:{key}"),
            Self::Claim(key) => write!(f, "claim:{key}"),
        }
    }
}

/// The UIDs of the last [`GONE_MAX`] deleted pods.
#[derive(Default)]
struct DeletedPods {
    order: VecDeque<String>,
    uids: HashSet<String>,
}

impl DeletedPods {
    fn add(&mut self, uid: &str) {
        if self.uids.insert(uid.to_owned()) {
            self.order.push_back(uid.to_owned());
        }
        if self.order.len() > GONE_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.uids.remove(&oldest);
        }
    }
}

struct DeviceClaimController {
    client: Client,
    recorder: EventRecorder,
    pods: SharedInformer<PodView>,
    claims: SharedInformer<ResourceClaimView>,
    templates: SharedInformer<ResourceClaimTemplateView>,
    queue: WorkQueue<DeviceWork>,
    gone: Mutex<DeletedPods>,
    /// Created claims that are not yet in the cache: by the pod's UID, the names of the entry and of the claim.
    made: Mutex<HashMap<String, Vec<(Box<str>, String)>>>,
    creates: IntCounterVec,
}

/// Starts the controller.
pub fn start(ctx: &Arc<Context>) {
    let client = ctx.client();
    let (name, help) = ("resourceclaim_controller_creates_total", "Created claims by status.");
    let me = Arc::new(DeviceClaimController {
        recorder: ctx.recorder(&client, COMPONENT),
        client,
        pods: ctx.informers.pods.reader(),
        claims: ctx.informers.resource_claims.reader(),
        templates: ctx.informers.resource_claim_templates.reader(),
        queue: WorkQueue::default(),
        gone: Mutex::default(),
        made: Mutex::default(),
        creates: ctx.config.metrics.counters(name, help, &["status", "admin_access"]),
    });
    follow(&me);
    let all = me.claims.clone();
    ctx.config.metrics.on_scrape(move |families| {
        let mut counts: HashMap<[&str; 3], usize> = HashMap::new();
        let claims = all.list();
        claims.iter().for_each(|c| *counts.entry(labels(c)).or_default() += 1);
        let help = "Number of ResourceClaims, categorized by allocation status, admin access, and source.";
        let mut gauge = families.gauge("resourceclaim_controller_resource_claims", help);
        for ([allocated, admin, source], n) in counts {
            gauge.sample(&[("allocated", allocated), ("admin_access", admin), ("source", source)], n as f64);
        }
    });
    let queue = me.queue.clone();
    let (pods, claims) = (me.pods.clone(), me.claims.clone());
    let about = move |key: &DeviceWork| match key {
        DeviceWork::Pod(key) => pods.get(key).map(|pod| ObjectRef::of(&*pod)),
        DeviceWork::Claim(key) => claims.get(key).map(|claim| ObjectRef::of(&*claim)),
    };
    let sync = move |key| {
        let me = Arc::clone(&me);
        async move {
            match key {
                DeviceWork::Pod(key) => me.sync_pod(&key).await,
                DeviceWork::Claim(key) => me.sync_claim(&key).await,
            }
        }
    };
    ctx.run_queue_about(&queue, WORKERS, sync, about);
}

fn follow(me: &Arc<DeviceClaimController>) {
    let to = Arc::clone(me);
    me.pods.on_change(move |change| {
        let deleted = matches!(change, Change::Deleted(_));
        let pod = change.object();
        if deleted && pod.spec.uses_devices(&pod.status) {
            to.gone.lock().add(&pod.metadata.uid);
            to.made.lock().remove(&pod.metadata.uid);
        }
        to.look_at(pod, deleted);
    });
    let to = Arc::clone(me);
    me.claims.on_change(move |change| {
        let claim = change.object();
        let m = &claim.metadata;
        if !matches!(change, Change::Deleted(_)) {
            to.queue.add(DeviceWork::Claim(m.key()));
        }
        if let Some((_, uid)) = claim.owning_pod()
            && let Some(made) = to.made.lock().get_mut(uid)
        {
            made.retain(|(_, name)| *name != m.name);
        }
        for pod in to.pods.bucket(&IndexKey::DeviceClaim(m.key())) {
            to.look_at(&pod, false);
        }
    });
    let to = Arc::clone(me);
    me.templates.on_change(move |change| {
        if !matches!(change, Change::Deleted(_)) {
            for pod in to.pods.bucket(&IndexKey::DeviceTemplate(change.object().metadata.key())) {
                to.look_at(&pod, false);
            }
        }
    });
}

/// Returns the metric labels of a claim: allocated, admin access, source.
fn labels(claim: &ResourceClaimView) -> [&'static str; 3] {
    let word = |yes: bool| if yes { "true" } else { "false" };
    let annotation = |key: &str| claim.metadata.annotations.get(key).map_or("", String::as_str);
    let source = if annotation(names::EXTENDED_RESOURCE_CLAIM) == "true" {
        "extended_resource"
    } else if annotation(names::POD_CLAIM_NAME).is_empty() {
        ""
    } else {
        "resource_claim_template"
    };
    [word(claim.status.allocation.is_some()), word(claim.wants_admin_access()), source]
}

impl DeviceClaimController {
    /// Queues the work for a changed pod.
    fn look_at(&self, pod: &PodView, deleted: bool) {
        if !pod.spec.uses_devices(&pod.status) {
            return;
        }
        let namespace = &pod.metadata.namespace;
        if deleted || is_done(pod) {
            let named = pod.spec.device_claims.iter().filter_map(|entry| match named(pod, entry) {
                NamedClaim::As { name, .. } => Some(name),
                _ => None,
            });
            for name in named.chain(pod.status.extended_resource_claim.as_deref()) {
                self.queue.add(DeviceWork::Claim(ObjectKey::new(namespace, name)));
            }
        }
        let claims: Vec<_> = pod.spec.device_claims.iter().filter_map(|e| self.claim_of(pod, e)).collect();
        if !deleted && needs_work(pod, |name| claims.iter().find(|c| c.metadata.name == name).map(|c| &**c)) {
            self.queue.add(DeviceWork::Pod(pod.metadata.key()));
        }
    }

    fn claim_of(&self, pod: &PodView, entry: &PodDeviceClaim) -> Option<Arc<ResourceClaimView>> {
        let NamedClaim::As { name, .. } = named(pod, entry) else { return None };
        self.claims.get(&ObjectKey::new(&pod.metadata.namespace, name))
    }

    async fn sync_pod(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let Some(pod) = self.pods.get(key).filter(|p| !p.metadata.is_deleting() && !is_done(p)) else { return Ok(()) };
        let mut new: Vec<(Box<str>, String)> = Vec::new();
        for entry in &pod.spec.device_claims {
            match self.ensure(&pod, entry).await {
                Ok(Some(name)) => new.push((entry.name.clone(), name)),
                Ok(None) => {}
                Err(e) => {
                    let text = format!("PodResourceClaim {}: {e}", entry.name);
                    self.recorder.event(&ObjectRef::of(&*pod), EventType::Warning, "FailedResourceClaimCreation", text);
                    return Err(e);
                }
            }
        }
        if !new.is_empty() {
            self.announce(&pod, &new).await?;
        }
        if pod.spec.node_name.is_empty() {
            return Ok(());
        }
        for entry in &pod.spec.device_claims {
            let NamedClaim::As { own, .. } = named(&pod, entry) else { continue };
            let Some(claim) = self.claim_of(&pod, entry) else { continue };
            let usable = claim.status.allocation.is_some() && (!own || is_for(&claim, &pod));
            if usable && !claim.is_reserved_for(&pod.metadata.uid) {
                let me = json!({"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid});
                let all: Vec<Value> = claim.status.reserved_for.iter().map(consumer).chain([me]).collect();
                self.patch(&claim, "status", json!({"status": {"reservedFor": all}})).await?;
            }
        }
        Ok(())
    }

    /// Creates the claim of an entry if it is missing. Returns its name if the pod's status does not have it.
    async fn ensure(&self, pod: &PodView, entry: &PodDeviceClaim) -> Result<Option<String>, SyncError> {
        let Some(template) = &entry.template else { return Ok(None) };
        match named(pod, entry) {
            NamedClaim::Nothing => return Ok(None),
            NamedClaim::Missing => {}
            NamedClaim::As { .. } if self.claim_of(pod, entry).is_some_and(|claim| is_for(&claim, pod)) => {
                return Ok(None);
            }
            NamedClaim::As { .. } => {}
        }
        // The claim was created before, and the update of the pod's status failed.
        if let Some(name) = self.made_before(pod, entry) {
            return Ok(Some(name));
        }
        let m = &pod.metadata;
        let missing = || {
            let why = format!("resourceclaimtemplate.resource.k8s.io \"{template}\" not found");
            SyncError::Other(format!("resource claim template \"{template}\": {why}"))
        };
        let template = self.templates.get(&ObjectKey::new(&m.namespace, &**template)).ok_or_else(missing)?;
        let claim = claim_from(&template, pod, entry);
        let admin = serde_json::from_value(claim.clone()).is_ok_and(|c: ResourceClaimView| c.wants_admin_access());
        let admin = if admin { "true" } else { "false" };
        match self.client.create::<ResourceClaimView>(&m.namespace, &claim).await {
            Ok(claim) => {
                self.creates.with_label_values(&["success", admin]).inc();
                let name = claim.metadata.name;
                self.made.lock().entry(m.uid.clone()).or_default().push((entry.name.clone(), name.clone()));
                Ok(Some(name))
            }
            Err(e) => {
                self.creates.with_label_values(&["failure", admin]).inc();
                Err(SyncError::Other(format!("create ResourceClaim : {e}")))
            }
        }
    }

    fn made_before(&self, pod: &PodView, entry: &PodDeviceClaim) -> Option<String> {
        let uid = &pod.metadata.uid;
        let is_its = |c: &Arc<ResourceClaimView>| {
            c.metadata.annotations.get(names::POD_CLAIM_NAME).is_some_and(|n| **n == *entry.name)
                && c.owning_pod().is_some_and(|(_, owner)| owner == uid)
        };
        let seen = self.claims.bucket(&IndexKey::Controller(uid_number(uid))).into_iter().find(is_its);
        seen.map(|c| c.metadata.name.clone()).or_else(|| {
            let made = self.made.lock();
            made.get(uid)?.iter().find(|(of, _)| *of == entry.name).map(|(_, name)| name.clone())
        })
    }

    /// Adds the names of claims to the pod's status. Existing names are kept.
    async fn announce(&self, pod: &PodView, new: &[(Box<str>, String)]) -> Result<(), SyncError> {
        let m = &pod.metadata;
        let known = pod.status.device_claims.iter().filter(|s| !new.iter().any(|(name, _)| *name == s.name));
        let known = known.filter_map(|s| Some(json!({"name": s.name, "resourceClaimName": s.claim.as_ref()?})));
        let new = new.iter().map(|(name, claim)| json!({"name": name, "resourceClaimName": claim}));
        let statuses: Vec<Value> = known.chain(new).collect();
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": m.name, "namespace": m.namespace, "uid": m.uid},
            "status": {"resourceClaimStatuses": statuses}});
        let options = WriteOptions { force: true, ..WriteOptions::manager(FIELD_MANAGER) };
        let written = self.client.patch::<PodView>(&m.namespace, &m.name, "status", PatchKind::Apply, &pod, &options);
        match written.await {
            Err(e) if e.is_not_found() => Ok(()),
            written => Ok(written?),
        }
    }

    async fn sync_claim(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let Some(claim) = self.claims.get(key) else { return Ok(()) };
        let mut left: Vec<&Consumer> = Vec::new();
        for consumer in &claim.status.reserved_for {
            if !consumer.is_pod() || self.holds(&claim, consumer).await? {
                left.push(consumer);
            }
        }
        if left.len() < claim.status.reserved_for.len() {
            let all: Vec<Value> = left.iter().map(|c| self::consumer(c)).collect();
            let mut patch = json!({"status": {"reservedFor": all}});
            // The next consumer may get other devices, and until then these are available to others.
            let frees = left.is_empty() && claim.is_protected();
            if frees {
                patch["status"]["allocation"] = Value::Null;
            }
            let written = self.patch(&claim, "status", patch).await?;
            if written.status.allocation.is_none() && written.is_protected() {
                self.unprotect(&written).await?;
            }
        } else if claim.is_protected() && claim.metadata.is_deleting() && left.is_empty() {
            let mut last = ResourceClaimView::clone(&claim);
            if last.status.allocation.is_some() {
                last = self.patch(&claim, "status", json!({"status": {"allocation": null}})).await?;
            }
            self.unprotect(&last).await?;
        }
        if left.is_empty() { self.delete_unused(&claim).await } else { Ok(()) }
    }

    /// Whether a pod still holds its reservation.
    async fn holds(&self, claim: &ResourceClaimView, consumer: &Consumer) -> Result<bool, SyncError> {
        let namespace = &claim.metadata.namespace;
        let pod = self.pods.get(&ObjectKey::new(namespace, &consumer.name));
        let gone = self.gone.lock().uids.contains(&consumer.uid);
        let seen = if gone { SeenPod::Gone } else { pod.as_deref().map_or(SeenPod::Unknown, SeenPod::As) };
        if let Some(keeps) = keeps(consumer, seen) {
            return Ok(keeps);
        }
        // The pod may not be in the cache yet while the scheduler handles it.
        let fresh = self.client.get_opt::<PodView>(namespace, &consumer.name).await?;
        Ok(fresh.is_some_and(|p| p.metadata.uid == consumer.uid))
    }

    /// Deletes a claim that was created for a terminated pod. The garbage collector deletes those of deleted pods.
    async fn delete_unused(&self, claim: &ResourceClaimView) -> Result<(), SyncError> {
        let m = &claim.metadata;
        let Some((name, uid)) = claim.owning_pod().filter(|_| !m.is_deleting()) else { return Ok(()) };
        let Some(pod) = self.pods.get(&ObjectKey::new(&m.namespace, name)) else { return Ok(()) };
        if pod.metadata.uid == uid && !is_done(&pod) {
            return Ok(());
        }
        let options = DeleteOptions::default().with_uid(&m.uid);
        match self.client.delete::<ResourceClaimView>(&m.namespace, &m.name, &options).await {
            Err(e) if !e.is_not_found() => Err(e.into()),
            _ => Ok(()),
        }
    }

    async fn unprotect(&self, claim: &ResourceClaimView) -> Result<(), SyncError> {
        let left: Vec<&String> = claim.metadata.finalizers.iter().filter(|f| *f != names::FINALIZER).collect();
        self.patch(claim, "", json!({"metadata": {"finalizers": left}})).await.map(drop)
    }

    /// Patches a claim unless it changed since it was read.
    async fn patch(
        &self,
        claim: &ResourceClaimView,
        subresource: &str,
        mut patch: Value,
    ) -> Result<ResourceClaimView, SyncError> {
        let m = &claim.metadata;
        patch["metadata"]["resourceVersion"] = m.resource_version.as_str().into();
        let (options, kind) = (WriteOptions::default(), PatchKind::Merge);
        let client = &self.client;
        Ok(client.patch_and_read(&m.namespace, &m.name, subresource, kind, &patch, &options).await?)
    }
}

/// Returns a consumer in the API's form.
fn consumer(c: &Consumer) -> Value {
    let mut out = json!({"resource": c.resource, "name": c.name, "uid": c.uid});
    if !c.api_group.is_empty() {
        out["apiGroup"] = c.api_group.as_str().into();
    }
    out
}

fn claim_from(template: &ResourceClaimTemplateView, pod: &PodView, entry: &PodDeviceClaim) -> Value {
    let m = &pod.metadata;
    let mut annotations = template.spec.metadata.annotations.clone();
    annotations.insert(names::POD_CLAIM_NAME.into(), entry.name.to_string());
    json!({
        "apiVersion": ResourceClaimView::TYPE.api_version(), "kind": ResourceClaimView::TYPE.kind,
        "metadata": {
            "generateName": name_prefix(&m.name, &entry.name), "namespace": m.namespace,
            "labels": template.spec.metadata.labels, "annotations": annotations,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": m.name, "uid": m.uid, "controller": true}],
        },
        "spec": template.spec.spec,
    })
}
