//! Keeps a cache in sync with the server: lists or streams the initial state, watches, resumes after errors with back-off,
//! and lists again on 410 (client-go's reflector). It does not know the type of the objects, so it is in the program once.
use std::sync::Arc;
use std::time::Duration;

use kelson_transport::TakesObjects;
use tokio::sync::watch as signal;

use crate::params::ListMeta;
use crate::watch::{Kind, RawEvent, Undecoded};
use crate::{Backoff, Client, ClientError, ListParams};

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

/// The source of objects, and their form.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) watch_accept: &'static str,
    pub(crate) list_accept: &'static str,
}

/// A cache without its type, for a reflector: the code that watches is in the program once, not once for each type.
pub(crate) trait Cache: Send + Sync {
    /// Begins an initial list or stream: until [`Cache::complete`], objects are collected beside the cache's content.
    fn begin(&self);
    /// Takes one change, and returns the object's resourceVersion.
    fn change(&self, kind: Kind, object: &Undecoded) -> Result<String, ClientError>;
    /// Takes one page of a list, and returns the list's metadata.
    fn page(&self, json: &[u8]) -> Result<ListMeta, ClientError>;
    /// Replaces the cache's content by what has been collected.
    fn complete(&self);
    /// Returns the signal that the initial list has been read.
    fn synced(&self) -> signal::Receiver<bool>;
}

/// Keeps one cache in sync with the server (client-go's reflector).
pub(crate) struct Reflector {
    pub(crate) client: Client,
    pub(crate) config: InformerConfig,
    pub(crate) source: Source,
    pub(crate) taken: TakesObjects,
    pub(crate) cache: Arc<dyn Cache>,
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

impl Reflector {
    pub(crate) async fn run(self: Arc<Self>) {
        tokio::join!(self.say_what_is_missing(), self.watch_for_ever());
    }

    /// Logs once which list is missing if the initial list takes long. A component that waits for all its informers
    /// would otherwise not show which one is missing.
    async fn say_what_is_missing(&self) {
        let mut synced = self.cache.synced();
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
        let (path, accept) = (&self.source.path, self.source.watch_accept);
        let mut watch = self.client.watch_raw(path, accept, &params, initial, self.taken).await?;
        let mut complete = !initial;
        if initial {
            self.cache.begin();
        }
        loop {
            let event = match watch.next().await {
                Ok(Some(e)) => e,
                Ok(None) => return Ok(Ended::Resume),
                Err(e) if e.is_expired() => return Ok(Ended::StartOver),
                Err(e) => return Err(e),
            };
            match event {
                RawEvent::Bookmark { resource_version, initial_end } => {
                    if initial_end && !complete {
                        self.cache.complete();
                        complete = true;
                    }
                    if complete {
                        *position = resource_version;
                    }
                }
                RawEvent::Object(kind, object) => {
                    let reached = self.cache.change(kind, &object)?;
                    if complete {
                        *position = reached;
                    }
                }
            }
        }
    }

    async fn list(&self, params: &ListParams) -> Result<String, ClientError> {
        let mut params = ListParams { limit: LIST_PAGE, ..params.clone() };
        self.cache.begin();
        loop {
            let json = self.client.list_raw(&self.source.path, self.source.list_accept, &params).await?;
            let metadata = self.cache.page(&json)?;
            if metadata.continue_token.is_empty() {
                self.cache.complete();
                return Ok(metadata.resource_version);
            }
            params.continue_token = metadata.continue_token;
        }
    }
}
