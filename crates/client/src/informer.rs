//! A watched in-memory cache of the objects of one type with change notification. It lists with a watch-list where the server
//! supports it, resumes after errors with back-off, and lists again on 410. Components choose the type into which objects are
//! decoded, so that the cache has only the fields that they need.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kelson_meta::ObjectKey;
use kelson_tasks::Tasks;
use parking_lot::RwLock;
use tokio::sync::watch as signal;
use tokio_util::sync::DropGuard;

use crate::{Backoff, Client, ClientError, ListParams, Object, WatchEvent};

/// The page size of lists if the server does not support watch-list.
const LIST_PAGE: u32 = 500;

/// The time after which a missing initial list is logged.
const SLOW_SYNC: Duration = Duration::from_secs(5);

/// The objects to watch.
#[derive(Clone, Debug, Default)]
pub struct InformerConfig {
    /// The namespace to watch; empty means all.
    pub namespace: String,
    /// Label selector, query form.
    pub labels: String,
    /// Field selector, query form.
    pub fields: String,
}

/// A change of the cache, delivered to handlers in order.
#[derive(Debug)]
pub enum Change<T> {
    /// The object was added to the cache.
    Added(Arc<T>),
    /// The object changed.
    Updated {
        /// The previous state.
        old: Arc<T>,
        /// The current state.
        new: Arc<T>,
    },
    /// The object was deleted. This is its last known state, which may be outdated after a gap in the watch.
    Deleted(Arc<T>),
}

impl<T> Change<T> {
    /// Returns the newest known state.
    pub fn object(&self) -> &Arc<T> {
        match self {
            Self::Added(o) | Self::Deleted(o) | Self::Updated { new: o, .. } => o,
        }
    }
}

type Handler<T> = Box<dyn Fn(&Change<T>) + Send + Sync>;

struct Shared<T> {
    objects: RwLock<HashMap<ObjectKey, Arc<T>>>,
    synced: signal::Sender<bool>,
    handlers: Vec<Handler<T>>,
}

/// A handle for reading an informer's cache. Cloning is cheap. The watch ends when the last clone is dropped.
pub struct InformerHandle<T> {
    shared: Arc<Shared<T>>,
    _stop: Arc<DropGuard>,
}

impl<T> Clone for InformerHandle<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), _stop: Arc::clone(&self._stop) }
    }
}

/// An informer before its start: add handlers, then call [`start`](Self::start).
pub struct Informer<T> {
    client: Client,
    config: InformerConfig,
    handlers: Vec<Handler<T>>,
    source: Source,
}

/// The source of objects, and their form.
#[derive(Clone, Debug)]
struct Source {
    path: String,
    watch_accept: &'static str,
    list_accept: &'static str,
}

impl<T: Object> Informer<T> {
    /// Returns an informer for the objects that `config` selects.
    pub fn new(client: Client, config: InformerConfig) -> Self {
        const JSON: &str = "application/json";
        let source = Source { path: T::TYPE.path(&config.namespace), watch_accept: JSON, list_accept: JSON };
        Self { client, config, handlers: Vec::new(), source }
    }

    /// Watches the resource at `path`, found by discovery, instead of the type's own. Objects have all their fields.
    pub fn whole_at(mut self, path: impl Into<String>) -> Self {
        self.source.path = path.into();
        self
    }

    /// Like [`Self::whole_at`], with the objects' metadata only.
    pub fn metadata_at(mut self, path: impl Into<String>) -> Self {
        (self.source.watch_accept, self.source.list_accept) = (crate::METADATA_ONLY, crate::METADATA_ONLY_LIST);
        self.whole_at(path)
    }

    /// Calls `f` for every change, in order, in the informer's task. It must not block. Use it to fill a
    /// [`crate::WorkQueue`] or an index.
    pub fn on_change(mut self, f: impl Fn(&Change<T>) + Send + Sync + 'static) -> Self {
        self.handlers.push(Box::new(f));
        self
    }

    /// Starts watching; the watch ends with the last handle.
    pub fn start(self) -> InformerHandle<T> {
        self.start_in(&Tasks::root("informer"))
    }

