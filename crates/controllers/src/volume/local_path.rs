//! The built-in provisioner of the class `local-path`: volumes that are directories of nodes, with the names and layout
//! of k3s. A volume is a hostPath below the directory for such volumes that the node's kubelet names in an annotation.
//! The kubelet creates the volume's directory when the first pod mounts it, and removes it on a request through the API
//! server's proxy. Behaviour: `rancher/local-path-provisioner` and `sig-storage-lib-external-provisioner`.
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, StatusCode};
use kelson_client::{Client, ClientError, DeleteOptions, EventRecorder, EventType, Object as _, ObjectRef, WorkQueue};
use kelson_meta::ObjectKey;
use kelson_volumes::names;
use serde_json::{Value, json};

use crate::shared::context::{Context, SyncError, WORKERS, update_value};
use crate::shared::informers::SharedInformer;
use crate::views::{ClaimView, NodeView, StorageClassView, VolumeView};
use kelson_meta::tree::map_at;

/// The source of this controller's events.
const COMPONENT: &str = "rancher.io/local-path";
/// The storage class of new clusters.
const CLASS: &str = "local-path";
/// The finalizer that keeps a volume until its directory is removed, in whatever order claim and volume are deleted.
const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// The annotation with the node of a volume's directory.
const NODE: &str = "local.path.provisioner/selected-node";
const HOSTNAME: &str = "kubernetes.io/hostname";
/// The access modes of a directory, which is on one node.
const ACCESS_MODES: [&str; 2] = ["ReadWriteOnce", "ReadWriteOncePod"];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ProvisionerKey {
    /// The class itself, which is checked once.
    Class,
    Claim(ObjectKey),
    /// The volume of this name.
    Volume(String),
}

impl fmt::Display for ProvisionerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Class => f.write_str(CLASS),
            Self::Claim(key) => write!(f, "claim {key}"),
            Self::Volume(name) => write!(f, "volume {name}"),
        }
    }
}

struct Provisioner {
    client: Client,
    recorder: EventRecorder,
    claims: SharedInformer<ClaimView>,
    volumes: SharedInformer<VolumeView>,
    classes: SharedInformer<StorageClassView>,
    nodes: SharedInformer<NodeView>,
}

/// Starts the provisioner.
pub fn start(ctx: &Arc<Context>) {
    let client = ctx.client();
    let queue: WorkQueue<ProvisionerKey> = WorkQueue::default();
    let me = Arc::new(Provisioner {
        recorder: ctx.recorder(&client, COMPONENT),
        client,
        claims: ctx.informers.claims.reader(),
        volumes: ctx.informers.volumes.reader(),
        classes: ctx.informers.storage_classes.reader(),
        nodes: ctx.informers.nodes.reader(),
    });
    let q = queue.clone();
    me.claims.on_change(move |change| {
        if is_asked_for(change.object()) {
            q.add(ProvisionerKey::Claim(change.object().metadata.key()));
        }
    });
    let q = queue.clone();
    me.volumes.on_change(move |change| {
        if is_done_with(change.object()) {
            q.add(ProvisionerKey::Volume(change.object().metadata.name.clone()));
        }
    });
    queue.add(ProvisionerKey::Class);
    ctx.run_queue(&queue, WORKERS, move |key| {
        let me = Arc::clone(&me);
        async move {
            match &key {
                ProvisionerKey::Class => me.ensure_class().await,
                ProvisionerKey::Claim(key) => me.provision(key).await,
                ProvisionerKey::Volume(name) => me.remove(name).await,
            }
        }
    });
}

fn is_asked_for(claim: &ClaimView) -> bool {
    let annotations = &claim.metadata.annotations;
    let to = annotations.get(names::PROVISIONER).or_else(|| annotations.get(names::PROVISIONER_BETA));
    claim.spec.volume_name.is_empty() && !claim.metadata.is_deleting() && to.is_some_and(|p| p == names::LOCAL_PATH)
}

/// Whether the volume is of this provisioner and must be deleted: its claim is gone and its policy is Delete.
fn is_done_with(volume: &VolumeView) -> bool {
    volume.metadata.annotations.get(names::PROVISIONED_BY).is_some_and(|p| p == names::LOCAL_PATH)
        && volume.spec.persistent_volume_reclaim_policy == "Delete"
        && matches!(volume.status.phase.as_str(), "Released" | "Failed")
}

