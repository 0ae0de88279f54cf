//! The context that every controller gets: a client with the controller's identity, the clock, the shared informers, an
//! event recorder, and the loop that calls `sync` for queued keys. Each controller's logic is in its own module.
use std::fmt::Display;
use std::hash::Hash;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kelson_client::{
    API_HOST, Client, ClientError, EventRecorder, EventType, Failure, Metered, Object, ObjectRef, WorkQueue,
    WorkQueueMetrics,
};
use kelson_meta::{Clock, ObjectKey, Status};
use kelson_tasks::Tasks;
use serde_json::Value;

use super::config::Config;
use super::informers::{Informers, SharedInformer};
use crate::views::Indexed;

/// Returns a client for a user name, such as `system:serviceaccount:kube-system:deployment-controller`.
pub type ClientFactory = dyn Fn(&str) -> Client + Send + Sync;

/// The user name of the shared informers.
pub const MANAGER_USER: &str = "system:kube-controller-manager";

/// The default number of workers of a controller whose keys are independent of each other.
pub const WORKERS: usize = 4;

/// The number of consecutive panics on one key after which its object gets an event.
const PANICS_REPORTED_FROM: u32 = 2;

/// The reason of the event on an object whose sync panics.
const PANIC_REASON: &str = "ControllerPanicked";

/// The error of one `sync` call. The key is queued again with back-off.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// A request failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Any other error; a retry may succeed.
    #[error("{0}")]
    Other(String),
    /// An error that has already been logged.
    #[error("{0}")]
    Logged(String),
}

impl SyncError {
    /// Whether the error is routine and is logged at debug level only: the object was changed or deleted concurrently,
    /// or the error has already been logged.
    pub fn is_ordinary(&self) -> bool {
        match self {
            Self::Client(e) => e.is_conflict() || e.is_not_found(),
            Self::Logged(_) => true,
            Self::Other(_) => false,
        }
    }
}

/// The user that a controller acts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// A service account of `kube-system`, which has the cluster role `system:controller:NAME`.
    ServiceAccount(&'static str),
    /// The controller manager itself.
    Manager,
}

impl Identity {
    /// Returns the user name for requests and audit events.
    pub fn user(self) -> String {
        match self {
            Self::ServiceAccount(name) => format!("system:serviceaccount:kube-system:{name}"),
            Self::Manager => MANAGER_USER.to_owned(),
        }
    }
}

/// One row of the table of controllers ([`CONTROLLERS`](crate::CONTROLLERS)).
pub struct ControllerDescriptor {
    /// The name in `--controllers`, log lines and metrics.
    pub name: &'static str,
    /// The user whose permissions the controller has.
    pub identity: Identity,
    /// Whether `*` includes it.
    pub on_by_default: bool,
    /// Registers the controller's handlers with informers and starts its workers.
    pub(crate) start: fn(&Arc<Context>),
}

/// The context of one controller, or of the controller manager itself.
///
/// A controller's `start` function receives it, registers change handlers with [`informers`](Self::informers), and
/// starts workers with [`run_queue`](Self::run_queue) or one of its variants. The workers begin when all informers that
/// the controller reads are synced, and they end with [`tasks`](Self::tasks). [`client`](Self::client) sends requests
/// as the controller's own user, so that its role limits what it can do.
pub struct Context {
    name: &'static str,
    identity: Identity,
    factory: Arc<ClientFactory>,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    pub config: Arc<Config>,
    /// The informer caches, which are shared with the other controllers.
    pub informers: Arc<Informers>,
    /// The controller's tasks.
    pub tasks: Tasks,
    queues: WorkQueueMetrics,
    /// Records events on objects whose sync panics. Created on first use.
    panic_events: Arc<OnceLock<EventRecorder>>,
}