    /// Starts watching in a task group. The watch ends with the last handle or with the group, whichever is first. A
    /// panic of a handler is reported, and the watch restarts with a new list.
    pub fn start_in(self, tasks: &Tasks) -> InformerHandle<T> {
        let own = tasks.child("informer");
        let shared = Arc::new(Shared {
            objects: RwLock::default(),
            synced: signal::Sender::new(false),
            handlers: self.handlers,
        });
        let reflector = Arc::new(Reflector {
            client: self.client,
            config: self.config,
            source: self.source,
            shared: Arc::clone(&shared),
        });
        own.supervise("informer", move || Arc::clone(&reflector).run());
        InformerHandle { shared, _stop: Arc::new(own.token().clone().drop_guard()) }
    }
}

impl<T> InformerHandle<T> {
    /// Returns the cached object with this key.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<T>> {
        self.shared.objects.read().get(key).cloned()
    }
    /// Returns all cached objects in no particular order.
    pub fn list(&self) -> Vec<Arc<T>> {
        self.shared.objects.read().values().cloned().collect()
    }
    /// Returns the cached objects for which `keep` is true.
    pub fn filter(&self, keep: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        self.shared.objects.read().values().filter(|o| keep(o)).cloned().collect()
    }
    /// Returns the number of cached objects.
    pub fn len(&self) -> usize {
        self.shared.objects.read().len()
    }
    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Whether the initial list has been read.
    pub fn is_synced(&self) -> bool {
        *self.shared.synced.borrow()
    }
    /// Waits for the initial list.
    pub async fn synced(&self) {
        // The sender lives in `shared`, which this handle holds: the wait cannot fail.
        let _ = self.shared.synced.subscribe().wait_for(|s| *s).await;
    }
}

/// Keeps one cache in sync with the server (client-go's reflector).
struct Reflector<T> {
    client: Client,
    config: InformerConfig,
    source: Source,
    shared: Arc<Shared<T>>,
}

/// The reason for the end of a watch.
enum Ended {
    /// The server's timeout or a broken stream: resume at the last resourceVersion.
    Resume,
    /// The resourceVersion has been compacted: list again.
    StartOver,
}

/// The state of a reflector between watches.
#[derive(Default)]
struct Progress {
    /// The resourceVersion of the cache; empty before the initial list.
    position: String,
    /// Whether to list instead of streaming, because the server does not support watch-list or failed once.
    must_list: bool,
}

impl<T: Object> Reflector<T> {
    async fn run(self: Arc<Self>) {
        tokio::join!(self.say_what_is_missing(), self.watch_for_ever());
    }

    /// Logs once which list is missing if the initial list takes long. A component that waits for all its informers
    /// would otherwise not show which one is missing.
    async fn say_what_is_missing(&self) {
        let mut synced = self.shared.synced.subscribe();
        let wait = tokio::time::timeout(SLOW_SYNC, synced.wait_for(|s| *s)).await;
        if wait.is_err() {
            tracing::warn!(path = %self.source.path, "still waiting for the initial list");
        }
    }

    async fn watch_for_ever(&self) {
        let backoff = Backoff { base: Duration::from_millis(100), max: Duration::from_secs(30) };
        let mut failures = 0u32;
        let mut progress = Progress::default();
        loop {
            let reached = progress.position.clone();
            let result = self.once(&mut progress).await;
            match result {
                Ok(Ended::Resume) => {}
                Ok(Ended::StartOver) => progress.position.clear(),
                Err(e) => {
                    // A response that cannot be decoded is a bug that no retry resolves, so it is logged.
                    if matches!(e, ClientError::Decode(_)) {
                        tracing::warn!(path = %self.source.path, error = %e, "watch failed; restarting it");
                    } else {
                        tracing::debug!(path = %self.source.path, error = %e, "watch failed; restarting it");
                    }
                    if e.is_expired() {
                        progress.position.clear();
                    }
                }
            }
            failures = if progress.position == reached { failures.saturating_add(1) } else { 0 };
            let delay = backoff.delay(failures.min(12));
            tokio::time::sleep(delay.mul_f64(rand::random_range(0.5..1.0))).await;
        }
    }

