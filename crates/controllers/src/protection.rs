//! Protection of storage objects in use: removes the finalizers that admission adds to claims, volumes and attribute
//! classes once they are unused. Upstream `pkg/controller/volume/{pvcprotection,pvprotection, vacprotection}`.
use std::sync::Arc;

use kelson_client::{Change, Client, ClientError, ListParams, Object, ResourceType, WorkQueue, slim_object};
use kelson_meta::{ObjectKey, ObjectMeta, null_default};
use serde::Deserialize;

use crate::shared::context::{Context, SyncError, WORKERS, enqueue_self, update_value};
use crate::views::{ClaimView, VolumeAttributesClassView, VolumeView};

const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";
const CLASS_FINALIZER: &str = "kubernetes.io/vac-protection";

/// The required change of an object's finalizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FinalizerNeed {
    Nothing,
    /// The object was created before admission added finalizers.
    Add,
    /// The object is being deleted, so the finalizer is removed if the object is unused.
    RemoveIfUnused,
}

fn need(meta: &ObjectMeta, finalizer: &str) -> FinalizerNeed {
    match (meta.is_deleting(), meta.finalizers.iter().any(|f| f == finalizer)) {
        (false, false) => FinalizerNeed::Add,
        (true, true) => FinalizerNeed::RemoveIfUnused,
        _ => FinalizerNeed::Nothing,
    }
}

/// Adds or removes the finalizer, unless the object changed since it was read.
async fn set<T: Object>(client: &Client, meta: &ObjectMeta, finalizer: &str, on: bool) -> Result<(), SyncError> {
    let (namespace, name) = (meta.namespace.as_str(), meta.name.as_str());
    let changed = update_value::<T>(client, namespace, name, "", &meta.resource_version, |v| {
        let list = &mut v["metadata"]["finalizers"];
        match list.as_array_mut() {
            Some(list) if on => list.push(finalizer.into()),
            Some(list) => list.retain(|f| f != finalizer),
            None if on => *list = vec![finalizer].into(),
            None => {}
        }
    });
    match changed.await {
        Err(e) if e.is_not_found() => Ok(()),
        other => Ok(other.map(drop)?),
    }
}

/// A pod with its volumes. It is read only when a claim is being deleted, so that no cache holds the volumes of all
/// pods.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Mounting {
    metadata: ObjectMeta,
    spec: MountingSpec,
}

