//! Attaches CSI volumes to the nodes whose pods need them, and detaches them when the node has unmounted them. Each
//! attachment is a VolumeAttachment, which the driver's attacher carries out. This file watches and writes; `plan`
//! decides. Upstream `pkg/controller/volume/attachdetach`.
mod plan;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kelson_client::{
    Change, Client, DeleteOptions, EventRecorder, EventType, ObjectRef, PatchKind, WorkQueue, WriteOptions,
};
use kelson_meta::ObjectKey;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use self::plan::{AttachPlan, Need, Situation, plan, unique_name};
use crate::shared::context::{Context, SyncError, WORKERS};
use crate::shared::informers::SharedInformer;
use crate::views::condition;
use crate::views::{AttachmentView, ClaimView, CsiDriverView, IndexKey, NodeView, PodView, VolumeView};

/// The source of this controller's events.
const COMPONENT: &str = "attachdetach-controller";
/// The time for which a node that is not ready may keep volumes that no pod needs (upstream
/// `maxWaitForUnmountDuration`).
const UNMOUNT_MAX: Duration = Duration::from_secs(360);
/// The taint of a node that is known to be shut down, whose volumes are detached at once.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

struct AttachDetachController {
    client: Client,
    recorder: EventRecorder,
    pods: SharedInformer<PodView>,
    nodes: SharedInformer<NodeView>,
    claims: SharedInformer<ClaimView>,
    volumes: SharedInformer<VolumeView>,
    drivers: SharedInformer<CsiDriverView>,
    attachments: SharedInformer<AttachmentView>,
    /// The times since which attachments are not needed while their nodes still use the volumes. Bounded by the number
    /// of attachments.
    unneeded: Mutex<HashMap<String, Instant>>,
    /// The queue of node names.
    queue: WorkQueue<ObjectKey>,
}

/// Starts the controller.
pub fn start(ctx: &Arc<Context>) {
    let client = ctx.client();
    let (queue, informers): (WorkQueue<ObjectKey>, _) = (WorkQueue::default(), &ctx.informers);
    let me = Arc::new(AttachDetachController {
        recorder: ctx.recorder(&client, COMPONENT),
        client,
        pods: informers.pods.reader(),
        nodes: informers.nodes.reader(),
        claims: informers.claims.reader(),
        volumes: informers.volumes.reader(),
        drivers: informers.csi_drivers.reader(),
        attachments: informers.attachments.reader(),
        unneeded: Mutex::default(),
        queue: queue.clone(),
    });
    let q = queue.clone();
    me.pods.on_change(move |change| {
        let pod = change.object();
        if !pod.spec.claims.is_empty() && !pod.spec.node_name.is_empty() {
            q.add(ObjectKey::new("", &pod.spec.node_name));
        }
    });
    let q = queue.clone();
    me.nodes.on_change(move |change| match change {
        Change::Updated { old, new } if is_same(old, new) => {}
        _ => q.add(change.object().metadata.key()),
    });
    let (q, pods) = (queue.clone(), me.pods.clone());
    // A claim is bound before its pods are scheduled, except for pods that set their node.
    me.claims.on_change(move |change| {
        let m = &change.object().metadata;
        let uses = |p: &PodView| p.spec.claims.iter().any(|c| c.claim_name(&p.metadata.name) == m.name);
        let here = pods.in_namespace(&m.namespace);
        let nodes = here.iter().filter(|p| !p.spec.node_name.is_empty() && uses(p)).map(|p| &p.spec.node_name);
        nodes.for_each(|n| q.add(ObjectKey::new("", n)));
    });
    let (q, nodes) = (queue.clone(), me.nodes.clone());
    me.attachments.on_change(move |change| {
        q.add(ObjectKey::new("", &change.object().spec.node_name));
        // Another node may wait for the volume.
        if matches!(change, Change::Deleted(_)) {
            nodes.list().iter().for_each(|n| q.add(n.metadata.key()));
        }
    });
    let (q, nodes) = (queue.clone(), me.nodes.clone());
    me.drivers.on_change(move |_| nodes.list().iter().for_each(|n| q.add(n.metadata.key())));
    ctx.run_queue_of(me.nodes.clone(), &queue, WORKERS, move |key| {
        let me = Arc::clone(&me);
        async move { me.sync(&key.name).await }
    });
}