    /// Runs one watch, after a list if the server cannot stream its initial state. After any error before a streamed
    /// initial state is complete (a rejection, a `Timeout` or `ResourceVersionTooLarge` error event, a broken stream),
    /// the next attempt lists: a server that cannot stream must not keep the cache empty (client-go does the same).
    async fn once(&self, progress: &mut Progress) -> Result<Ended, ClientError> {
        let params = ListParams {
            labels: self.config.labels.clone(),
            fields: self.config.fields.clone(),
            ..ListParams::default()
        };
        if progress.position.is_empty() && progress.must_list {
            progress.position = self.list(&params).await?;
            // Streaming is cheaper, so try it again after the next gap.
            progress.must_list = false;
        }
        let initial = progress.position.is_empty();
        let result = self.follow(params, initial, &mut progress.position).await;
        // Until the initial list is complete there is no resourceVersion.
        progress.must_list = initial && progress.position.is_empty();
        result
    }

    async fn follow(&self, params: ListParams, initial: bool, position: &mut String) -> Result<Ended, ClientError> {
        let params = ListParams { resource_version: position.clone(), ..params };
        let mut watch =
            self.client.watch_at::<T>(&self.source.path, self.source.watch_accept, &params, initial).await?;
        let mut incoming: Option<HashMap<ObjectKey, Arc<T>>> = initial.then(HashMap::new);
        loop {
            let event = match watch.next().await {
                Ok(Some(e)) => e,
                Ok(None) => return Ok(Ended::Resume),
                Err(e) if e.is_expired() => return Ok(Ended::StartOver),
                Err(e) => return Err(e),
            };
            match (event, &mut incoming) {
                (WatchEvent::Bookmark { resource_version, initial_end }, pending) => {
                    if initial_end && let Some(all) = pending.take() {
                        self.replace(all);
                    }
                    if pending.is_none() {
                        *position = resource_version;
                    }
                }
                (WatchEvent::Added(o) | WatchEvent::Modified(o), Some(all)) => {
                    all.insert(o.key(), Arc::new(o));
                }
                (WatchEvent::Deleted(o), Some(all)) => {
                    all.remove(&o.key());
                }
                (WatchEvent::Added(o) | WatchEvent::Modified(o), None) => {
                    o.resource_version().clone_into(position);
                    self.put(o);
                }
                (WatchEvent::Deleted(o), None) => {
                    o.resource_version().clone_into(position);
                    self.remove(o);
                }
            }
        }
    }

    async fn list(&self, params: &ListParams) -> Result<String, ClientError> {
        let mut params = ListParams { limit: LIST_PAGE, ..params.clone() };
        let mut all = HashMap::new();
        loop {
            let part = self.client.list_at::<T>(&self.source.path, self.source.list_accept, &params).await?;
            all.extend(part.items.into_iter().map(|o| (o.key(), Arc::new(o))));
            if part.metadata.continue_token.is_empty() {
                self.replace(all);
                return Ok(part.metadata.resource_version);
            }
            params.continue_token = part.metadata.continue_token;
        }
    }

    fn put(&self, object: T) {
        let new = Arc::new(object);
        let old = self.shared.objects.write().insert(new.key(), Arc::clone(&new));
        self.notify(match old {
            Some(old) => Change::Updated { old, new },
            None => Change::Added(new),
        });
    }

    fn remove(&self, object: T) {
        if self.shared.objects.write().remove(&object.key()).is_some() {
            self.notify(Change::Deleted(Arc::new(object)));
        }
    }

    /// Replaces the content of the cache and reports the differences to handlers. An object whose UID changed was
    /// deleted and created again during the gap, so handlers receive both changes.
    fn replace(&self, all: HashMap<ObjectKey, Arc<T>>) {
        let old = std::mem::replace(&mut *self.shared.objects.write(), all.clone());
        for (key, was) in &old {
            if all.get(key).is_none_or(|is| is.uid() != was.uid()) {
                self.notify(Change::Deleted(Arc::clone(was)));
            }
        }
        for (key, new) in all {
            match old.get(&key).filter(|was| was.uid() == new.uid()) {
                None => self.notify(Change::Added(new)),
                Some(was) if was.resource_version() != new.resource_version() => {
                    self.notify(Change::Updated { old: Arc::clone(was), new });
                }
                Some(_) => {}
            }
        }
        self.shared.synced.send_replace(true);
    }