impl Context {
    /// Returns the context of the controller manager. Its informers are not started yet.
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
            panic_events: Arc::default(),
        }
    }

    /// Returns the context of one controller. Its task group is a child of the manager's.
    pub fn of(&self, controller: &ControllerDescriptor) -> Arc<Self> {
        Arc::new(Self {
            name: controller.name,
            identity: controller.identity,
            factory: Arc::clone(&self.factory),
            clock: Arc::clone(&self.clock),
            config: Arc::clone(&self.config),
            informers: Arc::new(self.informers.view()),
            tasks: self.tasks.child(controller.name),
            queues: self.queues.clone(),
            panic_events: Arc::default(),
        })
    }

    /// Returns a client that acts as the controller's user.
    pub fn client(&self) -> Client {
        (self.factory)(&self.identity.user())
    }

    /// Returns a client that acts as the controller manager, which may read all kinds of the shared informers.
    pub fn manager_client(&self) -> Client {
        (self.factory)(MANAGER_USER)
    }

    /// Returns an event recorder with the source `component`. Upstream's source names differ from those of
    /// `--controllers` for some controllers.
    pub fn recorder(&self, client: &Client, component: &str) -> EventRecorder {
        EventRecorder::start_in(&self.tasks, client.clone(), Arc::clone(&self.clock), component, "")
    }

    /// Calls `changed` after each rotation of the CAs.
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

    /// Starts workers that call `sync` for each queued key. They wait until every informer that the controller reads is
    /// synced. `workers` is their number unless [`Config::concurrent_syncs`] sets another one.
    pub fn run_queue<K, F, R>(&self, queue: &WorkQueue<K>, workers: usize, sync: F)
    where
        K: Clone + Eq + Hash + Display + Send + Sync + 'static,
        F: Fn(K) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Result<(), SyncError>> + Send,
    {
        self.run_queue_about(queue, workers, sync, |_| None);
    }

    /// Like [`run_queue`](Self::run_queue), for queues whose keys are objects of `objects`. An object whose `sync`
    /// panics repeatedly gets an event.
    pub fn run_queue_of<T, F, R>(
        &self,
        objects: SharedInformer<T>,
        queue: &WorkQueue<ObjectKey>,
        workers: usize,
        sync: F,
    ) where
        T: Indexed,
        F: Fn(ObjectKey) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Result<(), SyncError>> + Send,
    {
        let about = move |key: &ObjectKey| objects.get(key).map(|object| ObjectRef::of(&*object));
        self.run_queue_about(queue, workers, sync, about);
    }

    /// Like [`run_queue`](Self::run_queue), for queues with other keys: `about` returns the object of a key. An object
    /// whose `sync` panics repeatedly gets an event.
    pub fn run_queue_about<K, F, R, A>(&self, queue: &WorkQueue<K>, workers: usize, sync: F, about: A)
    where
        K: Clone + Eq + Hash + Display + Send + Sync + 'static,
        F: Fn(K) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Result<(), SyncError>> + Send,
        A: Fn(&K) -> Option<ObjectRef> + Send + Sync + 'static,
    {
        let name = self.name;
        self.queues.watch(name, queue);
        let reports = Arc::new((self.panic_reporter(), about));
        let asked = self.config.concurrent_syncs.get(name).copied().filter(|_| workers > 1);
        for _ in 0..asked.unwrap_or(workers) {
            let (queue, sync, informers) = (queue.clone(), sync.clone(), Arc::clone(&self.informers));
            let reports = Arc::clone(&reports);
            self.tasks.supervise("controller worker", move || {
                let (queue, sync, informers) = (queue.clone(), sync.clone(), Arc::clone(&informers));
                let reports = Arc::clone(&reports);
                async move {
                    informers.synced().await;
                    let failed = |key: &K, why: Failure<'_, SyncError>| match why {
                        Failure::Error(error) => report(name, key, error),
                        Failure::Panic { in_a_row, pause } if in_a_row >= PANICS_REPORTED_FROM => {
                            let (reporter, about) = &*reports;
                            if let Some(about) = about(key) {
                                reporter.report(&about, in_a_row, pause);
                            }
                        }
                        // A single panic is only logged and counted.
                        Failure::Panic { .. } => {}
                    };
                    queue.work_and_report(name, sync, failed).await;
                }
            });
        }
    }

    fn panic_reporter(&self) -> PanicReporter {
        PanicReporter {
            name: self.name,
            factory: Arc::clone(&self.factory),
            clock: Arc::clone(&self.clock),
            tasks: self.tasks.clone(),
            events: Arc::clone(&self.panic_events),
        }
    }
}