/// Whether no relevant field changed. A node updates its status every few seconds.
fn is_same(old: &NodeView, new: &NodeView) -> bool {
    old.status.volumes_in_use == new.status.volumes_in_use
        && old.status.volumes_attached == new.status.volumes_attached
        && old.spec.taints == new.spec.taints
        && is_ready(old) == is_ready(new)
}

fn is_ready(node: &NodeView) -> bool {
    condition::find(&node.status.conditions, "Ready").is_some_and(|c| c.status == "True")
}

impl AttachDetachController {
    async fn sync(&self, name: &str) -> Result<(), SyncError> {
        let node = self.nodes.get(&ObjectKey::new("", name));
        let attachments = self.attachments.bucket(&IndexKey::Node(name.to_owned()));
        let needs = self.needs(name);
        let is_told = |n: &Arc<NodeView>| !n.status.volumes_attached.is_empty();
        if needs.is_empty() && attachments.is_empty() && !node.as_ref().is_some_and(is_told) {
            return Ok(());
        }
        let in_use = node.as_ref().map(|n| n.status.volumes_in_use.as_slice());
        let now = Situation { node: name, in_use, needs: needs.clone(), attachments: &attachments };
        let volume = |n: &str| self.volumes.get(&ObjectKey::new("", n));
        let elsewhere = |volume: &str| {
            let all = self.attachments.list();
            all.iter().any(|a| a.spec.source.persistent_volume_name == volume && a.spec.node_name != name)
        };
        let plan = plan(now, volume, elsewhere);
        self.report(&plan, &attachments, &needs);
        if let Some(node) = &node {
            self.report_to_node(node, &plan, &needs).await?;
        }
        for (attachment, need) in &plan.attach {
            self.attach(attachment, need, name).await?;
        }
        for attachment in &plan.detach {
            self.detach(attachment).await?;
        }
        self.force(&plan, node.as_deref(), name).await
    }

    /// Returns the volumes with attachment that pods of the node need. A pod needs its volumes until it has terminated,
    /// even while it is being deleted.
    fn needs(&self, node: &str) -> BTreeMap<String, Need> {
        let mut out: BTreeMap<String, Need> = BTreeMap::new();
        let mut pods = self.pods.bucket(&IndexKey::Node(node.to_owned()));
        pods.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        for pod in pods.into_iter().filter(|p| !p.is_terminal()) {
            for claim in &pod.spec.claims {
                let key = ObjectKey::new(&pod.metadata.namespace, claim.claim_name(&pod.metadata.name));
                let Some(claim) = self.claims.get(&key).filter(|c| c.is_fully_bound()) else { continue };
                let Some(volume) = self.volumes.get(&ObjectKey::new("", &claim.spec.volume_name)) else { continue };
                let is_its = volume.spec.claim_ref.as_ref().is_some_and(|r| r.uid == claim.metadata.uid);
                if is_its && volume.spec.csi.as_ref().is_some_and(|c| self.attaches(&c.driver)) {
                    let name = volume.metadata.name.clone();
                    let need = out.entry(name).or_insert_with(|| Need { volume, pods: Vec::new() });
                    need.pods.push(Arc::clone(&pod));
                }
            }
        }
        out
    }

    fn attaches(&self, driver: &str) -> bool {
        let known = self.drivers.get(&ObjectKey::new("", driver));
        known.is_none_or(|d| d.spec.attach_required != Some(false))
    }

    fn announce(&self, need: &Need, kind: EventType, reason: &str, text: &str) {
        need.pods.iter().for_each(|p| self.recorder.event(&ObjectRef::of(&**p), kind, reason, text));
    }

