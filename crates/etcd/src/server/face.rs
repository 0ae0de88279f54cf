//! The state that requests are answered from.

use std::sync::Arc;

use kelson_tasks::Tasks;
use tokio::sync::Semaphore;

use super::metrics::Metrics;
use super::options::ServerOptions;
use super::received::ReceivedRoom;
use super::unread::UnreadAnswers;
use crate::store::Store;

/// The maximum number of snapshots being sent; further requests are rejected.
const SNAPSHOTS_MAX: usize = 4;

#[derive(Debug)]
pub(super) struct Face {
    pub store: Store,
    pub options: ServerOptions,
    pub metrics: Metrics,
    pub tasks: Tasks,
    pub unread: Arc<UnreadAnswers>,
    pub received: ReceivedRoom,
    /// Permits for snapshots being sent; each of them has a file as large as the data.
    pub snapshots: Arc<Semaphore>,
}

impl Face {
    pub fn new(store: Store, options: ServerOptions, metrics: Metrics, tasks: Tasks) -> Self {
        let snapshots = Arc::new(Semaphore::new(SNAPSHOTS_MAX));
        Self { store, options, metrics, tasks, unread: Arc::default(), received: ReceivedRoom::default(), snapshots }
    }

    /// Creates a server without files and sockets, for tests.
    #[cfg(test)]
    pub async fn of_tests() -> Self {
        let (tasks, registry) = (Tasks::root("test"), kelson_metrics::Registry::of_component());
        let limits = crate::mvcc::Limits { txn_ops_max: 128, request_bytes_max: 1 << 20, quota_bytes: None };
        let options = crate::store::Options { data_dir: None, syncs: true, limits, auto_compaction: None };
        let store = Store::open(options, &tasks).await.unwrap();
        let metrics = Metrics::new(&registry, store.shared());
        let options = ServerOptions {
            name: "one".to_owned(),
            clients: vec![],
            metrics: vec![],
            client_urls: vec![],
            peer_urls: vec![],
            tls: None,
            watch_progress_every: std::time::Duration::from_secs(600),
            streams_max: 1000,
            registry,
        };
        Self::new(store, options, metrics, tasks)
    }
}
