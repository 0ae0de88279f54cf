//! Binds claims to volumes, and reclaims volumes whose claims are gone. This file watches; `claim` and `volume` decide
//! for one object each, and `write` sends the updates. Upstream `pkg/controller/volume/persistentvolume`.
//!
//! There is a single worker: a binding is four writes to two objects, each of which can fail. An incomplete binding is
//! recognized and completed from the references between the two objects.
mod claim;
mod volume;
mod write;

use std::fmt;
use std::sync::Arc;

use kelson_client::{Change, Client, EventRecorder, ObjectRef, WorkQueue};
use kelson_meta::ObjectKey;

use super::latest::Latest;
use crate::shared::context::{Context, SyncError};
use crate::shared::informers::SharedInformer;
use crate::views::{ClaimView, PodView, StorageClassView, VolumeView};

/// The source of this controller's events.
const COMPONENT: &str = "persistentvolume-controller";

/// A key of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum BinderKey {
    Claim(ObjectKey),
    /// The volume of this name.
    Volume(String),
}

impl fmt::Display for BinderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(key) => write!(f, "claim {key}"),
            Self::Volume(name) => write!(f, "volume {name}"),
        }
    }
}

struct Binder {
    client: Client,
    recorder: EventRecorder,
    claims: Latest<ClaimView>,
    volumes: Latest<VolumeView>,
    classes: SharedInformer<StorageClassView>,
    pods: SharedInformer<PodView>,
    queue: WorkQueue<BinderKey>,
}

/// Starts the binder.
pub fn start(ctx: &Arc<Context>) {
    let client = ctx.client();
    let queue: WorkQueue<BinderKey> = WorkQueue::default();
    let informers = &ctx.informers;
    let binder = Arc::new(Binder {
        recorder: ctx.recorder(&client, COMPONENT),
        client,
        claims: Latest::new(informers.claims.reader()),
        volumes: Latest::new(informers.volumes.reader()),
        classes: informers.storage_classes.reader(),
        pods: informers.pods.reader(),
        queue: queue.clone(),
    });
    let (q, volumes) = (queue.clone(), informers.volumes.clone());
    informers.claims.on_change(move |change| on_claim(&q, &volumes, change));
    let (q, claims) = (queue.clone(), informers.claims.clone());
    informers.volumes.on_change(move |change| on_volume(&q, &claims, change));
    let (q, claims) = (queue.clone(), informers.claims.clone());
    informers.storage_classes.on_change(move |change| {
        let class = &change.object().metadata.name;
        waiting(&claims, |c| !c.has_class() || c.class() == class).for_each(|key| q.add(key));
    });
    let (claims, volumes) = (informers.claims.clone(), informers.volumes.clone());
    let about = move |key: &BinderKey| match key {
        BinderKey::Claim(key) => claims.get(key).map(|claim| ObjectRef::of(&*claim)),
        BinderKey::Volume(name) => volumes.get(&ObjectKey::new("", name)).map(|volume| ObjectRef::of(&*volume)),
    };
    let sync = move |key| {
        let binder = Arc::clone(&binder);
        async move {
            match &key {
                BinderKey::Claim(key) => binder.sync_claim(key).await,
                BinderKey::Volume(name) => binder.sync_volume(name).await,
            }
        }
    };
    ctx.run_queue_about(&queue, 1, sync, about);
}

/// Returns unbound claims that may be affected by a change.
fn waiting<'a>(
    claims: &SharedInformer<ClaimView>,
    matters: impl Fn(&ClaimView) -> bool + 'a,
) -> impl Iterator<Item = BinderKey> + 'a {
    let all = claims.list().into_iter().filter(|c| !c.is_fully_bound());
    all.filter(move |c| matters(c)).map(|c| BinderKey::Claim(c.metadata.key()))
}

fn on_claim(queue: &WorkQueue<BinderKey>, volumes: &SharedInformer<VolumeView>, change: &Change<ClaimView>) {
    let claim = change.object();
    if !matches!(change, Change::Deleted(_)) {
        queue.add(BinderKey::Claim(claim.metadata.key()));
        return;
    }
    if !claim.spec.volume_name.is_empty() {
        return queue.add(BinderKey::Volume(claim.spec.volume_name.clone()));
    }
    // It may have been in the process of being bound.
    let its = volumes.list().into_iter().filter(|v| kelson_volumes::is_bound_to(v, claim));
    its.for_each(|v| queue.add(BinderKey::Volume(v.metadata.name.clone())));
}

fn on_volume(queue: &WorkQueue<BinderKey>, claims: &SharedInformer<ClaimView>, change: &Change<VolumeView>) {
    let volume = change.object();
    let name = &volume.metadata.name;
    if let Some(r) = &volume.spec.claim_ref {
        queue.add(BinderKey::Claim(ObjectKey::new(&r.namespace, &r.name)));
    }
    if matches!(change, Change::Deleted(_)) {
        return;
    }
    queue.add(BinderKey::Volume(name.clone()));
    // A claim that names this volume gets an event if the volume belongs to another claim.
    let free = volume.spec.claim_ref.is_none();
    waiting(claims, |c| c.spec.volume_name == *name || free && c.class() == volume.class())
        .for_each(|key| queue.add(key));
}

impl Binder {
    async fn sync_claim(&self, key: &ObjectKey) -> Result<(), SyncError> {
        match self.claims.get(key) {
            None => Ok(()),
            Some(claim) if claim.metadata.annotations.contains_key(kelson_volumes::names::BIND_COMPLETED) => {
                self.bound_claim(&claim).await
            }
            Some(claim) => self.unbound_claim(claim).await,
        }
    }
}

#[cfg(test)]
mod tests;