/// The reason why no volume is created for a claim.
#[derive(Debug, PartialEq, Eq)]
struct Refusal {
    why: String,
    /// Whether another node may be suitable, so that the scheduler must choose again.
    choose_again: bool,
}

fn refused(why: impl Into<String>) -> Refusal {
    Refusal { why: why.into(), choose_again: false }
}

/// Returns the volume for a claim on its node.
fn volume_for(claim: &ClaimView, class: &StorageClassView, node: Option<&NodeView>) -> Result<Value, Refusal> {
    let m = &claim.metadata;
    if let Some(mode) = claim.spec.access_modes.iter().find(|m| !ACCESS_MODES.contains(&m.as_str())) {
        return Err(refused(format!(
            "NodePath only supports ReadWriteOnce and ReadWriteOncePod (1.22+) access modes, not {mode}"
        )));
    }
    if claim.spec.volume_mode.as_deref() == Some("Block") {
        return Err(refused("a directory of a node cannot be a block device (volumeMode: Block)"));
    }
    if claim.spec.selector.is_some() {
        return Err(refused("claim.Spec.Selector is not supported"));
    }
    let Some(selected) = claim.selected_node() else {
        return Err(refused("configuration error, no node was specified"));
    };
    let gone = || Refusal { why: format!("node {selected:?} not found"), choose_again: true };
    let node = node.ok_or_else(gone)?;
    let without = || Refusal { why: format!("node {selected:?} does not support local volumes"), choose_again: true };
    let root = node.metadata.annotations.get(names::LOCAL_PATH_DIRECTORY).ok_or_else(without)?;
    let directory = format!("pvc-{}_{}_{}", m.uid, m.namespace, m.name);
    let hostname = node.metadata.labels.get(HOSTNAME).unwrap_or(&node.metadata.name);
    let mut spec = json!({
        "capacity": {"storage": claim.requested()}, "accessModes": claim.spec.access_modes, "volumeMode": "Filesystem",
        "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
        "storageClassName": class.metadata.name,
        "hostPath": {"path": format!("{}/{directory}", root.trim_end_matches('/')), "type": "DirectoryOrCreate"},
        "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": m.namespace, "name": m.name,
            "uid": m.uid, "resourceVersion": m.resource_version},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": HOSTNAME, "operator": "In", "values": [hostname]}]}]}},
    });
    if !claim.spec.volume_attributes_class_name.is_empty() {
        spec["volumeAttributesClassName"] = json!(claim.spec.volume_attributes_class_name);
    }
    Ok(json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume_name(claim),
        "annotations": {names::PROVISIONED_BY: names::LOCAL_PATH, NODE: node.metadata.name},
        "finalizers": [FINALIZER]}, "spec": spec}))
}

fn volume_name(claim: &ClaimView) -> String {
    format!("pvc-{}", claim.metadata.uid)
}

/// Returns the storage class of new clusters: the default class, whose volumes are bound when the first pod is
/// scheduled.
fn class() -> Value {
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": names::LOCAL_PATH, "volumeBindingMode": "WaitForFirstConsumer", "reclaimPolicy": "Delete"})
}

impl Provisioner {
    /// Creates the class at start if it does not exist. Changes by users are kept.
    async fn ensure_class(&self) -> Result<(), SyncError> {
        if self.classes.get(&ObjectKey::new("", CLASS)).is_some() {
            return Ok(());
        }
        match self.client.create::<StorageClassView>("", &class()).await {
            Err(e) if !e.is_already_exists() => Err(e.into()),
            _ => Ok(()),
        }
    }

