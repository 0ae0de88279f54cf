//! What every controller is given: a client under its own identity, the clock, the shared informers, an event recorder,
//! and the loop that turns queued keys into `sync` calls. Each controller's logic is in its own module.
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

/// Makes a client for a user name, e.g. `system:serviceaccount:kube-system:deployment-controller`.
pub type ClientFactory = dyn Fn(&str) -> Client + Send + Sync;

/// Under whom the shared informers read.
pub const MANAGER_USER: &str = "system:kube-controller-manager";

/// Keys one controller works on at once, where its work is independent per key.
pub const WORKERS: usize = 4;

/// Panics in a row on one key after which an event is written on its object.
const PANICS_REPORTED_FROM: u32 = 2;

/// Reason of the event of an object whose work panics.
const PANIC_REASON: &str = "ControllerPanicked";

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
    /// Writes events on objects whose work panics; made when it is first needed.
    panic_events: Arc<OnceLock<EventRecorder>>,
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
            panic_events: Arc::default(),
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
            informers: Arc::new(self.informers.view()),
            tasks: self.tasks.child(controller.name),
            queues: self.queues.clone(),
            panic_events: Arc::default(),
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

    /// Starts `workers`, or as many as is configured, that hand each queued key to `sync`, once every informer that the
    /// controller reads is synced.
    pub fn run_queue<K, F, R>(&self, queue: &WorkQueue<K>, workers: usize, sync: F)
    where
        K: Clone + Eq + Hash + Display + Send + Sync + 'static,
        F: Fn(K) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Result<(), SyncError>> + Send,
    {
        self.run_queue_about(queue, workers, sync, |_| None);
    }

    /// As [`run_queue`](Self::run_queue), for keys of `objects`: an object whose `sync` panics again and again gets an
    /// event that says so.
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

    /// As [`run_queue`](Self::run_queue), where `about` says which object a key stands for: one whose `sync` panics again
    /// and again gets an event that says so.
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
                        // The log and the metric have it; one panic may be the last.
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

/// Tells an object that the work on it panics again and again.
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
            // Under the manager's identity: not every controller may write events.
            let client = (self.factory)(MANAGER_USER);
            EventRecorder::start_in(&self.tasks, client, Arc::clone(&self.clock), self.name, "")
        });
        // What the panic says is for the operator, who has it in the log.
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
    async fn an_object_whose_work_panics_again_is_told() {
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
