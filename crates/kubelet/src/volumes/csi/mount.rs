//! Staging a driver's volume for the node and publishing it for a pod: those of claims, and a pod's own (inline).
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, Volume};
use k8s_openapi::api::storage::v1::CSIDriverSpec;

use super::super::mounts::is_mounted;
use super::super::ownership;
use super::super::persistent::Persistent;
use super::super::source::{Ready, Request, SetUp, Source, in_files};
use super::data::{DATA_FILE, PLUGIN, VolumeData, attachment_name, sum, write_data};
use super::state::CsiVolumes;
use crate::csi::client::{
    AccessMode, MountVolume, Publish, SINGLE_NODE_MULTI_WRITER, STAGE_UNSTAGE_VOLUME, Stage, VOLUME_MOUNT_GROUP,
    VolumeCapability,
};
use crate::csi::drivers::Driver;
use crate::csi::in_use::unique_name;
use crate::pod;

/// A volume that pods name themselves.
pub(in crate::volumes) struct Inline;

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

impl What<'_> {
    fn data(&self, node: &str, attachment: &str) -> VolumeData {
        VolumeData {
            driver_name: self.driver.to_owned(),
            volume_handle: self.handle.to_owned(),
            spec_vol_id: self.name.to_owned(),
            node_name: node.to_owned(),
            attachment_id: attachment.to_owned(),
            volume_lifecycle_mode: if self.is_inline { "Ephemeral" } else { "Persistent" }.to_owned(),
        }
    }
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
pub(in crate::volumes) async fn set_up(
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
    let data = what.data(&me.node, "");
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
    let data = what.data(&me.node, &attachment_name(what.driver, what.handle, &me.node));
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
}
