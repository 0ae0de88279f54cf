//! What every controller is given: a client under its own identity, the clock, the shared informers, an event recorder,
//! and the loop that turns queued keys into `sync` calls. Each controller's logic is in its own module.
use std::fmt::Display;
use std::hash::Hash;
use std::sync::Arc;

use kelson_client::{API_HOST, Client, ClientError, EventRecorder, Metered, Object, WorkQueue, WorkQueueMetrics};
use kelson_meta::{Clock, ObjectKey, Status};
use kelson_tasks::Tasks;
use serde_json::Value;

use super::config::Config;
use super::informers::Informers;

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
    /// The same, of which a line of the log tells already.
    #[error("{0}")]
    Logged(String),
}

impl SyncError {
    /// Whether it needs no attention: the object changed or went since it was seen, as happens when others work on the same
    /// objects, or it was told before.
    pub fn is_ordinary(&self) -> bool {
        match self {
            Self::Client(e) => e.is_conflict() || e.is_not_found(),
            Self::Logged(_) => true,
            Self::Other(_) => false,
        }
    }
}

/// Under whom a controller acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// A service account of `kube-system` with a role of its own, `system:controller:NAME`.
    ServiceAccount(&'static str),
    /// The controller manager itself.
    Manager,
}

impl Identity {
    /// The user name.
    pub fn user(self) -> String {
        match self {
            Self::ServiceAccount(name) => format!("system:serviceaccount:kube-system:{name}"),
            Self::Manager => MANAGER_USER.to_owned(),
        }
    }
}

/// All that the rest of the process knows of one controller.
pub struct ControllerDescriptor {
    /// Name as in `--controllers`, in logs and in metrics.
    pub name: &'static str,
    /// Whose permissions it has.
    pub identity: Identity,
    /// Whether `*` includes it.
    pub on_by_default: bool,
    /// Registers its handlers with the informers it reads, and starts its workers.
    pub(crate) start: fn(&Arc<Context>),
}

/// What one controller is given.
pub struct Context {
    name: &'static str,
    identity: Identity,
    factory: Arc<ClientFactory>,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    pub config: Arc<Config>,
    /// Caches, shared with the other controllers.
    pub informers: Arc<Informers>,
    /// The controller's tasks.
    pub tasks: Tasks,
    queues: WorkQueueMetrics,
}

impl Context {
    /// The context of the controller manager, whose informers have not started.
    pub fn new(config: Config, factory: Box<ClientFactory>, clock: Arc<dyn Clock>, tasks: Tasks) -> Self {
        let metered = Metered::new(&config.metrics, API_HOST);
        Self {
            name: "controller-manager",
            identity: Identity::Manager,
            factory: Arc::new(move |user: &str| factory(user).counted(&metered)),
            clock,
            queues: WorkQueueMetrics::new(&config.metrics),
            config: Arc::new(config),
            informers: Arc::default(),
            tasks,
        }
    }

    /// The same for one controller: its tasks end with the others'.
    pub fn of(&self, controller: &ControllerDescriptor) -> Arc<Self> {
        Arc::new(Self {
            name: controller.name,
            identity: controller.identity,
            factory: Arc::clone(&self.factory),
            clock: Arc::clone(&self.clock),
            config: Arc::clone(&self.config),
            informers: Arc::clone(&self.informers),
            tasks: self.tasks.child(controller.name),
            queues: self.queues.clone(),
        })
    }

    /// A client under the controller's own identity.
    pub fn client(&self) -> Client {
        (self.factory)(&self.identity.user())
    }

    /// A client as the controller manager itself, which reads what the shared informers do.
    pub fn manager_client(&self) -> Client {
        (self.factory)(MANAGER_USER)
    }

    /// A recorder of events that name `component` as their source (upstream's names are not always those of
    /// `--controllers`).
    pub fn recorder(&self, client: &Client, component: &str) -> EventRecorder {
        EventRecorder::start_in(&self.tasks, client.clone(), Arc::clone(&self.clock), component, "")
    }

    /// Calls `changed` whenever the authorities are replaced.
    pub fn on_new_authorities(&self, changed: impl Fn() + Send + Sync + 'static) {
        let (authorities, changed) = (self.config.authorities.clone(), Arc::new(changed));
        self.tasks.supervise("authorities", move || {
            let (mut authorities, changed) = (authorities.clone(), Arc::clone(&changed));
            async move {
                while authorities.changed().await.is_ok() {
                    changed();
                }
            }
        });
    }

    /// Starts `workers`, or as many as is configured, that hand each queued key to `sync`, once every informer is synced.
    pub fn run_queue<K, F, R>(&self, queue: &WorkQueue<K>, workers: usize, sync: F)
    where
        K: Clone + Eq + Hash + Display + Send + Sync + 'static,
        F: Fn(K) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Result<(), SyncError>> + Send,
    {
        let name = self.name;
        self.queues.watch(name, queue);
        let asked = self.config.concurrent_syncs.get(name).copied().filter(|_| workers > 1);
        for _ in 0..asked.unwrap_or(workers) {
            let (queue, sync, informers) = (queue.clone(), sync.clone(), Arc::clone(&self.informers));
            self.tasks.supervise("controller worker", move || {
                let (queue, sync, informers) = (queue.clone(), sync.clone(), Arc::clone(&informers));
                async move {
                    informers.synced().await;
                    queue.work(name, sync, |key, error| report(name, key, error)).await;
                }
            });
        }
    }
}

fn report<K: Display>(controller: &str, key: &K, error: &SyncError) {
    if error.is_ordinary() {
        tracing::debug!(controller, %key, %error, "will try again");
    } else {
        tracing::warn!(controller, %key, %error, "sync failed, will try again");
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use kelson_meta::SystemClock;
    use kelson_simulation::Api;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn as_many_keys_at_once_as_is_configured() {
        for (usual, asked, expected) in [(4, None, 4), (4, Some(2), 2), (4, Some(7), 7), (1, Some(9), 1)] {
            let mut config = Config::default();
            config.concurrent_syncs.extend(asked.map(|n| ("controller-manager", n)));
            let (api, tasks) = (Api::start().await, Tasks::root("test"));
            let factory = Box::new(|_: &str| -> Client { panic!("nothing is asked") });
            let ctx = Context::new(config, factory, Arc::new(SystemClock), tasks.clone());
            ctx.informers.start(&api.client(), &tasks);
            let queue: WorkQueue<ObjectKey> = WorkQueue::default();
            (0..20).for_each(|n| queue.add(ObjectKey::new("", n.to_string())));
            let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let highest = Arc::clone(&most);
            ctx.run_queue(&queue, usual, move |_| {
                let (now, most) = (Arc::clone(&now), Arc::clone(&most));
                async move {
                    most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    now.fetch_sub(1, Ordering::Relaxed);
                    Ok(())
                }
            });
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert_eq!(highest.load(Ordering::Relaxed), expected, "{usual} and {asked:?}");
        }
    }
}
