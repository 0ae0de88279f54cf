//! Resolves a claim of a pod to the PersistentVolume that it is bound to. Both objects are read when the pod's volumes are first set up and
//! cached until they are unmounted: a binding never changes, so the API is not asked at each sync (upstream:
//! `pkg/kubelet/volumemanager/populator`).
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, Pod, Volume};
use kelson_client::{Client, ClientError, ObjectRef};
use kelson_volumes::names;
use parking_lot::Mutex;

use crate::pod;

/// Reads claims and their PersistentVolumes. Clones share the cache.
#[derive(Clone)]
pub struct Claims {
    client: Client,
    /// The volumes by UID of the pod and name of the volume in the pod.
    known: Arc<Mutex<HashMap<String, HashMap<String, Arc<Persistent>>>>>,
}

/// The PersistentVolume of a pod's claim.
#[derive(Debug)]
pub(super) struct Persistent {
    pub(super) name: String,
    pub(super) spec: PersistentVolumeSpec,
    /// Whether the pod's mount is read-only.
    pub(super) read_only: bool,
    /// Whether the built-in provisioner created it, so that this kubelet creates its directory.
    pub(super) is_local_path: bool,
    /// Whether the claim waited for an expansion when it was read.
    pub(super) grows: bool,
    /// Group of the volume, which containers get as a supplemental group (`pv.beta.kubernetes.io/gid`).
    group: Option<i64>,
}

/// Annotation of a PersistentVolume with its group.
const GROUP: &str = "pv.beta.kubernetes.io/gid";

impl Persistent {
    /// Namespace and name of its claim.
    pub(super) fn claim_name(&self) -> Option<(&str, &str)> {
        let claim = self.spec.claim_ref.as_ref()?;
        Some((claim.namespace.as_deref()?, claim.name.as_deref()?))
    }

    /// Reference to its claim, for events.
    pub(super) fn claim(&self) -> Option<ObjectRef> {
        let reference = self.spec.claim_ref.as_ref()?;
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.namespace.clone_from(&reference.namespace);
        claim.metadata.name.clone_from(&reference.name);
        claim.metadata.uid.clone_from(&reference.uid);
        Some(ObjectRef::of(&claim))
    }

    /// Returns whether containers get it as a block device.
    pub(super) fn is_block(&self) -> bool {
        self.spec.volume_mode.as_deref() == Some("Block")
    }
}

fn group(annotations: &BTreeMap<String, String>) -> Option<i64> {
    annotations.get(GROUP)?.parse().ok().filter(|group| *group >= 0)
}

/// Returns the claim's name, whether the mount is read-only, and whether the pod must own the claim.
pub(super) fn claim_of(pod: &Pod, volume: &Volume) -> Option<(String, bool, bool)> {
    if let Some(c) = &volume.persistent_volume_claim {
        return Some((c.claim_name.clone(), c.read_only.unwrap_or(false), false));
    }
    volume.ephemeral.as_ref().map(|_| (format!("{}-{}", pod::name(pod), volume.name), false, true))
}

impl Claims {
    /// Creates it with an empty cache.
    pub fn new(client: Client) -> Self {
        Self { client, known: Arc::default() }
    }

    /// Returns the PersistentVolume of a pod's volume; `None` if the volume is not a claim.
    ///
    /// # Errors
    /// Why it is not available, for the pod's event.
    pub(super) async fn resolve(&self, pod: &Pod, volume: &Volume) -> Result<Option<Arc<Persistent>>, String> {
        let Some((claim, read_only, own)) = claim_of(pod, volume) else { return Ok(None) };
        let uid = pod::uid(pod);
        if let Some(known) = self.known.lock().get(uid).and_then(|k| k.get(&volume.name)) {
            return Ok(Some(Arc::clone(known)));
        }
        let found = self.read(pod, &claim, read_only, own).await;
        let found = Arc::new(found.map_err(|e| format!("error processing PVC {}/{claim}: {e}", pod::namespace(pod)))?);
        self.known.lock().entry(uid.to_owned()).or_default().insert(volume.name.clone(), Arc::clone(&found));
        Ok(Some(found))
    }

    async fn read(&self, pod: &Pod, claim: &str, read_only: bool, own: bool) -> Result<Persistent, String> {
        let namespace = pod::namespace(pod);
        let unread = |e: ClientError| format!("failed to fetch PVC from API server: {e}");
        let found = self.client.get::<PersistentVolumeClaim>(namespace, claim).await.map_err(unread)?;
        let name = judge(pod, &found, own)?;
        let unread = |e: ClientError| format!("failed to fetch PV {name:?} from API server: {e}");
        let volume = self.client.get::<PersistentVolume>("", &name).await.map_err(unread)?;
        let annotations = volume.metadata.annotations.unwrap_or_default();
        let spec = volume.spec.ok_or("the PersistentVolume has no spec")?;
        let reference = spec.claim_ref.as_ref().and_then(|r| r.uid.as_ref());
        if reference.is_none() || reference != found.metadata.uid.as_ref() {
            return Err(format!("PV {name:?} is bound to another claim"));
        }
        let is_local_path = annotations.get(names::PROVISIONED_BY).is_some_and(|p| p == names::LOCAL_PATH);
        let status = found.status.as_ref();
        let of_claim = status.and_then(|s| s.capacity.as_ref()).and_then(|c| c.get("storage")).map(pod::quantity);
        let of_volume = spec.capacity.as_ref().and_then(|c| c.get("storage")).map(pod::quantity);
        let stages = status.and_then(|s| s.allocated_resource_statuses.as_ref());
        let grows = of_claim < of_volume || stages.is_some_and(|s| s.contains_key("storage"));
        Ok(Persistent { name, spec, read_only, is_local_path, grows, group: group(&annotations) })
    }

