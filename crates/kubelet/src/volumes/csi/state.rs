//! What is known of drivers' volumes beside their mounts: who is here, what the API says of a driver and an attachment, who
//! uses what; and taking down.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files, removals in one of their own")]

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

/// What this kubelet has published, by target, and when a driver wants that done again. As many as the node's pods have volumes of
/// drivers.
#[derive(Clone, Default)]
pub(super) struct Publishing(Arc<Mutex<HashMap<PathBuf, Option<Timestamp>>>>);

impl Publishing {
    /// When a target is due again; the outer `None`: this kubelet has not published it.
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

/// What mounting drivers' volumes takes; cheap to clone.
#[derive(Clone)]
pub struct CsiVolumes {
    /// As the node.
    pub client: Client,
    /// The node's name.
    pub node: String,
    /// Who is here.
    pub drivers: Drivers,
    /// What the node reports.
    pub in_use: InUse,
    /// What is published, and when that is due again.
    pub(super) publishing: Publishing,
    /// What work on volumes is counted by.
    metrics: Option<Arc<StorageMetrics>>,
    /// One change of a volume at a time; as many as volumes are being changed.
    turns: Arc<Mutex<HashMap<String, Arc<AsyncMutex<()>>>>>,
}

impl CsiVolumes {
    /// With these drivers.
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

    /// The same, which counts its work.
    #[must_use]
    pub fn counted(self, metrics: Arc<StorageMetrics>) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    /// A driver's volume that is to be larger is, or could not be made so.
    pub(super) fn grown(&self, driver: &str, success: bool, began: Instant) {
        if let Some(metrics) = &self.metrics {
            metrics.grown(driver, success, began.elapsed());
        }
    }

    pub(super) fn turn(&self, volume: &str) -> Arc<AsyncMutex<()>> {
        let mut turns = self.turns.lock();
        // Turns that nobody takes are forgotten.
        turns.retain(|_, t| Arc::strong_count(t) > 1);
        Arc::clone(turns.entry(volume.to_owned()).or_default())
    }

    /// What the driver needs; a driver that does not say has the defaults.
    pub(super) async fn driver_spec(&self, driver: &str) -> Result<CSIDriverSpec, String> {
        let found = self.client.get_opt::<CSIDriver>("", driver).await.map_err(|e| e.to_string())?;
        Ok(found.map(|d| d.spec).unwrap_or_default())
    }

    /// What the attacher says of the volume, once it is attached here.
    pub(super) async fn attached(&self, driver: &str, handle: &str) -> Result<HashMap<String, String>, String> {
        let name = attachment_name(driver, handle, &self.node);
        let found = self.client.get_opt::<VolumeAttachment>("", &name).await.map_err(|e| e.to_string())?;
        let Some(status) = found.map(|a| a.status.unwrap_or_default()) else {
            return Err(format!("volume attachment {name} is not there yet"));
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

    /// Notes what pods have, by their directories: at the start, before anything is reported.
    pub fn remember(&self, dirs: &PodDirs) {
        for pod in std::fs::read_dir(dirs.pods()).into_iter().flatten().flatten() {
            let uid = pod.file_name().to_string_lossy().into_owned();
            for (_, data) in volumes_of(&pod.path()).into_iter().filter(|(_, d)| d.volume_lifecycle_mode != "Ephemeral")
            {
                self.in_use.note(&unique_name(&data.driver_name, &data.volume_handle), &uid);
            }
        }
    }

    /// Takes a pod's volumes of drivers down.
    ///
    /// # Errors
    /// When a driver cannot; it can be tried again.
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

    /// The last pod of the node that had the volume is gone: it is made unready, and the node says that it has let go.
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
