//! State of CSI volumes in memory: drivers, API objects of drivers and attachments, users of volumes; and unmounting.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::storage::v1::{CSIDriver, CSIDriverSpec, VolumeAttachment};
use kelson_client::Client;
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

use super::data::{DATA_FILE, VolumeData, attachment_name, remove_data, remove_staging, sum, volumes_of};
use crate::config::PodDirs;
use crate::csi::client::{Unpublish, Unstage};
use crate::csi::drivers::{Driver, Drivers};
use crate::csi::in_use::{InUse, unique_name};
use crate::metrics::StorageMetrics;
use crate::volumes::files::in_files;

/// Targets that this kubelet has published, and when a driver wants them republished. The size is bounded by the number of pods' CSI
/// volumes.
#[derive(Clone, Default)]
pub(super) struct Publishing(Arc<Mutex<HashMap<PathBuf, Option<Timestamp>>>>);

impl Publishing {
    /// Returns when a target is due again; the outer `None` means that this kubelet has not published it.
    pub(super) fn next(&self, target: &Path) -> Option<Option<Timestamp>> {
        self.0.lock().get(target).copied()
    }

    pub(super) fn note(&self, target: &Path, next: Option<Timestamp>) {
        self.0.lock().insert(target.to_owned(), next);
    }

    fn forget(&self, pod: &Path) {
        self.0.lock().retain(|target, _| !target.starts_with(pod));
    }
}

/// Dependencies and state for mounting CSI volumes. Clones share the state.
#[derive(Clone)]
pub struct CsiVolumes {
    /// Client of the API that authenticates as this node.
    pub client: Client,
    /// Name of the node.
    pub node: String,
    /// Drivers registered on the node.
    pub drivers: Drivers,
    /// Volumes in use, as the node reports them.
    pub in_use: InUse,
    /// Published targets and when they are due again.
    pub(super) publishing: Publishing,
    /// Metrics of storage operations.
    metrics: Option<Arc<StorageMetrics>>,
    /// Locks by volume, so that one operation on a volume runs at a time.
    turns: Arc<Mutex<HashMap<String, Arc<AsyncMutex<()>>>>>,
}

impl CsiVolumes {
    /// Creates the state with these drivers.
    pub fn new(client: Client, node: &str, drivers: Drivers, in_use: InUse) -> Self {
        Self {
            client,
            node: node.to_owned(),
            drivers,
            in_use,
            publishing: Publishing::default(),
            metrics: None,
            turns: Arc::default(),
        }
    }

    /// Records metrics of operations.
    #[must_use]
    pub fn counted(self, metrics: Arc<StorageMetrics>) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    /// Counts an expansion.
    pub(super) fn grown(&self, driver: &str, success: bool, began: Instant) {
        if let Some(metrics) = &self.metrics {
            metrics.grown(driver, success, began.elapsed());
        }
    }

    pub(super) fn turn(&self, volume: &str) -> Arc<AsyncMutex<()>> {
        let mut turns = self.turns.lock();
        // Locks without users are removed.
        turns.retain(|_, t| Arc::strong_count(t) > 1);
        Arc::clone(turns.entry(volume.to_owned()).or_default())
    }

    /// Returns the spec of the driver's CSIDriver object; the defaults if there is none.
    pub(super) async fn driver_spec(&self, driver: &str) -> Result<CSIDriverSpec, String> {
        let found = self.client.get_opt::<CSIDriver>("", driver).await.map_err(|e| e.to_string())?;
        Ok(found.map(|d| d.spec).unwrap_or_default())
    }

    /// Returns the attachment metadata of a volume that is attached to this node.
    pub(super) async fn attached(&self, driver: &str, handle: &str) -> Result<HashMap<String, String>, String> {
        let name = attachment_name(driver, handle, &self.node);
        let found = self.client.get_opt::<VolumeAttachment>("", &name).await.map_err(|e| e.to_string())?;
        let Some(status) = found.map(|a| a.status.unwrap_or_default()) else {
            return Err(format!("volume attachment {name} does not exist yet"));
        };
        if status.attached {
            return Ok(status.attachment_metadata.unwrap_or_default().into_iter().collect());
        }
        let why = status.attach_error.and_then(|e| e.message);
        Err(why.unwrap_or_else(|| "the volume is not attached yet".into()))
    }

