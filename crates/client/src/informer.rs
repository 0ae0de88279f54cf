//! A watched in-memory cache of the objects of one type with change notification. It lists with a watch-list where the server
//! supports it, resumes after errors with back-off, and lists again on 410. Components choose the type into which objects are
//! decoded, so that the cache has only the fields that they need.
use std::collections::HashMap;
use std::sync::Arc;

use kelson_meta::ObjectKey;
use kelson_tasks::Tasks;
use kelson_transport::TakesObjects;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch as signal;
use tokio_util::sync::DropGuard;

use crate::params::{List, ListMeta};
use crate::reflector::{Cache, InformerConfig, Reflector, Source};
use crate::watch::{Kind, Undecoded};
use crate::{Client, ClientError, Object};

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
    /// The objects of an initial list or stream that is not complete yet.
    incoming: Mutex<Option<HashMap<ObjectKey, Arc<T>>>>,
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

/// An informer before its start. It lists and watches the objects that its configuration selects, keeps them in a cache
/// by namespace and name, and calls its handlers for each change, in the order of the changes. Handlers are added
/// before [`start`](Self::start), which returns a handle to the running informer; the watch ends when the last handle
/// is dropped. It corresponds to client-go's shared informer.
pub struct Informer<T> {
    client: Client,
    config: InformerConfig,
    handlers: Vec<Handler<T>>,
    source: Source,
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
            incoming: Mutex::default(),
            synced: signal::Sender::new(false),
            handlers: self.handlers,
        });
        let reflector = Arc::new(Reflector {
            client: self.client,
            config: self.config,
            source: self.source,
            taken: TakesObjects { managed_fields: T::READS_MANAGED_FIELDS },
            cache: Arc::clone(&shared) as Arc<dyn Cache>,
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

impl<T: Object> Cache for Shared<T> {
    fn begin(&self) {
        *self.incoming.lock() = Some(HashMap::new());
    }

    fn change(&self, kind: Kind, object: &Undecoded) -> Result<String, ClientError> {
        let object: T = object.read()?;
        let position = object.resource_version().to_owned();
        match (&mut *self.incoming.lock(), kind) {
            (Some(all), Kind::Added | Kind::Modified) => drop(all.insert(object.key(), Arc::new(object))),
            (Some(all), Kind::Deleted) => drop(all.remove(&object.key())),
            (None, Kind::Added | Kind::Modified) => self.put(object),
            (None, Kind::Deleted) => self.remove(object),
        }
        Ok(position)
    }

    fn page(&self, json: &[u8]) -> Result<ListMeta, ClientError> {
        let part: List<T> = kelson_meta::from_json(json).map_err(|e| ClientError::Decode(format!("list: {e}")))?;
        let objects = part.items.into_iter().map(|o| (o.key(), Arc::new(o)));
        self.incoming.lock().get_or_insert_default().extend(objects);
        Ok(part.metadata)
    }

    fn complete(&self) {
        if let Some(all) = self.incoming.lock().take() {
            self.replace(all);
        }
    }

    fn synced(&self) -> signal::Receiver<bool> {
        self.synced.subscribe()
    }
}

impl<T: Object> Shared<T> {
    fn put(&self, object: T) {
        let new = Arc::new(object);
        let old = self.objects.write().insert(new.key(), Arc::clone(&new));
        self.notify(match old {
            Some(old) => Change::Updated { old, new },
            None => Change::Added(new),
        });
    }

    fn remove(&self, object: T) {
        if self.objects.write().remove(&object.key()).is_some() {
            self.notify(Change::Deleted(Arc::new(object)));
        }
    }

    /// Replaces the content of the cache and reports the differences to handlers. An object whose UID changed was
    /// deleted and created again during the gap, so handlers receive both changes.
    fn replace(&self, all: HashMap<ObjectKey, Arc<T>>) {
        let old = std::mem::replace(&mut *self.objects.write(), all.clone());
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
        self.synced.send_replace(true);
    }

    fn notify(&self, change: Change<T>) {
        for h in &self.handlers {
            h(&change);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

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
