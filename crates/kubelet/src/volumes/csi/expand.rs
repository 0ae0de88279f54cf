//! Expands CSI volumes on the node, while in use and when they are mounted, and updates the status of their claims.
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeClaim, Pod};
use kelson_client::{Client, EventType, PatchKind, WriteOptions};
use kelson_cri::Code;
use kelson_meta::{Clock, Quantity};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::capability::plain_capability;
use super::data::{PLUGIN, sum};
use super::growth::{self, ExpansionStep};
use super::state::CsiVolumes;
use crate::config::PodDirs;
use crate::csi::client::{EXPAND_VOLUME, Expand, SizeRange, VolumeCapability};
use crate::effects::EventReporter;
use crate::pod;
use crate::volumes::persistent::{Claims, Persistent};

/// Interval at which claims of the node's pods are read. The Node authorizer allows reads of single claims, but no watch.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// A volume of a pod, and its path.
struct Mounted<'a> {
    volume: &'a Persistent,
    source: &'a CSIPersistentVolumeSource,
    /// Path of the volume in the pod's directory.
    target: &'a Path,
    /// Whether the volume is already in use, rather than being mounted now.
    is_in_use: bool,
}

/// Expands volumes. Clones share the state.
#[derive(Clone)]
pub struct VolumeGrowth {
    client: Client,
    clock: Arc<dyn Clock>,
    dirs: PodDirs,
    csi: CsiVolumes,
    events: EventReporter,
    /// Sizes to which volumes were expanded here, by the volume's name.
    grown: Arc<Mutex<HashMap<String, Quantity>>>,
}

/// Result of an expansion.
#[derive(Debug, PartialEq, Eq)]
enum Expansion {
    Nothing,
    Done,
    /// The driver cannot expand the volume while it is in use.
    NotInUse,
}

impl VolumeGrowth {
    /// Creates it without recorded expansions.
    pub fn new(client: Client, clock: Arc<dyn Clock>, dirs: PodDirs, csi: CsiVolumes, events: EventReporter) -> Self {
        Self { client, clock, dirs, csi, events, grown: Arc::default() }
    }

