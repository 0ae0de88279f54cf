//! A watched, in-memory copy of the objects of one type, with change notification. Lists by watch-list where the server
//! can, resumes after faults with back-off, and starts over on 410. Objects are decoded into whatever slim type the
//! component chose, so the cache costs what the component needs.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kelson_meta::ObjectKey;
use parking_lot::RwLock;
use tokio::sync::watch as signal;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{Backoff, Client, ClientError, ListParams, Object, WatchEvent};

/// Page size where the server cannot stream its initial state.
const LIST_PAGE: u32 = 500;

/// What to watch.
#[derive(Clone, Debug, Default)]
pub struct InformerConfig {
    /// Only this namespace; empty: all.
    pub namespace: String,
    /// Label selector, query form.
    pub labels: String,
    /// Field selector, query form.
    pub fields: String,
}

/// A change of the cache, delivered to handlers in order.
#[derive(Debug)]
pub enum Change<T> {
    /// New to the cache.
    Added(Arc<T>),
    /// Replaced.
    Updated {
        /// Before.
        old: Arc<T>,
        /// After.
        new: Arc<T>,
    },
    /// Gone; the last known state (which may be stale after a gap in the watch).
    Deleted(Arc<T>),
}

impl<T> Change<T> {
    /// The newest known state.
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

/// The readers' side of an informer; cheap to clone. The watch ends when the last clone goes.
pub struct InformerHandle<T> {
    shared: Arc<Shared<T>>,
    _stop: Arc<DropGuard>,
}

impl<T> Clone for InformerHandle<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), _stop: Arc::clone(&self._stop) }
    }
}

/// An informer before it runs: add handlers, then [`start`](Self::start).
pub struct Informer<T> {
    client: Client,
    config: InformerConfig,
    handlers: Vec<Handler<T>>,
    source: Source,
}

/// Where objects come from and in which form.
#[derive(Clone, Debug)]
struct Source {
    path: String,
    watch_accept: &'static str,
    list_accept: &'static str,
}

impl<T: Object> Informer<T> {
    /// An informer on what `config` selects.
    pub fn new(client: Client, config: InformerConfig) -> Self {
        const JSON: &str = "application/json";
        let source = Source { path: T::TYPE.path(&config.namespace), watch_accept: JSON, list_accept: JSON };
        Self { client, config, handlers: Vec::new(), source }
    }

    /// Watches the resource at `path` instead of the type's own and reads metadata alone: for resources found by
    /// discovery.
    pub fn metadata_at(mut self, path: impl Into<String>) -> Self {
        let (watch_accept, list_accept) = (crate::METADATA_ONLY, crate::METADATA_ONLY_LIST);
        self.source = Source { path: path.into(), watch_accept, list_accept };
        self
    }

    /// Calls `f` on every change, in order, on the informer's own task: it must not block. Use it to feed a
    /// [`crate::WorkQueue`] or an index.
    pub fn on_change(mut self, f: impl Fn(&Change<T>) + Send + Sync + 'static) -> Self {
        self.handlers.push(Box::new(f));
        self
    }

    /// Starts watching on a task of its own.
    pub fn start(self) -> InformerHandle<T> {
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared {
            objects: RwLock::default(),
            synced: signal::Sender::new(false),
            handlers: self.handlers,
        });
        let run = Run { client: self.client, config: self.config, source: self.source, shared: Arc::clone(&shared) };
        let token = stop.clone();
        tokio::spawn(async move { token.run_until_cancelled(run.forever()).await });
        InformerHandle { shared, _stop: Arc::new(stop.drop_guard()) }
    }
}

impl<T> InformerHandle<T> {
    /// The object with this key.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<T>> {
        self.shared.objects.read().get(key).cloned()
    }
    /// All objects.
    pub fn list(&self) -> Vec<Arc<T>> {
        self.shared.objects.read().values().cloned().collect()
    }
    /// The objects that satisfy `keep`.
    pub fn filter(&self, keep: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        self.shared.objects.read().values().filter(|o| keep(o)).cloned().collect()
    }
    /// How many there are.
    pub fn len(&self) -> usize {
        self.shared.objects.read().len()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Whether the initial state has been read.
    pub fn is_synced(&self) -> bool {
        *self.shared.synced.borrow()
    }
    /// Waits for the initial state.
    pub async fn synced(&self) {
        // The sender lives in `shared`, which this handle holds: the wait cannot fail.
        let _ = self.shared.synced.subscribe().wait_for(|s| *s).await;
    }
}

