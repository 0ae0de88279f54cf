//! What every controller is given: a client under its own identity, the clock, the shared informers, an event recorder,
//! and the loop that turns queued keys into `sync` calls. Each controller's logic is in its own module.
use std::sync::Arc;

use kelson_client::{Client, ClientError, EventRecorder, Object, WorkQueue};
use kelson_meta::{Clock, ObjectKey, Status};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::shared::Informers;

/// Makes a client for a user name, e.g. `system:serviceaccount:kube-system:deployment-controller`.
pub type ClientFactory = dyn Fn(&str) -> Client + Send + Sync;

/// Under whom the shared informers read.
pub const MANAGER_USER: &str = "system:kube-controller-manager";

/// Keys one controller works on at once, where its work is independent per key.
pub const WORKERS: usize = 4;

/// Why one `sync` did not succeed; the key is tried again with back-off.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// A request failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Something else, worth another try.
    #[error("{0}")]
    Other(String),
}

impl SyncError {
    /// Whether it is what happens when others work on the same objects, and needs no attention: the object changed or
    /// went since it was seen.
    pub fn is_ordinary(&self) -> bool {
        matches!(self, Self::Client(e) if e.is_conflict() || e.is_not_found())
    }
}

/// Shared by all controllers of one process.
pub struct Context {
    factory: Box<ClientFactory>,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// Settings.
    pub config: Arc<Config>,
    /// Caches.
    pub informers: Informers,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

impl Context {
    /// A context whose informers have not started.
    pub fn new(config: Config, factory: Box<ClientFactory>, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            factory,
            clock,
            config: Arc::new(config),
            informers: Informers::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        })
    }

    /// A client that acts as the controller's own service account in `kube-system`.
    pub fn client_for(&self, controller: &str) -> Client {
        (self.factory)(&format!("system:serviceaccount:kube-system:{controller}"))
    }

    /// The client of the controller manager itself: shared informers read with it.
    pub fn manager_client(&self) -> Client {
        (self.factory)(MANAGER_USER)
    }

    /// A recorder of events from `component`.
    pub fn recorder(&self, client: &Client, component: &str) -> EventRecorder {
        EventRecorder::new(client.clone(), Arc::clone(&self.clock), component, "")
    }

    /// Runs a future until it ends or the controllers are stopped.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            stop.run_until_cancelled(future).await;
        });
    }

    /// Starts `workers` that hand each queued key to `sync`, once every informer is synced.
    pub fn run_queue<K, F, R>(self: &Arc<Self>, name: &'static str, queue: &WorkQueue<K>, workers: usize, sync: F)
    where
        K: Clone + Eq + std::hash::Hash + std::fmt::Display + Send + Sync + 'static,
        F: Fn(K) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Result<(), SyncError>> + Send,
    {
        for _ in 0..workers {
            let (queue, sync, ctx) = (queue.clone(), sync.clone(), Arc::clone(self));
            self.spawn(async move {
                ctx.informers.synced().await;
                while let Some(key) = queue.next().await {
                    match sync(key.clone()).await {
                        Ok(()) => queue.forget(&key),
                        Err(e) => {
                            if e.is_ordinary() {
                                tracing::debug!(controller = name, %key, error = %e, "will try again");
                            } else {
                                tracing::warn!(controller = name, %key, error = %e, "sync failed, will try again");
                            }
                            queue.retry(key.clone());
                        }
                    }
                    queue.done(&key);
                }
            });
        }
    }
}

/// Reads an object whole, as a tree.
pub async fn get_value<T: Object>(client: &Client, namespace: &str, name: &str) -> Result<Value, ClientError> {
    let uri = format!("{}/{name}", T::TYPE.path(namespace));
    let bytes = client.call(http::Method::GET, &uri, "", bytes::Bytes::new()).await?;
    serde_json::from_slice(&bytes).map_err(|e| ClientError::Decode(format!("{uri}: {e}")))
}

/// Reads, changes and replaces an object, so that no field this process does not know is lost. `seen` is the resource
/// version the decision was made on; when the object has moved on, this is a conflict. `subresource` may be empty.
/// Nothing is written when `change` changes nothing.
pub async fn update_value<T: Object>(
    client: &Client,
    namespace: &str,
    name: &str,
    subresource: &str,
    seen: &str,
    change: impl FnOnce(&mut Value),
) -> Result<T, ClientError> {
    let mut value = get_value::<T>(client, namespace, name).await?;
    if !seen.is_empty() && value["metadata"]["resourceVersion"] != seen {
        let gr = kelson_meta::GroupResource::new(T::TYPE.group, T::TYPE.plural);
        let why = Status::MODIFIED;
        return Err(ClientError::Status(Box::new(Status::conflict(&gr, name, why))));
    }
    let before = value.clone();
    change(&mut value);
    if value == before {
        return serde_json::from_value(value).map_err(|e| ClientError::Decode(e.to_string()));
    }
    client.update(namespace, name, subresource, &value).await
}

/// Queues every object of a change under its own key.
pub fn enqueue_self<T: Object>(
    queue: &WorkQueue<ObjectKey>,
) -> impl Fn(&kelson_client::Change<T>) + Send + Sync + 'static {
    let queue = queue.clone();
    move |change| queue.add(change.object().key())
}