slim_object!(Mounting, ResourceType::namespaced("", "v1", "pods", "Pod"));

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MountingSpec {
    node_name: String,
    #[serde(deserialize_with = "null_default")]
    volumes: Vec<MountedVolume>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MountedVolume {
    name: String,
    persistent_volume_claim: Option<ClaimSource>,
    ephemeral: Option<serde::de::IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClaimSource {
    claim_name: String,
}

/// Whether a pod uses a claim. An unscheduled pod does not, since no kubelet starts a pod whose claim is being deleted.
fn uses(pod: &Mounting, claim: &ObjectMeta) -> bool {
    let meta = &pod.metadata;
    let is_shut_down = meta.is_deleting() && meta.deletion_grace_period_seconds == Some(0);
    let own = || claim.owner_references.iter().any(|o| o.controller == Some(true) && o.uid == meta.uid);
    !pod.spec.node_name.is_empty()
        && pod.spec.volumes.iter().any(|v| {
            v.persistent_volume_claim.as_ref().is_some_and(|c| c.claim_name == claim.name)
                || (v.ephemeral.is_some()
                    && !is_shut_down
                    && claim.name == format!("{}-{}", meta.name, v.name)
                    && own())
        })
}

async fn is_claim_used(client: &Client, claim: &ObjectMeta) -> Result<bool, ClientError> {
    let pods = client.list::<Mounting>(&claim.namespace, &ListParams::default()).await?;
    Ok(pods.items.iter().any(|p| uses(p, claim)))
}

/// Starts the claims' controller.
pub fn start_claims(ctx: &Arc<Context>) {
    let client = ctx.client();
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let (claims, pods) = (ctx.informers.claims.reader(), ctx.informers.pods.reader());
    claims.on_change(enqueue_self(&queue));
    let (q, seen) = (queue.clone(), claims.clone());
    pods.on_change(move |change| {
        let pod = change.object();
        if matches!(change, Change::Deleted(_)) || pod.is_terminal() || pod.metadata.is_deleting() {
            let here = seen.list();
            let waiting = here.iter().filter(|c| c.metadata.namespace == pod.metadata.namespace);
            waiting.filter(|c| c.metadata.is_deleting()).for_each(|c| q.add(c.metadata.key()));
        }
    });
    ctx.run_queue_of(claims.clone(), &queue, WORKERS, move |key| {
        let (client, claims) = (client.clone(), claims.clone());
        async move {
            let Some(claim) = claims.get(&key) else { return Ok(()) };
            let meta = &claim.metadata;
            match need(meta, CLAIM_FINALIZER) {
                FinalizerNeed::Nothing => Ok(()),
                FinalizerNeed::Add => set::<ClaimView>(&client, meta, CLAIM_FINALIZER, true).await,
                FinalizerNeed::RemoveIfUnused if is_claim_used(&client, meta).await? => Ok(()),
                FinalizerNeed::RemoveIfUnused => set::<ClaimView>(&client, meta, CLAIM_FINALIZER, false).await,
            }
        }
    });
}

/// Starts the volumes' controller.
pub fn start_volumes(ctx: &Arc<Context>) {
    let client = ctx.client();
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let volumes = ctx.informers.volumes.reader();
    volumes.on_change(enqueue_self(&queue));
    ctx.run_queue_of(volumes.clone(), &queue, WORKERS, move |key| {
        let (client, volumes) = (client.clone(), volumes.clone());
        async move {
            let Some(volume) = volumes.get(&key) else { return Ok(()) };
            let meta = &volume.metadata;
            match need(meta, VOLUME_FINALIZER) {
                FinalizerNeed::Nothing => Ok(()),
                FinalizerNeed::Add => set::<VolumeView>(&client, meta, VOLUME_FINALIZER, true).await,
                FinalizerNeed::RemoveIfUnused if volume.status.phase == "Bound" => Ok(()),
                FinalizerNeed::RemoveIfUnused => set::<VolumeView>(&client, meta, VOLUME_FINALIZER, false).await,
            }
        }
    });
}

fn classes_of(claim: &ClaimView) -> [&str; 3] {
    let status = &claim.status;
    [
        &claim.spec.volume_attributes_class_name,
        &status.current_volume_attributes_class_name,
        &status.modify_volume_status.target_volume_attributes_class_name,
    ]
}

/// Starts the classes' controller.
pub fn start_classes(ctx: &Arc<Context>) {
    let client = ctx.client();
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let classes = ctx.informers.volume_attributes_classes.reader();
    let (claims, volumes) = (ctx.informers.claims.reader(), ctx.informers.volumes.reader());
    classes.on_change(enqueue_self(&queue));
    let again = |queue: &WorkQueue<ObjectKey>| {
        let (q, classes) = (queue.clone(), classes.clone());
        // The changed object may have been the last user of any class that is being deleted. There are few of these.
        move || classes.list().iter().filter(|c| c.metadata.is_deleting()).for_each(|c| q.add(c.metadata.key()))
    };
    let wake = again(&queue);
    claims.on_change(move |_| wake());
    let wake = again(&queue);
    volumes.on_change(move |_| wake());
    ctx.run_queue_of(classes.clone(), &queue, WORKERS, move |key| {
        let (client, classes, claims, volumes) = (client.clone(), classes.clone(), claims.clone(), volumes.clone());
        async move {
            let Some(class) = classes.get(&key) else { return Ok(()) };
            let meta = &class.metadata;
            match need(meta, CLASS_FINALIZER) {
                FinalizerNeed::Nothing => Ok(()),
                FinalizerNeed::Add => set::<VolumeAttributesClassView>(&client, meta, CLASS_FINALIZER, true).await,
                FinalizerNeed::RemoveIfUnused => {
                    let name = meta.name.as_str();
                    let used = claims.list().iter().any(|c| classes_of(c).contains(&name))
                        || volumes.list().iter().any(|v| v.spec.volume_attributes_class_name == name);
                    if used {
                        return Ok(());
                    }
                    set::<VolumeAttributesClassView>(&client, meta, CLASS_FINALIZER, false).await
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::Config;
    use crate::testing::run;
    use kelson_simulation::Api;

    const CLAIMS: &str = "v1/persistentvolumeclaims";
    const VOLUMES: &str = "v1/persistentvolumes";
    const ALL: [&str; 3] = [
        "persistentvolume-protection-controller",
        "persistentvolumeclaim-protection-controller",
        "volumeattributesclass-protection-controller",
    ];

    async fn finalizers(api: &Api, resource: &str, namespace: &str, name: &str) -> Value {
        api.get(resource, namespace, name).await.map(|v| v["metadata"]["finalizers"].clone()).unwrap_or_default()
    }

    fn claim(name: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "a"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_stays_while_a_pod_uses_it() {
        let api = Api::start().await;
        api.namespace("a").await;
        let _running = run(&api, &ALL, Config::default()).await;
        api.create(CLAIMS, claim("used")).await;
        api.create(CLAIMS, claim("free")).await;
        api.create(
            "v1/pods",
            json!({"metadata": {"name": "p", "namespace": "a"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "c"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "used"}}]}}),
        ).await;
        api.create(
            "v1/pods",
            json!({"metadata": {"name": "waiting", "namespace": "a"}, "spec": {"containers": [{"name": "c", "image": "c"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "free"}}]}}),
        ).await;
        api.settle().await;
        assert_eq!(finalizers(&api, CLAIMS, "a", "free").await, json!(["kubernetes.io/pvc-protection"]));
        api.delete(CLAIMS, "a", "used", json!({})).await;
        api.delete(CLAIMS, "a", "free", json!({})).await;
        api.settle().await;
        assert!(api.get(CLAIMS, "a", "free").await.is_none());
        assert_eq!(finalizers(&api, CLAIMS, "a", "used").await, json!(["kubernetes.io/pvc-protection"]));
        api.remove("v1/pods", "a", "p").await;
        api.settle().await;
        assert!(api.get(CLAIMS, "a", "used").await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_stays_while_it_is_bound_and_a_class_while_it_is_named() {
        let api = Api::start().await;
        let _running = run(&api, &ALL, Config::default()).await;
        let classes = "storage.k8s.io/v1/volumeattributesclasses";
        api.create(
            classes,
            json!({"metadata": {"name": "gold"}, "driverName": "example.com", "parameters": {"a": "b"}}),
        )
        .await;
        api.create(
            VOLUMES,
            json!({"metadata": {"name": "v"}, "spec": {"volumeAttributesClassName": "gold", "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"], "csi": {"driver": "example.com", "volumeHandle": "h"}},
            "status": {"phase": "Bound"}}),
        ).await;
        api.settle().await;
        assert_eq!(finalizers(&api, classes, "", "gold").await, json!(["kubernetes.io/vac-protection"]));
        api.delete(VOLUMES, "", "v", json!({})).await;
        api.delete(classes, "", "gold", json!({})).await;
        api.settle().await;
        assert!(api.get(VOLUMES, "", "v").await.is_some() && api.get(classes, "", "gold").await.is_some());
        api.change(VOLUMES, "", "v", |v| v["status"]["phase"] = json!("Released")).await;
        api.settle().await;
        assert!(api.get(VOLUMES, "", "v").await.is_none());
        assert!(api.get(classes, "", "gold").await.is_none());
    }
}