    /// Returns the distinct groups of the pod's volumes, without the groups that the pod has anyway.
    pub fn groups(&self, pod: &Pod) -> Vec<i64> {
        let own = pod.spec.as_ref().and_then(|s| s.security_context.as_ref()?.supplemental_groups.clone());
        let own = own.unwrap_or_default();
        let known = self.known.lock();
        let all = known.get(pod::uid(pod)).into_iter().flat_map(HashMap::values).filter_map(|v| v.group);
        all.filter(|group| !own.contains(group)).collect::<BTreeSet<i64>>().into_iter().collect()
    }

    /// Returns the PersistentVolumes of a pod that were set up.
    pub(super) fn of(&self, uid: &str) -> Vec<Arc<Persistent>> {
        self.known.lock().get(uid).into_iter().flat_map(HashMap::values).cloned().collect()
    }

    /// Removes a pod from the cache.
    pub(super) fn forget(&self, uid: &str) {
        self.known.lock().remove(uid);
    }
}

/// Checks that the pod may use the claim, and returns the name of its PersistentVolume.
fn judge(pod: &Pod, claim: &PersistentVolumeClaim, own: bool) -> Result<String, String> {
    let m = &claim.metadata;
    let is_owner = || {
        let owners = m.owner_references.iter().flatten();
        owners.filter(|o| o.controller == Some(true)).any(|o| o.uid == pod::uid(pod))
    };
    if own && !is_owner() {
        let (namespace, name) = (pod::namespace(pod), m.name.as_deref().unwrap_or_default());
        let pod = pod::name(pod);
        return Err(format!("PVC {namespace}/{name} was not created for pod {namespace}/{pod} (pod is not owner)"));
    }
    if m.deletion_timestamp.is_some() {
        return Err("PVC is being deleted".into());
    }
    let is_bound = claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
    let name = claim.spec.as_ref().and_then(|s| s.volume_name.clone()).filter(|n| is_bound && !n.is_empty());
    name.ok_or_else(|| "PVC is not bound".into())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn containers_have_the_groups_of_their_volumes() {
        for (text, wanted) in [("5000", Some(5000)), ("0", Some(0)), ("-1", None), ("many", None), ("", None)] {
            assert_eq!(group(&[(GROUP.to_owned(), text.to_owned())].into()), wanted, "{text:?}");
        }
        assert_eq!(group(&BTreeMap::new()), None);
        let transport: Arc<dyn kelson_client::Transport> = Arc::new(UnusedTransport);
        let claims = Claims::new(Client::new(transport, "test"));
        let volume = |group| Persistent {
            name: "v".into(),
            spec: PersistentVolumeSpec::default(),
            read_only: false,
            is_local_path: false,
            grows: false,
            group,
        };
        let groups = [Some(5001), Some(5000), Some(5001), None, Some(7)];
        let all = groups.into_iter().enumerate().map(|(n, group)| (n.to_string(), Arc::new(volume(group))));
        claims.known.lock().insert("u".into(), all.collect());
        let pod = |uid: &str| -> Pod {
            let spec = json!({"containers": [], "securityContext": {"supplementalGroups": [7]}});
            serde_json::from_value(json!({"metadata": {"uid": uid}, "spec": spec})).expect("a pod")
        };
        assert_eq!(claims.groups(&pod("u")), [5000, 5001], "each once, and not what it has anyhow");
        assert_eq!(claims.groups(&pod("other")), Vec::<i64>::new());
    }

    /// A transport that fails the test when it is used.
    struct UnusedTransport;

    impl kelson_client::Transport for UnusedTransport {
        fn send(
            &self,
            _: kelson_client::Request,
        ) -> std::pin::Pin<
            Box<dyn Future<Output = Result<kelson_client::Response, kelson_client::TransportError>> + Send>,
        > {
            Box::pin(std::future::pending())
        }
    }

    #[test]
    fn claims_that_a_pod_may_use() {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}})).expect("pod");
        let claim = |over: Value, phase: &str, volume: &str| {
            let mut meta = json!({"name": "p-v"});
            meta.as_object_mut().expect("map").extend(over.as_object().expect("map").clone());
            let all = json!({"metadata": meta, "spec": {"volumeName": volume}, "status": {"phase": phase}});
            serde_json::from_value::<PersistentVolumeClaim>(all).expect("claim")
        };
        let by = |uid: &str| {
            json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid,
            "controller": true}]})
        };
        let foreign = "PVC n/p-v was not created for pod n/p (pod is not owner)";
        let rows = [
            (claim(json!({}), "Bound", "v"), false, Ok("v")),
            (claim(json!({}), "Pending", "v"), false, Err("PVC is not bound")),
            (claim(json!({}), "Lost", "v"), false, Err("PVC is not bound")),
            (claim(json!({}), "Bound", ""), false, Err("PVC is not bound")),
            (
                claim(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), "Bound", "v"),
                false,
                Err("PVC is being deleted"),
            ),
            (claim(by("u"), "Bound", "v"), true, Ok("v")),
            (claim(by("earlier"), "Bound", "v"), true, Err(foreign)),
            (claim(json!({}), "Bound", "v"), true, Err(foreign)),
        ];
        for (claim, own, want) in rows {
            assert_eq!(judge(&pod, &claim, own), want.map(str::to_owned).map_err(str::to_owned), "{claim:?} {own}");
        }
    }
}