    /// Checks the claims of the node's pods periodically until the task is aborted.
    pub async fn run(self, claims: Claims, pods: Arc<dyn Fn() -> Vec<Arc<Pod>> + Send + Sync>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            self.look(&claims, &pods()).await;
        }
    }

    /// Expands the mounted volumes whose claims grew. Each volume is handled once, even if several pods use it.
    pub async fn look(&self, claims: &Claims, pods: &[Arc<Pod>]) {
        let mut seen: BTreeMap<String, ()> = BTreeMap::new();
        for pod in pods.iter().filter(|p| !pod::is_terminal(p) && !pod::is_deleted(p)) {
            for volume in claims.of(pod::uid(pod)) {
                let Some(source) = volume.spec.csi.as_ref().filter(|_| !volume.read_only) else { continue };
                let target = self.dirs.pod(pod::uid(pod)).join("volumes").join(PLUGIN);
                let target = target.join(&volume.name).join("mount");
                // A volume that is not published yet is expanded when it is.
                if self.csi.publishing.next(&target).is_none() || seen.insert(volume.name.clone(), ()).is_some() {
                    continue;
                }
                let done = self.grow(&Mounted { volume: &volume, source, target: &target, is_in_use: true }).await;
                if let Err(why) = self.report(pod, &volume, done) {
                    let text = format!("NodeExpandVolume.NodeExpandVolume failed for volume {:?} : {why}", volume.name);
                    self.events.pod(pod, EventType::Warning, "VolumeResizeFailed", text);
                }
            }
        }
        self.grown.lock().retain(|name, _| seen.contains_key(name));
    }

    /// Records events about pod and claim after an expansion.
    fn report(&self, pod: &Pod, volume: &Persistent, done: Result<Expansion, String>) -> Result<(), String> {
        if done? == Expansion::Done {
            let node = &self.csi.node;
            let text = format!("MountVolume.NodeExpandVolume succeeded for volume {:?} {node}", volume.name);
            self.events.pod(pod, EventType::Normal, "FileSystemResizeSuccessful", text.clone());
            if let Some(claim) = volume.claim() {
                self.events.object(&claim, EventType::Normal, "FileSystemResizeSuccessful", text);
            }
        }
        Ok(())
    }

    /// Expands a volume that was just published, if its claim grew before.
    ///
    /// # Errors
    /// Why the volume does not have the claim's size.
    pub(super) async fn at_mount(
        &self,
        pod: &Pod,
        volume: &Persistent,
        source: &CSIPersistentVolumeSource,
        target: &Path,
    ) -> Result<(), String> {
        if volume.read_only || !volume.grows {
            return Ok(());
        }
        let done = self.grow(&Mounted { volume, source, target, is_in_use: false }).await;
        self.report(pod, volume, done)
    }

    async fn grow(&self, what: &Mounted<'_>) -> Result<Expansion, String> {
        let Some((namespace, name)) = what.volume.claim_name() else { return Ok(Expansion::Nothing) };
        let text = |e: kelson_client::ClientError| e.to_string();
        let claim = self.client.get::<PersistentVolumeClaim>(namespace, name).await.map_err(text)?;
        let (size, known) = (growth::size(&claim), self.grown.lock().get(&what.volume.name).copied());
        // The PersistentVolume is read only if the claim does not have all information.
        let asked = claim.spec.as_ref().and_then(|s| s.resources.as_ref()?.requests.as_ref()?.get("storage"));
        let mut volume = size.unwrap_or_default();
        if asked.map(pod::quantity).is_some_and(|asked| asked > volume) {
            let found = self.client.get::<PersistentVolume>("", &what.volume.name).await.map_err(text)?;
            let capacity = found.spec.and_then(|s| s.capacity).and_then(|c| c.get("storage").map(pod::quantity));
            volume = capacity.unwrap_or(volume);
        }
        let wanted = growth::wanted(&claim, volume, known);
        if wanted == ExpansionStep::None {
            // The size at the first check is the size at which it was mounted.
            if let (Some(size), None) = (size, known) {
                self.grown.lock().insert(what.volume.name.clone(), size);
            }
            return Ok(Expansion::Nothing);
        }
        let began = Instant::now();
        let done = self.bring(what, claim, wanted).await;
        if what.is_in_use {
            self.csi.grown(&what.source.driver, done.is_ok(), began);
        }
        done
    }

    async fn bring(
        &self,
        what: &Mounted<'_>,
        claim: PersistentVolumeClaim,
        wanted: ExpansionStep,
    ) -> Result<Expansion, String> {
        match wanted {
            ExpansionStep::None => Ok(Expansion::Nothing),
            ExpansionStep::To(size) => self.to(what, claim, size).await,
            ExpansionStep::Here(size) => match self.ask(what, size).await {
                Ok(()) | Err((Code::Unimplemented, _)) => {
                    self.grown.lock().insert(what.volume.name.clone(), size);
                    Ok(Expansion::Done)
                }
                Err((_, why)) => Err(why),
            },
        }
    }

    async fn to(
        &self,
        what: &Mounted<'_>,
        mut claim: PersistentVolumeClaim,
        size: Quantity,
    ) -> Result<Expansion, String> {
        if let Some(patch) = growth::begun(&claim) {
            claim = self.write(&claim, &patch).await?;
        }
        match self.ask(what, size).await {
            Ok(()) => {
                self.write(&claim, &growth::done(&claim, size)).await?;
                self.grown.lock().insert(what.volume.name.clone(), size);
                Ok(Expansion::Done)
            }
            Err((Code::FailedPrecondition, why)) => {
                tracing::warn!(
                    volume = what.volume.name,
                    why,
                    "the driver cannot expand the volume while it is in use"
                );
                Ok(Expansion::NotInUse)
            }
            Err((code, why)) => {
                // The excluded codes may be temporary and say nothing about the volume.
                if !matches!(code, Code::DeadlineExceeded | Code::Unavailable | Code::Aborted | Code::Cancelled) {
                    let for_good = matches!(code, Code::InvalidArgument | Code::OutOfRange | Code::NotFound);
                    let patch = growth::failed(&claim, &why, for_good, self.clock.now());
                    self.write(&claim, &patch).await?;
                }
                Err(why)
            }
        }
    }

    async fn write(
        &self,
        claim: &PersistentVolumeClaim,
        patch: &serde_json::Value,
    ) -> Result<PersistentVolumeClaim, String> {
        let (namespace, name) = (claim.metadata.namespace.as_deref(), claim.metadata.name.as_deref());
        let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
        let options = WriteOptions::default();
        let done = self.client.patch_and_read::<PersistentVolumeClaim>(
            namespace,
            name,
            "status",
            PatchKind::Merge,
            patch,
            &options,
        );
        done.await.map_err(|e| e.to_string())
    }

    /// Calls the driver.
    ///
    /// # Errors
    /// The driver's code and message.
    async fn ask(&self, what: &Mounted<'_>, size: Quantity) -> Result<(), (Code, String)> {
        let source = what.source;
        let driver = self.csi.drivers.get(&source.driver).map_err(|why| (Code::Unavailable, why))?;
        let said = |e: kelson_cri::CriError| (e.code, format!("Expander.NodeExpand failed to expand the volume : {e}"));
        let abilities = driver.client.node_capabilities().await.map_err(said)?;
        if !abilities.contains(&EXPAND_VOLUME) {
            let why = format!("NodeExpand is not supported by the CSI driver {}", source.driver);
            return Err((Code::Unimplemented, why));
        }
        let mut secrets = HashMap::new();
        if let Some(r) = &source.node_expand_secret_ref {
            let secret = self.csi.secret_of(r.namespace.as_deref(), r.name.as_deref()).await;
            secrets = secret.map_err(|why| (Code::Unavailable, why))?;
        }
        let staging = self.dirs.staging(&source.driver, &sum(&source.volume_handle));
        let call = Expand {
            volume_id: source.volume_handle.clone(),
            volume_path: what.target.display().to_string(),
            capacity_range: Some(SizeRange { required_bytes: size.value(), limit_bytes: 0 }),
            staging_target_path: staging.display().to_string(),
            volume_capability: Some(capability(what.volume, source, &abilities)),
            secrets,
        };
        driver.client.expand(call).await.map(drop).map_err(said)
    }
}

fn capability(volume: &Persistent, source: &CSIPersistentVolumeSource, abilities: &[i32]) -> VolumeCapability {
    let modes = volume.spec.access_modes.as_deref().unwrap_or_default();
    let flags = volume.spec.mount_options.as_deref().unwrap_or_default();
    let fs_type = source.fs_type.as_deref().unwrap_or_default();
    plain_capability(volume.is_block(), (modes, abilities), (fs_type, flags))
}
