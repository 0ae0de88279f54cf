//! The interface: encryption for the store, reload of the configuration, and the health of key services.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kelson_metrics::Registry;
use kelson_store::{AtRest, Key, Opened, Resource, SealError, Sealed, Writer};
use kelson_tasks::{FILES, Tasks};
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use crate::chain::WritesWith;
use crate::config::{self, ConfigError};
use crate::metrics::{Metrics, now_s};
use crate::path;
use crate::table::Table;
use crate::transform::TransformError;

/// The interval between two checks of the file (upstream: a minute).
const RELOAD_EVERY: Duration = Duration::from_secs(10);
/// The time within which the key services of a new configuration must be healthy before it is used.
const HEALTHY_WITHIN: Duration = Duration::from_secs(10);
const HEALTHY_PAUSE: Duration = Duration::from_millis(100);

/// The options of the server.
pub struct EncryptionOptions {
    /// `--encryption-provider-config`: the path of the configuration.
    pub file: PathBuf,
    /// `--encryption-provider-config-automatic-reload`: whether changes of the file are applied without a restart.
    pub automatic_reload: bool,
    /// The identifier of this server in metrics.
    pub server_id: String,
    /// The prefix of the path of each record: [`kelson_schema::storage::PREFIX`], or `--etcd-prefix`.
    pub prefix: String,
    /// The group that follows the file and the key services.
    pub tasks: Tasks,
}

/// The encryption of one server.
pub struct Encryption {
    file: PathBuf,
    prefix: String,
    reloads: bool,
    table: RwLock<Arc<Table>>,
    /// The names of keys, by which the store distinguishes values that need a rewrite.
    writers: Mutex<HashMap<String, Writer>>,
    metrics: Arc<Metrics>,
    tasks: Tasks,
}

impl Encryption {
    /// Reads the configuration and creates its providers. With `automatic_reload`, it then follows changes of the
    /// file.
    ///
    /// # Errors
    /// Fails if the file is invalid. An unavailable key service is not an error here; its health check reports it.
    pub async fn start(options: EncryptionOptions) -> Result<Arc<Self>, ConfigError> {
        let metrics = Arc::new(Metrics::new(&options.server_id));
        let table = read(&options.file, None, &metrics, &options.tasks).await?;
        let table = table.ok_or_else(|| ConfigError::Invalid("nothing read".to_owned()))?;
        metrics.uses(&table.hash);
        let this = Arc::new(Self {
            file: options.file,
            prefix: options.prefix,
            reloads: options.automatic_reload,
            table: RwLock::new(Arc::new(table)),
            writers: Mutex::default(),
            metrics,
            tasks: options.tasks.clone(),
        });
        if options.automatic_reload {
            let follower = Arc::clone(&this);
            options.tasks.supervise("encryption-config", move || {
                let follower = Arc::clone(&follower);
                async move { follower.follow().await }
            });
        }
        Ok(this)
    }

    /// Returns the metrics, to be exposed with those of the API server.
    #[must_use]
    pub fn metrics(&self) -> Registry {
        self.metrics.registry.clone()
    }

    /// Returns whether there is a health check `kms-providers`. As in upstream, it requires key services or the
    /// reload.
    #[must_use]
    pub fn has_check(&self) -> bool {
        self.reloads || !self.table().services.is_empty()
    }

    /// Runs the health check `kms-providers`.
    ///
    /// # Errors
    /// Returns the error of each unhealthy key service.
    pub fn check(&self) -> Result<(), String> {
        let table = self.table();
        let check =
            |(i, kms): (usize, &Arc<crate::kms::Kms>)| kms.check().err().map(|why| format!("kms-provider-{i}: {why}"));
        let faults: Vec<String> = table.services.iter().enumerate().filter_map(check).collect();
        match faults.as_slice() {
            [] => Ok(()),
            [one] => Err(one.clone()),
            many => Err(format!("[{}]", many.join(", "))),
        }
    }

    fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read())
    }

    async fn follow(&self) {
        loop {
            tokio::time::sleep(RELOAD_EVERY).await;
            self.reload().await;
        }
    }

    /// Applies the file if it has changed. If it is invalid, or a key service is unhealthy, the previous configuration
    /// stays in use, and the next check tries again.
    pub async fn reload(&self) {
        let used = self.table().hash.clone();
        let done = match read(&self.file, Some(&used), &self.metrics, &self.tasks).await {
            Ok(None) => return,
            Ok(Some(table)) => healthy(&table).await.map(|()| table),
            Err(e) => Err(e),
        };
        self.metrics.reloaded(done.is_ok(), now_s());
        let file = self.file.display();
        match done {
            Ok(table) => {
                tracing::info!(%file, hash = table.hash, "applied the changed encryption configuration");
                self.metrics.uses(&table.hash);
                *self.table.write() = Arc::new(table);
            }
            Err(error) => {
                tracing::error!(%file, %error, "encryption configuration is invalid; keeping the current one");
            }
        }
    }

    fn writer_of(&self, name: String) -> Writer {
        let mut writers = self.writers.lock();
        let next = u32::try_from(writers.len() + 1).unwrap_or(u32::MAX);
        *writers.entry(name).or_insert(Writer(next))
    }
}

/// The file's table, unless its digest is `used`.
async fn read(
    file: &Path,
    used: Option<&str>,
    metrics: &Arc<Metrics>,
    tasks: &Tasks,
) -> Result<Option<Table>, ConfigError> {
    let (path, used) = (file.to_path_buf(), used.map(ToOwned::to_owned));
    let config = FILES.run(move || {
        let (bytes, hash) = config::load(&path)?;
        if used.as_deref() == Some(hash.as_str()) {
            return Ok(None);
        }
        config::read(&path, &bytes, hash).map(Some)
    });
    let config = config.await.map_err(|e| ConfigError::Invalid(e.to_string()))??;
    match config {
        None => Ok(None),
        Some(config) => Table::build(config, metrics, tasks).await.map(Some),
    }
}

async fn healthy(table: &Table) -> Result<(), ConfigError> {
    let begun = Instant::now();
    for kms in &table.services {
        while let Err(why) = kms.check() {
            if begun.elapsed() > HEALTHY_WITHIN {
                return Err(ConfigError::Unhealthy(why));
            }
            tokio::time::sleep(HEALTHY_PAUSE).await;
            kms.probe().await;
        }
    }
    Ok(())
}

fn of_transform(error: TransformError) -> SealError {
    match error {
        TransformError::Unavailable(why) => SealError::Unavailable(why),
        TransformError::Invalid(why) => SealError::Invalid(why),
    }
}

impl AtRest for Encryption {
    fn writer(&self, resource: Resource) -> Option<Writer> {
        match self.table().chain(resource).writes_with() {
            WritesWith::Clear => Some(Writer::CLEAR),
            WritesWith::Key(name) => Some(self.writer_of(name)),
            WritesWith::Unknown => None,
        }
    }

    fn seal(&self, key: &Key, plain: &[u8]) -> Result<Option<Sealed>, SealError> {
        let sealed =
            self.table().chain(key.resource).seal(&self.metrics, key.resource, plain, &path::of(&self.prefix, key));
        let sealed = sealed.map_err(of_transform)?;
        Ok(sealed.map(|(bytes, name)| Sealed { bytes, writer: self.writer_of(name) }))
    }

    fn reads_clear(&self, resource: Resource) -> bool {
        self.table().chain(resource).reads_clear()
    }

    fn open(&self, key: &Key, sealed: &[u8]) -> Result<Opened, SealError> {
        let opened =
            self.table().chain(key.resource).open(&self.metrics, key.resource, sealed, &path::of(&self.prefix, key));
        let (plain, name) = opened.map_err(of_transform)?;
        Ok(Opened { plain, writer: self.writer_of(name) })
    }
}