    fn notify(&self, change: Change<T>) {
        for h in &self.shared.handlers {
            h(&change);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use kelson_meta::ObjectMeta;
    use kelson_transport::{BoxFuture, Request, Response, Transport, TransportError, full_body};
    use parking_lot::Mutex;
    use serde::Deserialize;

    use super::*;
    use crate::{ResourceType, slim_object};

    #[derive(Deserialize)]
    struct View {
        metadata: ObjectMeta,
    }
    slim_object!(View, ResourceType::namespaced("", "v1", "pods", "Pod"));

    /// Gives each request the next answer, and remembers what was asked: `list`, `stream` or `watch`.
    #[derive(Default)]
    struct Script {
        answers: Mutex<VecDeque<(u16, String)>>,
        asked: Mutex<Vec<&'static str>>,
    }

    impl Transport for Script {
        fn send(&self, request: Request) -> BoxFuture<Result<Response, TransportError>> {
            let query = request.uri().query().unwrap_or_default();
            self.asked.lock().push(match () {
                () if query.contains("sendInitialEvents=true") => "stream",
                () if query.contains("watch=true") => "watch",
                () => "list",
            });
            let next = self.answers.lock().pop_front();
            Box::pin(async move {
                let Some((code, body)) = next else { return std::future::pending().await };
                let mut response = Response::new(full_body(body));
                *response.status_mut() = http::StatusCode::from_u16(code).map_err(TransportError::new)?;
                Ok(response)
            })
        }
    }

    const POD: &str = r#"{"metadata":{"name":"p","namespace":"n","uid":"u","resourceVersion":"7"}}"#;

    async fn check(what: &str, first: (u16, String)) {
        let list = format!(r#"{{"metadata":{{"resourceVersion":"9"}},"items":[{POD}]}}"#);
        let script = Arc::new(Script::default());
        script.answers.lock().extend([first, (200, list)]);
        let client = Client::new(Arc::clone(&script) as Arc<dyn Transport>, "test");
        let informer = Informer::<View>::new(client, InformerConfig::default()).start();
        tokio::time::timeout(Duration::from_secs(60), informer.synced()).await.expect(what);
        assert!(informer.get(&ObjectKey::new("n", "p")).is_some(), "{what}");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(*script.asked.lock(), ["stream", "list", "watch"], "{what}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_streamed_whole_is_listed() {
        let added = format!(r#"{{"type":"ADDED","object":{POD}}}"#);
        let error = |reason: &str, code: u16| {
            let status = format!(r#"{{"kind":"Status","status":"Failure","reason":"{reason}","code":{code}}}"#);
            format!("{added}\n{{\"type\":\"ERROR\",\"object\":{status}}}\n")
        };
        check("too large a resource version", (200, error("Timeout", 504))).await;
        check("expired", (200, error("Expired", 410))).await;
        check("cut off", (200, format!("{added}\n"))).await;
        check("cut off inside a frame", (200, added[..20].to_owned())).await;
        check("refused", (422, r#"{"kind":"Status","status":"Failure","reason":"Invalid","code":422}"#.into())).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_of_a_handler_starts_the_watch_again() {
        let end = r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
        let stream = format!("{{\"type\":\"ADDED\",\"object\":{POD}}}\n{end}\n");
        let script = Arc::new(Script::default());
        script.answers.lock().extend([(200, stream.clone()), (200, stream)]);
        let client = Client::new(Arc::clone(&script) as Arc<dyn Transport>, "test");
        let panicked = std::sync::atomic::AtomicBool::new(false);
        let tasks = Tasks::root("test");
        let informer = Informer::<View>::new(client, InformerConfig::default())
            .on_change(move |_| assert!(panicked.swap(true, std::sync::atomic::Ordering::SeqCst), "the first time"))
            .start_in(&tasks);
        tokio::time::timeout(Duration::from_secs(60), informer.synced()).await.expect("the second try");
        assert!(tasks.shutdown(Duration::from_secs(1)).await, "the watch ends with its group");
    }
}
