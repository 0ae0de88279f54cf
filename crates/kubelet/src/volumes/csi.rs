//! Volumes of drivers (CSI): of claims, staged once for the node and published for each pod, and of a pod's own (inline).
//! What is known of a volume lies beside its mount (`vol_data.json`, as upstream's kubelet writes it), so that a kubelet that
//! starts again can take it down (upstream: `pkg/volume/csi`).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files, removals in one of their own")]

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, Secret, Volume};
use k8s_openapi::api::storage::v1::{CSIDriver, CSIDriverSpec, VolumeAttachment};
use kelson_client::Client;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex as AsyncMutex;

use super::mounts::is_mounted;
use super::ownership;
use super::persistent::Persistent;
use super::source::{Ready, Request, SetUp, Source, in_files};
use crate::config::PodDirs;
use crate::csi::client::{
    AccessMode, MountVolume, Publish, SINGLE_NODE_MULTI_WRITER, STAGE_UNSTAGE_VOLUME, Stage, Unpublish, Unstage,
    VOLUME_MOUNT_GROUP, VolumeCapability,
};
use crate::csi::drivers::{Driver, Drivers};
use crate::csi::in_use::{InUse, unique_name};
use crate::pod;

const PLUGIN: &str = "kubernetes.io~csi";
const DATA_FILE: &str = "vol_data.json";

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
    /// One change of a volume at a time; as many as volumes are being changed.
    turns: Arc<Mutex<HashMap<String, Arc<AsyncMutex<()>>>>>,
}

/// `vol_data.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeData {
    driver_name: String,
    volume_handle: String,
    #[serde(rename = "specVolID", default)]
    spec_vol_id: String,
    #[serde(default)]
    node_name: String,
    #[serde(rename = "attachmentID", default)]
    attachment_id: String,
    /// `Persistent` or `Ephemeral`.
    #[serde(default)]
    volume_lifecycle_mode: String,
}

