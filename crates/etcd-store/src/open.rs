//! The face: options, and the opening of a store on etcd.

use std::sync::Arc;
use std::time::Duration;

use kelson_etcd::endpoint::{ClientTlsFiles as TlsFiles, Endpoints};
use kelson_meta::Backoff;
use kelson_metrics::Registry;
use kelson_store::{Mirror, Store, StoreError, StoreOptions};
use kelson_tasks::{FILES, Tasks};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::compact;
use crate::connection::{CallError, Connection};
use crate::core::{Core, Faults, Locked};
use crate::fence::Fence;
use crate::floors;
use crate::follow;
use crate::health;
use crate::key::Keys;
use crate::lease::Leases;
use crate::load::LoadError;
use crate::marker::Marker;
use crate::metrics::Metrics;
use crate::pending::Pending;
use crate::reach::reach;
use crate::start::fill;
use crate::value::MediaType;
use crate::version;
use crate::write::Writes;

/// The longest time that a start waits for etcd.
const START_MAX: Duration = Duration::from_secs(60);
const START_PAUSE: Duration = Duration::from_millis(200);
/// The pauses before everything is read again.
const READ_PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// The options of the server, under the names of upstream's flags.
pub struct EtcdOptions {
    /// `--etcd-servers`: addresses of members, `http://`, `https://` or `unix:///`.
    pub servers: Vec<String>,
    /// `--etcd-cafile`, `--etcd-certfile`, `--etcd-keyfile`.
    pub tls: TlsFiles,
    /// `--etcd-prefix`: the prefix of all keys.
    pub prefix: String,
    /// `--storage-media-type`: the form in which built-in kinds are stored.
    pub media: MediaType,
    /// `--etcd-compaction-interval`; zero leaves compaction to others.
    pub compaction_every: Duration,
    /// `--etcd-healthcheck-timeout`: a read that takes longer makes the server not ready.
    pub health_max: Duration,
    /// `--etcd-db-metric-poll-interval`; zero: never.
    pub size_every: Duration,
    /// `--lease-reuse-duration-seconds`: the time in which objects may share one lease.
    pub lease_reuse_s: u64,
    /// Clock, encryption and the bound of the watch log; other limits are etcd's.
    pub store: StoreOptions,
    /// The group that follows etcd.
    pub tasks: Tasks,
}

/// The reason why a store on etcd could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// The flags are wrong.
    #[error("{0}")]
    Options(String),
    /// Etcd could not be reached, or what it holds could not be read.
    #[error("etcd at {servers}: {why}")]
    Unavailable {
        /// The addresses that were tried.
        servers: String,
        /// The last fault.
        why: String,
    },
}

/// A store on etcd, and what is counted of it.
pub struct EtcdStore {
    /// The store that the API server reads and writes.
    pub store: Store,
    /// Calls of etcd, to be shown with the API server's metrics.
    pub metrics: Registry,
}