    async fn provision(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let Some(claim) = self.claims.get(key).filter(|c| is_asked_for(c)) else { return Ok(()) };
        let Some(class) = self.classes.get(&ObjectKey::new("", claim.class())) else { return Ok(()) };
        let waits = class.waits_for_consumer() && claim.selected_node().is_none();
        if class.provisioner != names::LOCAL_PATH || waits {
            return Ok(());
        }
        let name = volume_name(&claim);
        if self.volumes.get(&ObjectKey::new("", &name)).is_some() {
            return Ok(());
        }
        let about = ObjectRef::of(&*claim);
        let announce = |kind, reason: &str, text: String| self.recorder.event(&about, kind, reason, text);
        announce(
            EventType::Normal,
            "Provisioning",
            format!("External provisioner is provisioning volume for claim \"{key}\""),
        );
        let node = claim.selected_node().and_then(|n| self.nodes.get(&ObjectKey::new("", n)));
        let failed = |why: &str| format!("failed to provision volume with StorageClass {:?}: {why}", claim.class());
        let volume = match volume_for(&claim, &class, node.as_deref()) {
            Ok(volume) => volume,
            Err(Refusal { why, choose_again }) => {
                announce(EventType::Warning, "ProvisioningFailed", failed(&why));
                return if choose_again { self.choose_again(&claim).await } else { Ok(()) };
            }
        };
        match self.client.create::<VolumeView>("", &volume).await {
            Ok(_) => {}
            Err(e) if e.is_already_exists() => return Ok(()),
            Err(e) => {
                announce(EventType::Warning, "ProvisioningFailed", failed(&e.to_string()));
                return Err(e.into());
            }
        }
        announce(EventType::Normal, "ProvisioningSucceeded", format!("Successfully provisioned volume {name}"));
        Ok(())
    }

    /// Removes the selected node from the claim, so that the scheduler chooses again.
    async fn choose_again(&self, claim: &ClaimView) -> Result<(), SyncError> {
        let m = &claim.metadata;
        update_value::<ClaimView>(&self.client, &m.namespace, &m.name, "", &m.resource_version, |v| {
            map_at(&mut v["metadata"], "annotations").remove(names::SELECTED_NODE);
        })
        .await?;
        Ok(())
    }

    async fn remove(&self, name: &str) -> Result<(), SyncError> {
        let Some(volume) = self.volumes.get(&ObjectKey::new("", name)).filter(|v| is_done_with(v)) else {
            return Ok(());
        };
        if let Err(why) = self.remove_directory(&volume).await {
            let about = ObjectRef::of(&*volume);
            self.recorder.event(&about, EventType::Warning, "VolumeFailedDelete", why.as_str());
            return Err(SyncError::Other(why));
        }
        if !volume.metadata.is_deleting() {
            let options = DeleteOptions::default().with_uid(&volume.metadata.uid);
            found(self.client.delete::<VolumeView>("", name, &options).await)?;
        }
        let changed = update_value::<VolumeView>(&self.client, "", name, "", "", |v| {
            if let Some(list) = v["metadata"]["finalizers"].as_array_mut() {
                list.retain(|f| f != FINALIZER);
            }
        });
        found(changed.await.map(drop))
    }

    /// Requests the removal of the volume's directory from its node. Succeeds if the node does not exist.
    async fn remove_directory(&self, volume: &VolumeView) -> Result<(), String> {
        let name = &volume.metadata.name;
        let node = volume.metadata.annotations.get(NODE).map(String::as_str).unwrap_or_default();
        let path = volume.spec.host_path.as_ref().map(|h| h.path.as_str()).unwrap_or_default();
        let directory = path.rsplit('/').next().unwrap_or_default();
        if self.nodes.get(&ObjectKey::new("", node)).is_none() {
            return Ok(());
        }
        if !directory.starts_with(name.as_str()) {
            return Err(format!("{path:?} is not a directory of volume {name}"));
        }
        let uri = format!("{}/{node}/proxy/localVolumes/{directory}", NodeView::TYPE.path(""));
        let answer = self.client.raw(Method::DELETE, &uri, "", Bytes::new()).await.map_err(|e| e.to_string())?;
        let status = answer.status();
        if status.is_success() || status == StatusCode::NOT_FOUND && self.is_gone(node).await {
            return Ok(());
        }
        let said = Client::read(answer).await.err().map(|e| e.to_string()).unwrap_or_default();
        Err(format!("node {node} failed to remove {directory}: {said}"))
    }

    async fn is_gone(&self, node: &str) -> bool {
        matches!(self.client.get_opt::<NodeView>("", node).await, Ok(None))
    }
}

/// Treats a missing object as success.
fn found(done: Result<(), ClientError>) -> Result<(), SyncError> {
    match done {
        Err(e) if !e.is_not_found() => Err(e.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