fn sum(text: &str) -> String {
    use std::fmt::Write as _;
    Sha256::digest(text).iter().fold(String::new(), |mut out, byte| {
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn attachment_name(driver: &str, handle: &str, node: &str) -> String {
    format!("csi-{}", sum(&format!("{handle}{driver}{node}")))
}

/// A volume that pods name themselves.
pub(super) struct Inline;

#[async_trait]
impl Source for Inline {
    fn is(&self, v: &Volume) -> bool {
        v.csi.is_some()
    }

    async fn set_up(&self, request: &Request<'_>) -> Result<SetUp, String> {
        let csi = request.volume.csi.clone().unwrap_or_default();
        let handle = format!("csi-{}", sum(&format!("{}{}", pod::uid(request.pod), request.volume.name)));
        let read_only = csi.read_only.unwrap_or(false);
        let mut secrets = HashMap::new();
        if let Some(r) = &csi.node_publish_secret_ref {
            secrets = request.volumes.csi.secret(pod::namespace(request.pod), &r.name).await?;
        }
        let what = What {
            driver: &csi.driver,
            handle: &handle,
            name: &request.volume.name,
            fs_type: csi.fs_type.as_deref().unwrap_or_default(),
            mount_flags: &[],
            mode: access_mode(&["ReadWriteOncePod".to_owned()], true),
            attributes: csi.volume_attributes.iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect(),
            read_only,
            is_inline: true,
        };
        let spec = request.volumes.csi.driver_spec(&csi.driver).await?;
        if !spec.volume_lifecycle_modes.iter().flatten().any(|m| m == "Ephemeral") {
            let d = &csi.driver;
            return Err(format!("volume mode \"Ephemeral\" not supported by driver {d} (no CSIDriver object)"));
        }
        let driver = request.volumes.csi.drivers.get(&csi.driver)?;
        let path = publish(request, &driver, &what, &spec, Contexts { secrets, ..Contexts::default() }, None).await?;
        Ok(Ready::Path { path, read_only }.into())
    }
}

/// What is mounted.
struct What<'a> {
    driver: &'a str,
    handle: &'a str,
    /// Of its directory in the pod's.
    name: &'a str,
    fs_type: &'a str,
    mount_flags: &'a [String],
    mode: i32,
    attributes: HashMap<String, String>,
    read_only: bool,
    is_inline: bool,
}

#[derive(Default)]
struct Contexts {
    publish: HashMap<String, String>,
    secrets: HashMap<String, String>,
}

/// The interface's number of how a volume may be used at once. Drivers that know of several writers on one node are told
/// whether there may be.
fn access_mode(modes: &[String], knows_writers: bool) -> i32 {
    let has = |m: &str| modes.iter().any(|x| x == m);
    if has("ReadWriteMany") {
        5
    } else if has("ReadOnlyMany") && (has("ReadWriteOnce") || has("ReadWriteOncePod")) {
        4
    } else if has("ReadOnlyMany") {
        3
    } else if has("ReadWriteOncePod") {
        if knows_writers { 6 } else { 1 }
    } else if has("ReadWriteOnce") {
        if knows_writers { 7 } else { 1 }
    } else {
        0
    }
}

/// A claim's volume.
pub(super) async fn set_up(
    request: &Request<'_>,
    volume: &Persistent,
    csi: &CSIPersistentVolumeSource,
) -> Result<PathBuf, String> {
    if volume.is_block() {
        return Err("volumeMode Block is not served for volumes of drivers".into());
    }
    let me = &request.volumes.csi;
    let target = request.dir_of(PLUGIN, &volume.name).join("mount");
    let (mounts, at) = (Arc::clone(&request.volumes.mounts), target.clone());
    if in_files(move || Ok(is_mounted(&*mounts, &at))).await? {
        return Ok(target);
    }
    let driver = me.drivers.get(&csi.driver)?;
    me.in_use.begin(&unique_name(&csi.driver, &csi.volume_handle), pod::uid(request.pod)).await?;
    let spec = me.driver_spec(&csi.driver).await?;
    let attached = match spec.attach_required {
        Some(false) => HashMap::new(),
        _ => me.attached(&csi.driver, &csi.volume_handle).await?,
    };
    let abilities = driver.client.abilities().await.map_err(|e| e.to_string())?;
    let what = What {
        driver: &csi.driver,
        handle: &csi.volume_handle,
        name: &volume.name,
        fs_type: csi.fs_type.as_deref().unwrap_or_default(),
        mount_flags: volume.spec.mount_options.as_deref().unwrap_or_default(),
        mode: access_mode(
            volume.spec.access_modes.as_deref().unwrap_or_default(),
            abilities.contains(&SINGLE_NODE_MULTI_WRITER),
        ),
        attributes: csi.volume_attributes.iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect(),
        read_only: csi.read_only.unwrap_or(false) || volume.read_only,
        is_inline: false,
    };
    let mut staged = None;
    if abilities.contains(&STAGE_UNSTAGE_VOLUME) {
        let mut secrets = HashMap::new();
        if let Some(r) = &csi.node_stage_secret_ref {
            secrets = me.secret_of(r.namespace.as_deref(), r.name.as_deref()).await?;
        }
        let group = mount_group(request, &abilities);
        let path = request.volumes.dirs.staging(&csi.driver, &sum(&csi.volume_handle));
        stage(me, &driver, &what, &path, Contexts { publish: attached.clone(), secrets }, group).await?;
        staged = Some(path);
    }
    let mut secrets = HashMap::new();
    if let Some(r) = &csi.node_publish_secret_ref {
        secrets = me.secret_of(r.namespace.as_deref(), r.name.as_deref()).await?;
    }
    let contexts = Contexts { publish: attached, secrets };
    let path = publish(request, &driver, &what, &spec, contexts, staged.as_deref()).await?;
    give_to_group(request, volume, &spec, what.fs_type, &abilities, &path).await?;
    Ok(path)
}

/// The group that the driver itself gives files to, if it can.
fn mount_group(request: &Request<'_>, abilities: &[i32]) -> String {
    let group = request.fs_group().filter(|_| abilities.contains(&VOLUME_MOUNT_GROUP));
    group.map(|g| g.to_string()).unwrap_or_default()
}

fn capability(what: &What<'_>, group: String) -> VolumeCapability {
    let mount = MountVolume {
        fs_type: what.fs_type.to_owned(),
        mount_flags: what.mount_flags.to_vec(),
        volume_mount_group: group,
    };
    VolumeCapability { mount: Some(mount), access_mode: Some(AccessMode { mode: what.mode }) }
}

/// Makes the volume ready for the node. Done again it changes nothing, as the interface has it.
async fn stage(
    me: &CsiVolumes,
    driver: &Driver,
    what: &What<'_>,
    path: &Path,
    contexts: Contexts,
    group: String,
) -> Result<(), String> {
    let turn = me.turn(&unique_name(what.driver, what.handle));
    let _turn = turn.lock().await;
    let data = me.data(what, "");
    let (dir, file) = (path.to_owned(), path.with_file_name(DATA_FILE));
    in_files(move || write_data(&dir, &file, &data)).await?;
    let request = Stage {
        volume_id: what.handle.to_owned(),
        publish_context: contexts.publish,
        staging_target_path: path.display().to_string(),
        volume_capability: Some(capability(what, group)),
        secrets: contexts.secrets,
        volume_context: what.attributes.clone(),
    };
    let staged = driver.client.stage(request).await;
    staged.map(drop).map_err(|e| format!("MountVolume.MountDevice failed for volume {:?} : {e}", what.name))
}

fn write_data(dir: &Path, file: &Path, data: &VolumeData) -> Result<(), String> {
    use std::os::unix::fs::DirBuilderExt as _;
    let text = |e: std::io::Error| e.to_string();
    std::fs::DirBuilder::new().recursive(true).mode(0o750).create(dir).map_err(text)?;
    let bytes = serde_json::to_vec(data).map_err(|e| e.to_string())?;
    std::fs::write(file, bytes).map_err(text)
}

/// Mounts the volume for the pod.
async fn publish(
    request: &Request<'_>,
    driver: &Driver,
    what: &What<'_>,
    spec: &CSIDriverSpec,
    contexts: Contexts,
    staged: Option<&Path>,
) -> Result<PathBuf, String> {
    let dir = request.dir_of(PLUGIN, what.name);
    let target = dir.join("mount");
    let (mounts, at) = (Arc::clone(&request.volumes.mounts), target.clone());
    let me = &request.volumes.csi;
    let data = me.data(what, &attachment_name(what.driver, what.handle, &me.node));
    let file = dir.join(DATA_FILE);
    // The driver makes the target itself, as the interface has it; its parent is the kubelet's.
    let mounted = in_files(move || {
        write_data(&dir, &file, &data)?;
        Ok(is_mounted(&*mounts, &at))
    });
    if mounted.await? {
        return Ok(target);
    }
    let mut context = what.attributes.clone();
    if spec.pod_info_on_mount == Some(true) {
        context.extend(pod_info(request, what.is_inline));
    }
    if let Some(tokens) = tokens(request, spec).await? {
        context.insert("csi.storage.k8s.io/serviceAccount.tokens".into(), tokens);
    }
    let abilities = driver.client.abilities().await.map_err(|e| e.to_string())?;
    let call = Publish {
        volume_id: what.handle.to_owned(),
        publish_context: contexts.publish,
        staging_target_path: staged.map(|p| p.display().to_string()).unwrap_or_default(),
        target_path: target.display().to_string(),
        volume_capability: Some(capability(what, mount_group(request, &abilities))),
        readonly: what.read_only,
        secrets: contexts.secrets,
        volume_context: context,
    };
    driver.client.publish(call).await.map_err(|e| e.to_string())?;
    Ok(target)
}

fn pod_info(request: &Request<'_>, is_inline: bool) -> Vec<(String, String)> {
    let pod = request.pod;
    let account = pod.spec.as_ref().and_then(|s| s.service_account_name.clone()).unwrap_or_default();
    [
        ("csi.storage.k8s.io/pod.name", pod::name(pod).to_owned()),
        ("csi.storage.k8s.io/pod.namespace", pod::namespace(pod).to_owned()),
        ("csi.storage.k8s.io/pod.uid", pod::uid(pod).to_owned()),
        ("csi.storage.k8s.io/serviceAccount.name", account),
        ("csi.storage.k8s.io/ephemeral", is_inline.to_string()),
    ]
    .map(|(k, v)| (k.to_owned(), v))
    .to_vec()
}

/// Tokens of the pod's service account for the audiences that the driver wants, by audience.
async fn tokens(request: &Request<'_>, spec: &CSIDriverSpec) -> Result<Option<String>, String> {
    let Some(wanted) = spec.token_requests.as_ref().filter(|t| !t.is_empty()) else { return Ok(None) };
    let mut all = BTreeMap::new();
    for t in wanted {
        let seconds = t.expiration_seconds.unwrap_or(crate::objects::tokens::DEFAULT_SECONDS);
        let token = request.volumes.tokens.get(request.pod, &t.audience, seconds).await?;
        let until = token.expires.to_string();
        all.insert(&t.audience, serde_json::json!({"token": token.secret(), "expirationTimestamp": until}));
    }
    serde_json::to_string(&all).map(Some).map_err(|e| e.to_string())
}

/// `fsGroupPolicy`: whether files are the kubelet's to give to the pod's group.
async fn give_to_group(
    request: &Request<'_>,
    volume: &Persistent,
    spec: &CSIDriverSpec,
    fs_type: &str,
    abilities: &[i32],
    path: &Path,
) -> Result<(), String> {
    let modes = volume.spec.access_modes.as_deref().unwrap_or_default();
    let allows = match spec.fs_group_policy.as_deref() {
        Some("File") => true,
        Some("None") => false,
        _ => !fs_type.is_empty() && modes.iter().any(|m| m == "ReadWriteOnce"),
    };
    let Some(ownership) = ownership::of(request).filter(|_| allows && !abilities.contains(&VOLUME_MOUNT_GROUP)) else {
        return Ok(());
    };
    let path = path.to_owned();
    in_files(move || ownership.apply(&path).map_err(|e| format!("applyFSGroup failed: {e}"))).await
}

impl CsiVolumes {
    /// With these drivers.
    pub fn new(client: Client, node: &str, drivers: Drivers, in_use: InUse) -> Self {
        Self { client, node: node.to_owned(), drivers, in_use, turns: Arc::default() }
    }

    fn turn(&self, volume: &str) -> Arc<AsyncMutex<()>> {
        let mut turns = self.turns.lock();
        // Turns that nobody takes are forgotten.
        turns.retain(|_, t| Arc::strong_count(t) > 1);
        Arc::clone(turns.entry(volume.to_owned()).or_default())
    }

    fn data(&self, what: &What<'_>, attachment: &str) -> VolumeData {
        VolumeData {
            driver_name: what.driver.to_owned(),
            volume_handle: what.handle.to_owned(),
            spec_vol_id: what.name.to_owned(),
            node_name: self.node.clone(),
            attachment_id: attachment.to_owned(),
            volume_lifecycle_mode: if what.is_inline { "Ephemeral" } else { "Persistent" }.to_owned(),
        }
    }

    /// What the driver needs; a driver that does not say has the defaults.
    async fn driver_spec(&self, driver: &str) -> Result<CSIDriverSpec, String> {
        let found = self.client.get_opt::<CSIDriver>("", driver).await.map_err(|e| e.to_string())?;
        Ok(found.map(|d| d.spec).unwrap_or_default())
    }

    /// What the attacher says of the volume, once it is attached here.
    async fn attached(&self, driver: &str, handle: &str) -> Result<HashMap<String, String>, String> {
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

    async fn secret_of(&self, namespace: Option<&str>, name: Option<&str>) -> Result<HashMap<String, String>, String> {
        self.secret(namespace.unwrap_or_default(), name.unwrap_or_default()).await
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<HashMap<String, String>, String> {
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
    pub(super) async fn tear_down(&self, dirs: &PodDirs, uid: &str) -> Result<(), String> {
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
        Ok(())
    }

    /// The last pod of the node that had the volume is gone: it is made unready, and the node says that it has let go.
    async fn let_go(&self, dirs: &PodDirs, driver: &Driver, data: &VolumeData, uid: &str) -> Result<(), String> {
        let name = unique_name(&data.driver_name, &data.volume_handle);
        let turn = self.turn(&name);
        let _turn = turn.lock().await;
        if !self.in_use.has_others(&name, uid) {
            let path = dirs.staging(&data.driver_name, &sum(&data.volume_handle));
            let (there, file) = (path.clone(), path.with_file_name(DATA_FILE));
            if in_files(move || Ok(file.exists())).await? {
                let staging_target_path = path.display().to_string();
                let call = Unstage { volume_id: data.volume_handle.clone(), staging_target_path };
                driver.client.unstage(call).await.map_err(|e| e.to_string())?;
                in_files(move || remove_staging(&there)).await?;
            }
        }
        self.in_use.end(&name, uid);
        Ok(())
    }
}

/// The directories of a pod's volumes of drivers, and what is known of each.
fn volumes_of(pod: &Path) -> Vec<(PathBuf, VolumeData)> {
    let all = std::fs::read_dir(pod.join("volumes").join(PLUGIN)).into_iter().flatten().flatten();
    let read = |e: std::fs::DirEntry| {
        let bytes = std::fs::read(e.path().join(DATA_FILE)).ok()?;
        Some((e.path(), serde_json::from_slice(&bytes).ok()?))
    };
    all.filter_map(read).collect()
}

/// By single calls that take nothing but what is empty: what a driver left mounted is never crossed.
fn remove_data(dir: &Path) -> Result<(), String> {
    let gone = |e: std::io::Error| if e.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(e.to_string()) };
    std::fs::remove_dir(dir.join("mount")).or_else(gone)?;
    std::fs::remove_file(dir.join(DATA_FILE)).or_else(gone)?;
    std::fs::remove_dir(dir).or_else(gone)
}

fn remove_staging(path: &Path) -> Result<(), String> {
    let gone = |e: std::io::Error| if e.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(e.to_string()) };
    std::fs::remove_dir(path).or_else(gone)?;
    std::fs::remove_file(path.with_file_name(DATA_FILE)).or_else(gone)?;
    path.parent().map_or(Ok(()), |p| std::fs::remove_dir(p).or_else(gone))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_volume_may_be_used() {
        for (modes, plain, knowing) in [
            (&["ReadWriteOnce"][..], 1, 7),
            (&["ReadWriteOncePod"], 1, 6),
            (&["ReadOnlyMany"], 3, 3),
            (&["ReadWriteMany"], 5, 5),
            (&["ReadWriteOnce", "ReadOnlyMany"], 4, 4),
            (&["ReadWriteOnce", "ReadWriteMany"], 5, 5),
            (&[], 0, 0),
        ] {
            let modes: Vec<String> = modes.iter().map(|m| (*m).to_owned()).collect();
            assert_eq!((access_mode(&modes, false), access_mode(&modes, true)), (plain, knowing), "{modes:?}");
        }
    }

    #[test]
    fn what_lies_beside_a_mount() {
        let dir = tempfile::tempdir().expect("tempdir");
        let volume = dir.path().join("volumes").join(PLUGIN).join("pv");
        let data = VolumeData {
            driver_name: "d".into(),
            volume_handle: "h".into(),
            spec_vol_id: "pv".into(),
            node_name: "n".into(),
            attachment_id: attachment_name("d", "h", "n"),
            volume_lifecycle_mode: "Persistent".into(),
        };
        write_data(&volume, &volume.join(DATA_FILE), &data).expect("written");
        let text = std::fs::read_to_string(volume.join(DATA_FILE)).expect("read");
        for key in ["driverName", "volumeHandle", "specVolID", "nodeName", "attachmentID", "volumeLifecycleMode"] {
            assert!(text.contains(&format!("\"{key}\"")), "{text}");
        }
        assert_eq!(volumes_of(dir.path()), [(volume.clone(), data)]);
        std::fs::write(volume.join("mount"), "a file, so that the directory is not empty").expect("write");
        assert!(remove_data(&volume).is_err(), "what is left there stays");
        std::fs::remove_file(volume.join("mount")).expect("removed");
        assert_eq!(remove_data(&volume), Ok(()));
        assert!(!volume.exists());
    }
}