impl EtcdStore {
    /// Reads everything and follows it from then on. Waits a minute for etcd to come up, and as long as it takes for the
    /// leader that reads need.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub async fn open(options: EtcdOptions) -> Result<Self, EtcdError> {
        let (servers, files) = (options.servers.clone(), options.tls.clone());
        let endpoints = FILES.run(move || Endpoints::new(&servers, &files)).await;
        let endpoints = endpoints.map_err(|error| EtcdError::Options(error.to_string()))?;
        let metrics = Arc::new(Metrics::new());
        let connection = Arc::new(Connection::new(endpoints.map_err(EtcdError::Options)?, Arc::clone(&metrics)));
        let begun = Instant::now();
        let unavailable = |why: String| EtcdError::Unavailable { servers: options.servers.join(","), why };
        let status = loop {
            match health::status(&connection).await {
                Ok(status) => break status,
                Err(error) if begun.elapsed() > START_MAX => return Err(unavailable(error.to_string())),
                Err(error) => tracing::warn!(%error, "waiting for etcd"),
            }
            tokio::time::sleep(START_PAUSE).await;
        };
        let identity = status.header.as_ref().map(|header| format!("{:016x}", header.cluster_id)).unwrap_or_default();
        let keys = Keys::under(&options.prefix);
        let core = Arc::new(Core {
            mirror: Mirror::new(options.store, identity),
            marker: Marker::new(&keys),
            keys,
            media: options.media,
            pending: Pending::default(),
            leases: Leases::new(Arc::clone(&connection), options.lease_reuse_s),
            fence: Fence::new(),
            nudge: version::progress_is_sound(&status.version).then(Notify::new),
            faults: Faults::default(),
            locked: Locked::default(),
            connection,
        });
        let sealed_or = |error| match error {
            LoadError::Sealed(unreadable) => unavailable(format!("{unreadable} (--encryption-provider-config)")),
            other => unavailable(other.to_string()),
        };
        let FirstRead { revision, events_from, moved } = first_read(&core).await.map_err(sealed_or)?;
        tracing::info!(version = status.version, revision, events_from, "read all objects from etcd");
        let store = core.mirror.store(Arc::new(Writes(Arc::clone(&core))));
        let (health_max, compaction, size) = (options.health_max, options.compaction_every, options.size_every);
        keep(&options.tasks, &core, health_max);
        if moved {
            follow_to(&core, revision).await.map_err(|error| unavailable(error.to_string()))?;
        }
        if !compaction.is_zero() {
            let compactor = Arc::clone(&core);
            options.tasks.supervise("etcd-compact", move || compact::run(Arc::clone(&compactor), compaction));
        }
        let registry = metrics.registry.clone();
        if !size.is_zero() {
            let connection = Arc::clone(&core.connection);
            options.tasks.supervise("etcd-size", move || {
                let (connection, metrics) = (Arc::clone(&connection), Arc::clone(&metrics));
                async move { health::poll_size(&connection, &metrics, size).await }
            });
        }
        Ok(Self { store, metrics: registry })
    }
}

/// What a start read.
struct FirstRead {
    /// The revision of the objects; the mirror must still reach it if they were moved.
    revision: u64,
    /// The revision from which watches can start.
    events_from: u64,
    /// Whether the mirror begins at the objects as they were moved into etcd.
    moved: bool,
}

/// Reads all objects. An etcd that is busy or without a leader is asked again, with growing pauses and without limit,
/// since a server that gives up is started again and asks for everything at once.
async fn first_read(core: &Arc<Core>) -> Result<FirstRead, LoadError> {
    let mut pause = None;
    loop {
        match read_once(core).await {
            Err(LoadError::Call(error @ CallError::Failed(_))) => {
                let next = READ_PAUSES.after(pause);
                pause = Some(next);
                tracing::warn!(%error, pause_s = next.as_secs(), "reading all objects from etcd failed; retrying");
                tokio::time::sleep(next).await;
            }
            done => return done,
        }
    }
}

async fn read_once(core: &Arc<Core>) -> Result<FirstRead, LoadError> {
    if let Some(beginning) = floors::load(core).await? {
        let events_from = beginning.loaded.revision;
        beginning.loaded.show(core);
        core.mirror.resume_from(&beginning.floors);
        return Ok(FirstRead { revision: beginning.current, events_from, moved: true });
    }
    let (revision, events_from) = fill(core).await?;
    Ok(FirstRead { revision, events_from, moved: false })
}

/// Waits until the mirror shows a revision.
async fn follow_to(core: &Core, revision: u64) -> Result<(), StoreError> {
    loop {
        match reach(core, revision, START_MAX).await {
            Err(StoreError::Elsewhere(error)) => {
                tracing::warn!(error, revision, "following the changes in etcd takes long; waiting");
            }
            done => return done,
        }
    }
}

/// Starts what every store on etcd needs.
fn keep(tasks: &Tasks, core: &Arc<Core>, health_max: Duration) {
    let follower = Arc::clone(core);
    tasks.supervise("etcd-watch", move || {
        let core = Arc::clone(&follower);
        async move { follow::run(&core).await }
    });
    let fence = Arc::clone(core);
    tasks.supervise("etcd-fence", move || {
        let core = Arc::clone(&fence);
        async move { core.fence.serve(&core.connection).await }
    });
    let probe = Arc::clone(core);
    tasks.supervise("etcd-health", move || {
        let core = Arc::clone(&probe);
        async move { health::run(&core, health_max).await }
    });
}