struct Run<T> {
    client: Client,
    config: InformerConfig,
    source: Source,
    shared: Arc<Shared<T>>,
}

/// How one watch ended.
enum Ended {
    /// The server's time limit, or a broken stream: resume at the revision reached.
    Resume,
    /// The position is gone: start over.
    StartOver,
}

impl<T: Object> Run<T> {
    async fn forever(self) {
        let backoff = Backoff { base: Duration::from_millis(100), max: Duration::from_secs(30) };
        let mut failures = 0u32;
        let mut position = String::new();
        let mut can_stream = true;
        loop {
            let reached = position.clone();
            let result = self.once(&mut position, &mut can_stream).await;
            let progressed = position != reached;
            match result {
                Ok(Ended::Resume) => {}
                Ok(Ended::StartOver) => position.clear(),
                Err(e) => {
                    // An answer that cannot be read is a fault of the code, and no retry mends it: let it be seen.
                    if matches!(e, ClientError::Decode(_)) {
                        tracing::warn!(resource = T::TYPE.plural, error = %e, "watch failed");
                    } else {
                        tracing::debug!(resource = T::TYPE.plural, error = %e, "watch failed");
                    }
                    if e.is_expired() {
                        position.clear();
                    }
                }
            }
            failures = if progressed { 0 } else { failures.saturating_add(1) };
            let delay = backoff.delay(failures.min(12));
            tokio::time::sleep(delay.mul_f64(rand::random_range(0.5..1.0))).await;
        }
    }

    async fn once(&self, position: &mut String, can_stream: &mut bool) -> Result<Ended, ClientError> {
        let mut params = ListParams {
            labels: self.config.labels.clone(),
            fields: self.config.fields.clone(),
            ..ListParams::default()
        };
        if position.is_empty() && !*can_stream {
            *position = self.list(&params).await?;
        }
        let initial = position.is_empty();
        params.resource_version = position.clone();
        let mut watch =
            match self.client.watch_at::<T>(&self.source.path, self.source.watch_accept, &params, initial).await {
                Ok(w) => w,
                Err(e) if initial && e.status().is_some_and(|s| matches!(s.code, 400 | 422)) => {
                    *can_stream = false;
                    return Ok(Ended::StartOver);
                }
                Err(e) => return Err(e),
            };
        // During initial events the old cache keeps serving; it is replaced as one when they end.
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
        self.tell(match old {
            Some(old) => Change::Updated { old, new },
            None => Change::Added(new),
        });
    }

    fn remove(&self, object: T) {
        if self.shared.objects.write().remove(&object.key()).is_some() {
            self.tell(Change::Deleted(Arc::new(object)));
        }
    }

    /// Makes the cache what the server says there is, telling handlers the difference. An object whose UID changed was
    /// deleted and made anew behind our back: both are told.
    fn replace(&self, all: HashMap<ObjectKey, Arc<T>>) {
        let old = std::mem::replace(&mut *self.shared.objects.write(), all.clone());
        for (key, was) in &old {
            if all.get(key).is_none_or(|is| is.uid() != was.uid()) {
                self.tell(Change::Deleted(Arc::clone(was)));
            }
        }
        for (key, new) in all {
            match old.get(&key).filter(|was| was.uid() == new.uid()) {
                None => self.tell(Change::Added(new)),
                Some(was) if was.resource_version() != new.resource_version() => {
                    self.tell(Change::Updated { old: Arc::clone(was), new });
                }
                Some(_) => {}
            }
        }
        self.shared.synced.send_replace(true);
    }

    fn tell(&self, change: Change<T>) {
        for h in &self.shared.handlers {
            h(&change);
        }
    }
}