/// Writes an event on an object whose sync panics repeatedly.
struct PanicReporter {
    name: &'static str,
    factory: Arc<ClientFactory>,
    clock: Arc<dyn Clock>,
    tasks: Tasks,
    events: Arc<OnceLock<EventRecorder>>,
}

impl PanicReporter {
    fn report(&self, about: &ObjectRef, in_a_row: u32, pause: Duration) {
        let recorder = self.events.get_or_init(|| {
            // The manager writes it, since not every controller may create events.
            let client = (self.factory)(MANAGER_USER);
            EventRecorder::start_in(&self.tasks, client, Arc::clone(&self.clock), self.name, "")
        });
        // The panic's message is for the operator and is only in the log.
        let message = format!(
            "{} panicked {in_a_row} times in a row while processing this object; retrying in {pause:?}. This is a bug; the log of the controller manager has the cause",
            self.name
        );
        recorder.event(about, EventType::Warning, PANIC_REASON, message);
    }
}

fn report<K: Display>(controller: &str, key: &K, error: &SyncError) {
    if error.is_ordinary() {
        tracing::debug!(controller, %key, %error, "sync failed; retrying");
    } else {
        tracing::warn!(controller, %key, %error, "sync failed; retrying");
    }
}

/// Returns an object with all its fields as a JSON tree.
pub async fn get_value<T: Object>(client: &Client, namespace: &str, name: &str) -> Result<Value, ClientError> {
    let uri = format!("{}/{name}", T::TYPE.path(namespace));
    let bytes = client.call(http::Method::GET, &uri, "", bytes::Bytes::new()).await?;
    kelson_meta::from_json(&bytes).map_err(|e| ClientError::Decode(format!("{uri}: {e}")))
}

/// Reads an object as a tree, applies `change` and updates it, which keeps fields that this version does not know.
/// `seen` is the resourceVersion on which the decision is based; if the object has another one, the result is a
/// conflict error. An empty `subresource` updates the object itself. Sends no request if `change` has no effect.
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
        return kelson_meta::from_tree(&value).map_err(|e| ClientError::Decode(e.to_string()));
    }
    client.update(namespace, name, subresource, &value).await
}

/// Queues the key of every changed object.
pub fn enqueue_self<T: Object>(
    queue: &WorkQueue<ObjectKey>,
) -> impl Fn(&kelson_client::Change<T>) + Send + Sync + 'static {
    let queue = queue.clone();
    move |change| queue.add(change.object().key())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

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

    #[tokio::test(start_paused = true)]
    async fn an_object_with_repeated_panics_is_reported() {
        let (api, tasks) = (Api::start().await, Tasks::root("test"));
        api.namespace("n").await;
        let clients = api.clone();
        let factory = Box::new(move |user: &str| clients.client_as(user));
        let ctx = Context::new(Config::default(), factory, Arc::new(api.clock), tasks.clone());
        let services = ctx.informers.services.reader();
        ctx.informers.start(&api.client(), &tasks);
        let queue: WorkQueue<ObjectKey> = WorkQueue::default();
        ctx.run_queue_of(services, &queue, 1, |_| async { panic!("always") });
        let spec = serde_json::json!({"clusterIP": "None"});
        api.create("v1/services", serde_json::json!({"metadata": {"name": "s", "namespace": "n"}, "spec": spec})).await;
        api.settle().await;
        queue.add(ObjectKey::new("n", "s"));
        let reported = async |api: &Api| {
            api.events().await.into_iter().filter(|e| e.starts_with(PANIC_REASON)).collect::<Vec<_>>()
        };
        // The key is held back for a second, and after the second panic for two.
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(reported(&api).await.is_empty(), "once may be the last time");
        tokio::time::sleep(Duration::from_secs(2)).await;
        let events = reported(&api).await;
        assert!(events.len() == 1 && events[0].contains("panicked 2 times in a row"), "{events:?}");
        let panics = kelson_tasks::stats().into_iter().find(|s| s.name == "controller-manager");
        assert_eq!(panics.map(|s| s.panicked), Some(2), "counted in kelson_task_panics_total");
    }
}