    pub(super) async fn secret_of(
        &self,
        namespace: Option<&str>,
        name: Option<&str>,
    ) -> Result<HashMap<String, String>, String> {
        self.secret(namespace.unwrap_or_default(), name.unwrap_or_default()).await
    }

    pub(super) async fn secret(&self, namespace: &str, name: &str) -> Result<HashMap<String, String>, String> {
        let unread = |e: kelson_client::ClientError| format!("failed to get secret {namespace}/{name}: {e}");
        let secret = self.client.get::<Secret>(namespace, name).await.map_err(unread)?;
        let text = |(k, v): (String, k8s_openapi::ByteString)| (k, String::from_utf8_lossy(&v.0).into_owned());
        Ok(secret.data.into_iter().flatten().map(text).collect())
    }

    /// Reads from their directories which volumes pods use. Called at start, before the first report.
    pub fn remember(&self, dirs: &PodDirs) {
        for pod in std::fs::read_dir(dirs.pods()).into_iter().flatten().flatten() {
            let uid = pod.file_name().to_string_lossy().into_owned();
            for (_, data) in volumes_of(&pod.path()).into_iter().filter(|(_, d)| d.volume_lifecycle_mode != "Ephemeral")
            {
                self.in_use.note(&unique_name(&data.driver_name, &data.volume_handle), &uid);
            }
        }
    }

    /// Unmounts a pod's CSI volumes.
    ///
    /// # Errors
    /// A driver failed; the call can be repeated.
    pub(in crate::volumes) async fn tear_down(&self, dirs: &PodDirs, uid: &str) -> Result<(), String> {
        let dir = dirs.pod(uid);
        let found = in_files(move || Ok(volumes_of(&dir))).await?;
        for (dir, data) in found {
            let driver = self.drivers.get(&data.driver_name)?;
            let target_path = dir.join("mount").display().to_string();
            let call = Unpublish { volume_id: data.volume_handle.clone(), target_path };
            driver.client.unpublish(call).await.map_err(|e| e.to_string())?;
            if data.volume_lifecycle_mode != "Ephemeral" {
                self.let_go(dirs, &driver, &data, uid).await?;
            }
            in_files(move || remove_data(&dir)).await?;
        }
        self.in_use.leave(uid);
        self.publishing.forget(&dirs.pod(uid));
        Ok(())
    }

    /// Unstages the volume after the last pod of the node released it, and removes it from `volumesInUse`.
    pub(super) async fn let_go(
        &self,
        dirs: &PodDirs,
        driver: &Driver,
        data: &VolumeData,
        uid: &str,
    ) -> Result<(), String> {
        let name = unique_name(&data.driver_name, &data.volume_handle);
        let turn = self.turn(&name);
        let _turn = turn.lock().await;
        if !self.in_use.has_others(&name, uid) {
            let path = dirs.staging(&data.driver_name, &sum(&data.volume_handle));
            let (there, file) = (path.clone(), path.with_file_name(DATA_FILE));
            if in_files(move || Ok(file.exists())).await? {
                let staging_target_path = path.display().to_string();
                let call = Unstage { volume_id: data.volume_handle.clone(), staging_target_path };
                let began = Instant::now();
                let unstaged = driver.client.unstage(call).await.map_err(|e| e.to_string());
                let done = match unstaged {
                    Ok(_) => in_files(move || remove_staging(&there)).await,
                    Err(why) => Err(why),
                };
                if let Some(metrics) = &self.metrics {
                    metrics.let_go(&data.driver_name, done.is_ok(), began.elapsed());
                }
                done?;
            }
        }
        self.in_use.end(&name, uid);
        Ok(())
    }
}
