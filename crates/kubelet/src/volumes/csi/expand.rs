//! Grows drivers' volumes on the node, while pods use them and when they are mounted, and has their claims say so.
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
use super::growth::{self, Growth};
use super::state::CsiVolumes;
use crate::config::PodDirs;
use crate::csi::client::{EXPAND_VOLUME, Expand, SizeRange, VolumeCapability};
use crate::effects::Tell;
use crate::pod;
use crate::volumes::persistent::{Claims, Persistent};

/// How often the claims of the node's pods are looked at: the node may read them one by one, and not watch them all.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// A volume that a pod has, and where.
struct Mounted<'a> {
    volume: &'a Persistent,
    source: &'a CSIPersistentVolumeSource,
    /// Where the pod has it.
    target: &'a Path,
    /// Whether growing is work of its own, and not a part of mounting.
    is_in_use: bool,
}

/// What growing takes; cheap to clone.
#[derive(Clone)]
pub struct VolumeGrowth {
    client: Client,
    clock: Arc<dyn Clock>,
    dirs: PodDirs,
    csi: CsiVolumes,
    tell: Tell,
    /// The sizes to which volumes were grown here, by the volume's name.
    grown: Arc<Mutex<HashMap<String, Quantity>>>,
}

/// How it ended.
#[derive(Debug, PartialEq, Eq)]
enum Grown {
    Nothing,
    Done,
    /// Its driver does not do it while it is in use.
    NotInUse,
}

impl VolumeGrowth {
    /// Nothing was grown yet.
    pub fn new(client: Client, clock: Arc<dyn Clock>, dirs: PodDirs, csi: CsiVolumes, tell: Tell) -> Self {
        Self { client, clock, dirs, csi, tell, grown: Arc::default() }
    }

    /// Looks at the claims of the node's pods for as long as the task runs.
    pub async fn run(self, claims: Claims, pods: Arc<dyn Fn() -> Vec<Arc<Pod>> + Send + Sync>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            self.look(&claims, &pods()).await;
        }
    }

    /// Grows what is to be grown of volumes that pods have mounted; each once, however many pods have it.
    pub async fn look(&self, claims: &Claims, pods: &[Arc<Pod>]) {
        let mut seen: BTreeMap<String, ()> = BTreeMap::new();
        for pod in pods.iter().filter(|p| !pod::is_terminal(p) && !pod::is_deleted(p)) {
            for volume in claims.of(pod::uid(pod)) {
                let Some(source) = volume.spec.csi.as_ref().filter(|_| !volume.read_only) else { continue };
                let target = self.dirs.pod(pod::uid(pod)).join("volumes").join(PLUGIN);
                let target = target.join(&volume.name).join("mount");
                // What is not published yet is grown when it is.
                if self.csi.publishing.next(&target).is_none() || seen.insert(volume.name.clone(), ()).is_some() {
                    continue;
                }
                let done = self.grow(&Mounted { volume: &volume, source, target: &target, is_in_use: true }).await;
                if let Err(why) = self.told(pod, &volume, done) {
                    let text = format!("NodeExpandVolume.NodeExpandVolume failed for volume {:?} : {why}", volume.name);
                    self.tell.pod(pod, EventType::Warning, "VolumeResizeFailed", text);
                }
            }
        }
        self.grown.lock().retain(|name, _| seen.contains_key(name));
    }

    /// Tells pod and claim where a volume has grown.
    fn told(&self, pod: &Pod, volume: &Persistent, done: Result<Grown, String>) -> Result<(), String> {
        if done? == Grown::Done {
            let node = &self.csi.node;
            let text = format!("MountVolume.NodeExpandVolume succeeded for volume {:?} {node}", volume.name);
            self.tell.pod(pod, EventType::Normal, "FileSystemResizeSuccessful", text.clone());
            if let Some(claim) = volume.claim() {
                self.tell.object(&claim, EventType::Normal, "FileSystemResizeSuccessful", text);
            }
        }
        Ok(())
    }

    /// Grows a volume that has just been published, where its claim asked for it before.
    ///
    /// # Errors
    /// Why it is not as large as its claim was promised.
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
        self.told(pod, volume, done)
    }

    async fn grow(&self, what: &Mounted<'_>) -> Result<Grown, String> {
        let Some((namespace, name)) = what.volume.claim_name() else { return Ok(Grown::Nothing) };
        let text = |e: kelson_client::ClientError| e.to_string();
        let claim = self.client.get::<PersistentVolumeClaim>(namespace, name).await.map_err(text)?;
        let (size, known) = (growth::size(&claim), self.grown.lock().get(&what.volume.name).copied());
        // The volume itself is asked for only where the claim does not say all.
        let asked = claim.spec.as_ref().and_then(|s| s.resources.as_ref()?.requests.as_ref()?.get("storage"));
        let mut volume = size.unwrap_or_default();
        if asked.map(pod::quantity).is_some_and(|asked| asked > volume) {
            let found = self.client.get::<PersistentVolume>("", &what.volume.name).await.map_err(text)?;
            let capacity = found.spec.and_then(|s| s.capacity).and_then(|c| c.get("storage").map(pod::quantity));
            volume = capacity.unwrap_or(volume);
        }
        let wanted = growth::wanted(&claim, volume, known);
        if wanted == Growth::None {
            // What it has when it is first seen it had when it was mounted.
            if let (Some(size), None) = (size, known) {
                self.grown.lock().insert(what.volume.name.clone(), size);
            }
            return Ok(Grown::Nothing);
        }
        let began = Instant::now();
        let done = self.bring(what, claim, wanted).await;
        if what.is_in_use {
            self.csi.grown(&what.source.driver, done.is_ok(), began);
        }
        done
    }

    async fn bring(&self, what: &Mounted<'_>, claim: PersistentVolumeClaim, wanted: Growth) -> Result<Grown, String> {
        match wanted {
            Growth::None => Ok(Grown::Nothing),
            Growth::To(size) => self.to(what, claim, size).await,
            Growth::Here(size) => match self.ask(what, size).await {
                Ok(()) | Err((Code::Unimplemented, _)) => {
                    self.grown.lock().insert(what.volume.name.clone(), size);
                    Ok(Grown::Done)
                }
                Err((_, why)) => Err(why),
            },
        }
    }

    async fn to(&self, what: &Mounted<'_>, mut claim: PersistentVolumeClaim, size: Quantity) -> Result<Grown, String> {
        if let Some(patch) = growth::begun(&claim) {
            claim = self.write(&claim, &patch).await?;
        }
        match self.ask(what, size).await {
            Ok(()) => {
                self.write(&claim, &growth::done(&claim, size)).await?;
                self.grown.lock().insert(what.volume.name.clone(), size);
                Ok(Grown::Done)
            }
            Err((Code::FailedPrecondition, why)) => {
                tracing::warn!(volume = what.volume.name, why, "a volume does not grow while it is in use");
                Ok(Grown::NotInUse)
            }
            Err((code, why)) => {
                // The others may be over the next time, and say nothing of the volume.
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

    /// Asks the driver; what it says if it does not.
    async fn ask(&self, what: &Mounted<'_>, size: Quantity) -> Result<(), (Code, String)> {
        let source = what.source;
        let driver = self.csi.drivers.get(&source.driver).map_err(|why| (Code::Unavailable, why))?;
        let said = |e: kelson_cri::CriError| (e.code, format!("Expander.NodeExpand failed to expand the volume : {e}"));
        let abilities = driver.client.abilities().await.map_err(said)?;
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