    /// Records events on pods that wait for an attachment.
    fn report(&self, plan: &AttachPlan, attachments: &[Arc<AttachmentView>], needs: &BTreeMap<String, Need>) {
        for need in &plan.wait {
            let name = &need.volume.metadata.name;
            let text = format!(
                "Multi-Attach error for volume {name:?} Volume is already exclusively attached to one node and can't be \
                 attached to another"
            );
            self.announce(need, EventType::Warning, "FailedAttachVolume", &text);
        }
        for a in attachments.iter().filter(|a| !a.status.attached) {
            let name = &a.spec.source.persistent_volume_name;
            if let (Some(e), Some(need)) = (&a.status.attach_error, needs.get(name)) {
                let text = format!("AttachVolume.Attach failed for volume {name:?} : {}", e.message);
                self.announce(need, EventType::Warning, "FailedAttachVolume", &text);
            }
        }
    }

    /// Updates `status.volumesAttached`. Kubelets mount only volumes that are in it.
    async fn report_to_node(
        &self,
        node: &NodeView,
        plan: &AttachPlan,
        needs: &BTreeMap<String, Need>,
    ) -> Result<(), SyncError> {
        let said: Vec<&String> = node.status.volumes_attached.iter().map(|v| &v.name).collect();
        if said.iter().copied().eq(&plan.attached) {
            return Ok(());
        }
        let all: Vec<_> = plan.attached.iter().map(|n| json!({"name": n, "devicePath": ""})).collect();
        let patch = json!({"status": {"volumesAttached": all}});
        let (name, options) = (&node.metadata.name, WriteOptions::default());
        match self.client.patch::<NodeView>("", name, "status", PatchKind::Merge, &patch, &options).await {
            Err(e) if !e.is_not_found() => return Err(e.into()),
            _ => {}
        }
        for (name, need) in needs {
            let Some(csi) = &need.volume.spec.csi else { continue };
            let unique = unique_name(&csi.driver, &csi.volume_handle);
            if plan.attached.contains(&unique) && !said.contains(&&unique) {
                let text = format!("AttachVolume.Attach succeeded for volume {name:?} ");
                self.announce(need, EventType::Normal, "SuccessfulAttachVolume", &text);
            }
        }
        Ok(())
    }

    async fn attach(&self, name: &str, need: &Need, node: &str) -> Result<(), SyncError> {
        let volume = &need.volume;
        let Some(csi) = &volume.spec.csi else { return Ok(()) };
        let attachment = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": name},
            "spec": {"attacher": csi.driver, "nodeName": node,
                "source": {"persistentVolumeName": volume.metadata.name}}});
        match self.client.create::<AttachmentView>("", &attachment).await {
            Err(e) if !e.is_already_exists() => Err(e.into()),
            _ => Ok(()),
        }
    }

    async fn detach(&self, name: &str) -> Result<(), SyncError> {
        match self.client.delete::<AttachmentView>("", name, &DeleteOptions::default()).await {
            // Since when it is not needed is still true.
            Err(e) if !e.is_not_found() => Err(e.into()),
            _ => {
                self.unneeded.lock().remove(name);
                Ok(())
            }
        }
    }

    /// Detaches volumes from a node that is shut down and cannot report that it unmounted them: at once if an
    /// administrator marked it as out of service, else after it was not ready for a while.
    async fn force(&self, plan: &AttachPlan, node: Option<&NodeView>, name: &str) -> Result<(), SyncError> {
        self.unneeded.lock().retain(|a, _| plan.busy.contains(a) || !self.is_of(a, name));
        let Some(node) = node else { return Ok(()) };
        let is_off = node.spec.taints.iter().any(|t| t.key == OUT_OF_SERVICE);
        for attachment in &plan.busy {
            let since = *self.unneeded.lock().entry(attachment.clone()).or_insert_with(Instant::now);
            if is_off || (since.elapsed() >= UNMOUNT_MAX && !is_ready(node)) {
                self.detach(attachment).await?;
            } else if !is_ready(node) {
                self.queue.add_after(ObjectKey::new("", name), UNMOUNT_MAX.saturating_sub(since.elapsed()));
            }
        }
        Ok(())
    }

    fn is_of(&self, attachment: &str, node: &str) -> bool {
        self.attachments.get(&ObjectKey::new("", attachment)).is_none_or(|a| a.spec.node_name == node)
    }
}

#[cfg(test)]
mod tests;
