//! The controller: a ConfigMap for each bunch.
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, Patch, PatchParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::events::{Event as RuntimeEvent, EventType, Recorder};
use kube::runtime::{finalizer, watcher};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use serde_json::json;

use crate::kind::Bunch;

/// The finalizer of a bunch until it is cleaned up.
pub const FINALIZER: &str = "kube.example.com/compost";
const MANAGER: &str = "florist";

/// Why a bunch could not be reconciled; the runtime retries.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("finalizer: {0}")]
    Finalizer(#[source] Box<finalizer::Error<Error>>),
}

struct Florist {
    client: Client,
    events: Recorder,
}

/// Runs until `stop` resolves.
pub async fn run(client: Client, namespace: &'static str, stop: impl Future<Output = ()> + Send + Sync + 'static) {
    let bunches: Api<Bunch> = Api::namespaced(client.clone(), namespace);
    let vases: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let florist = Florist { events: Recorder::new(client.clone(), MANAGER.into()), client };
    let again = |_: Arc<Bunch>, error: &Error, _: Arc<Florist>| {
        eprintln!("again: {error}");
        Action::requeue(Duration::from_millis(200))
    };
    Controller::new(bunches, watcher::Config::default())
        .owns(vases, watcher::Config::default())
        .graceful_shutdown_on(stop)
        .run(reconcile, again, Arc::new(florist))
        .for_each(|_| async {})
        .await;
}

async fn reconcile(bunch: Arc<Bunch>, florist: Arc<Florist>) -> Result<Action, Error> {
    let namespace = bunch.namespace().unwrap_or_default();
    let bunches: Api<Bunch> = Api::namespaced(florist.client.clone(), &namespace);
    let vases: Api<ConfigMap> = Api::namespaced(florist.client.clone(), &namespace);
    let done = finalizer(&bunches, FINALIZER, bunch, |event| async {
        match event {
            finalizer::Event::Apply(bunch) => florist.arrange(&bunches, &vases, &bunch).await,
            finalizer::Event::Cleanup(bunch) => compost(&vases, &bunch).await,
        }
    });
    done.await.map_err(|error| Error::Finalizer(Box::new(error)))
}

impl Florist {
    async fn arrange(&self, bunches: &Api<Bunch>, vases: &Api<ConfigMap>, bunch: &Bunch) -> Result<Action, Error> {
        let (name, count) = (bunch.name_any(), bunch.spec.count);
        let vase = ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                owner_references: bunch.controller_owner_ref(&()).map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([("count".to_owned(), count.to_string())])),
            ..ConfigMap::default()
        };
        vases.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&vase)).await?;
        if bunch.status.as_ref().is_none_or(|status| status.made != count) {
            let event = RuntimeEvent {
                type_: EventType::Normal,
                reason: "Arranged".into(),
                note: Some(format!("{count} in a vase")),
                action: "Arrange".into(),
                secondary: None,
            };
            self.events.publish(&event, &bunch.object_ref(&())).await?;
            let status = json!({"status": {"made": count}});
            bunches.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await?;
        }
        Ok(Action::await_change())
    }
}

/// Records that the bunch was deleted.
async fn compost(vases: &Api<ConfigMap>, bunch: &Bunch) -> Result<Action, Error> {
    let name = format!("compost-{}", bunch.name_any());
    let left = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    vases.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&left)).await?;
    Ok(Action::await_change())
}
