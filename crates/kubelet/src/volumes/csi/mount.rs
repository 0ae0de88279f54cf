//! Stages a CSI volume for the node and publishes it for a pod; handles volumes of claims and inline volumes.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, Volume};
use k8s_openapi::api::storage::v1::CSIDriverSpec;

use super::capability::plain_capability;
use super::data::{DATA_FILE, PLUGIN, VolumeData, attachment_name, sum, write_data};
use crate::csi::client::{Publish, STAGE_UNSTAGE_VOLUME, Stage, Unpublish, VOLUME_MOUNT_GROUP, VolumeCapability};
use crate::csi::drivers::Driver;
use crate::csi::in_use::unique_name;
use crate::pod;
use crate::volumes::mounts::is_mounted;
use crate::volumes::ownership;
use crate::volumes::persistent::Persistent;
use crate::volumes::source::{Ready, Request, SetUp, Source, in_files};

/// Interval of republishing for drivers with `requiresRepublish`; upstream does it at each sync of the pod.
const REPUBLISH_EVERY: Duration = Duration::from_secs(60);

/// An inline CSI volume of a pod.
pub(in crate::volumes) struct Inline;

#[async_trait]
impl Source for Inline {
    fn is(&self, v: &Volume) -> bool {
        v.csi.is_some()
    }

    async fn set_up(&self, request: &Request<'_>) -> Result<SetUp, String> {
        let csi = request.volume.csi.clone().unwrap_or_default();
        let me = &request.volumes.csi;
        let handle = format!("csi-{}", sum(&format!("{}{}", pod::uid(request.pod), request.volume.name)));
        let read_only = csi.read_only.unwrap_or(false);
        let target = request.dir_of(PLUGIN, &request.volume.name).join("mount");
        let is_again = is_there(request, &target).await?;
        if let Some(renew_at) = rests(request, &target, is_again) {
            return Ok(SetUp { ready: Ready::Path { path: target, read_only }, renew_at });
        }
        let spec = me.driver_spec(&csi.driver).await?;
        if !spec.volume_lifecycle_modes.iter().flatten().any(|m| m == "Ephemeral") {
            let d = &csi.driver;
            return Err(format!("volume mode \"Ephemeral\" not supported by driver {d} (no CSIDriver object)"));
        }
        let driver = me.drivers.get(&csi.driver)?;
        let abilities = driver.client.node_capabilities().await.map_err(|e| e.to_string())?;
        let mut secrets = HashMap::new();
        if let Some(r) = &csi.node_publish_secret_ref {
            secrets = me.secret(pod::namespace(request.pod), &r.name).await?;
        }
        let modes = ["ReadWriteOnce".to_owned()];
        let what = CsiMount {
            driver: &csi.driver,
            handle: &handle,
            name: &request.volume.name,
            fs_type: csi.fs_type.as_deref().unwrap_or_default(),
            mount_flags: &[],
            modes: &modes,
            attributes: csi.volume_attributes.iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect(),
            read_only,
            is_inline: true,
            is_block: false,
        };
        let with = MountContext { driver: &driver, spec: &spec, abilities: &abilities };
        write_pod_data(request, &what).await?;
        let contexts = Contexts { secrets, ..Contexts::default() };
        let published = publish(request, &with, &what, contexts, None).await;
        let renew_at = noted(request, &spec, &target, published, is_again)?;
        Ok(SetUp { ready: Ready::Path { path: target, read_only }, renew_at })
    }
}

/// The driver and the node that mount.
struct MountContext<'a> {
    driver: &'a Driver,
    spec: &'a CSIDriverSpec,
    /// Numbers of the driver's node capabilities.
    abilities: &'a [i32],
}

/// The volume that is mounted.
struct CsiMount<'a> {
    driver: &'a str,
    handle: &'a str,
    /// Name of its directory in the pod's directory.
    name: &'a str,
    fs_type: &'a str,
    mount_flags: &'a [String],
    modes: &'a [String],
    attributes: HashMap<String, String>,
    read_only: bool,
    is_inline: bool,
    /// Whether containers get it as a block device.
    is_block: bool,
}

impl CsiMount<'_> {
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

/// Returns whether the target is a mount point.
async fn is_there(request: &Request<'_>, target: &Path) -> Result<bool, String> {
    let (mounts, target) = (Arc::clone(&request.volumes.mounts), target.to_owned());
    in_files(move || Ok(is_mounted(&*mounts, &target))).await
}

/// Writes the metadata beside the volume's target before the driver is called, so that the volume is always unmounted with the pod.
async fn write_pod_data(request: &Request<'_>, what: &CsiMount<'_>) -> Result<(), String> {
    let node = &request.volumes.csi.node;
    let dir = request.dir_of(PLUGIN, what.name);
    let data = what.data(node, &attachment_name(what.driver, what.handle, node));
    let file = dir.join(DATA_FILE);
    in_files(move || write_data(&dir, &file, &data)).await
}

/// Whether the volume needs no work, and when it next does: it is published and not due for republishing. A volume that an earlier kubelet
/// published is published again, like in upstream.
fn rests(request: &Request<'_>, target: &Path, is_published: bool) -> Option<Option<Timestamp>> {
    let next = request.volumes.csi.publishing.next(target).filter(|_| is_published)?;
    next.is_none_or(|at| request.volumes.clock.now() < at).then_some(next)
}

/// Records when a published volume is due again. If republishing fails, the existing mount stays, the pod continues to run, and the next
/// sync retries.
fn noted(
    request: &Request<'_>,
    spec: &CSIDriverSpec,
    target: &Path,
    published: Result<(), String>,
    is_again: bool,
) -> Result<Option<Timestamp>, String> {
    if let Err(why) = published {
        if !is_again {
            return Err(why);
        }
        tracing::warn!(target = %target.display(), error = why, "republishing a volume failed; the current mount stays");
    }
    let wants = spec.requires_republish == Some(true);
    let next = wants.then(|| request.volumes.clock.now().checked_add(REPUBLISH_EVERY).ok()).flatten();
    request.volumes.csi.publishing.note(target, next);
    Ok(next)
}

/// Sets up a claim's volume. Returns its path and when it is due again.
pub(in crate::volumes) async fn set_up(
    request: &Request<'_>,
    volume: &Persistent,
    csi: &CSIPersistentVolumeSource,
) -> Result<(PathBuf, Option<Timestamp>), String> {
    let me = &request.volumes.csi;
    let target = request.dir_of(PLUGIN, &volume.name).join("mount");
    let is_again = is_there(request, &target).await?;
    if let Some(renew_at) = rests(request, &target, is_again) {
        return Ok((target, renew_at));
    }
    let driver = me.drivers.get(&csi.driver)?;
    me.in_use.begin(&unique_name(&csi.driver, &csi.volume_handle), pod::uid(request.pod)).await?;
    let spec = me.driver_spec(&csi.driver).await?;
    let attached = match spec.attach_required {
        Some(false) => HashMap::new(),
        _ => me.attached(&csi.driver, &csi.volume_handle).await?,
    };
    let abilities = driver.client.node_capabilities().await.map_err(|e| e.to_string())?;
    let what = CsiMount {
        driver: &csi.driver,
        handle: &csi.volume_handle,
        name: &volume.name,
        fs_type: csi.fs_type.as_deref().unwrap_or_default(),
        mount_flags: volume.spec.mount_options.as_deref().unwrap_or_default(),
        modes: volume.spec.access_modes.as_deref().unwrap_or_default(),
        attributes: csi.volume_attributes.iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect(),
        read_only: csi.read_only.unwrap_or(false) || volume.read_only,
        is_inline: false,
        is_block: volume.is_block(),
    };
    let with = MountContext { driver: &driver, spec: &spec, abilities: &abilities };
    write_pod_data(request, &what).await?;
    let mut staged = None;
    if abilities.contains(&STAGE_UNSTAGE_VOLUME) {
        let mut secrets = HashMap::new();
        if let Some(r) = &csi.node_stage_secret_ref {
            secrets = me.secret_of(r.namespace.as_deref(), r.name.as_deref()).await?;
        }
        let path = request.volumes.dirs.staging(&csi.driver, &sum(&csi.volume_handle));
        // Also for a volume that an earlier kubelet published: staging is idempotent.
        stage(request, &with, &what, &path, Contexts { publish: attached.clone(), secrets }).await?;
        staged = Some(path);
    }
    let mut secrets = HashMap::new();
    if let Some(r) = &csi.node_publish_secret_ref {
        secrets = me.secret_of(r.namespace.as_deref(), r.name.as_deref()).await?;
    }
    let published = publish(request, &with, &what, Contexts { publish: attached, secrets }, staged.as_deref()).await;
    if published.is_ok() && !is_again {
        request.volumes.growth.at_mount(request.pod, volume, csi, &target).await?;
    }
    let renew_at = noted(request, &spec, &target, published, is_again)?;
    Ok((target, renew_at))
}

/// The group that the driver applies itself, if it supports that.
fn mount_group(request: &Request<'_>, abilities: &[i32]) -> String {
    let group = request.fs_group().filter(|_| abilities.contains(&VOLUME_MOUNT_GROUP));
    group.map(|g| g.to_string()).unwrap_or_default()
}

fn capability(request: &Request<'_>, with: &MountContext<'_>, what: &CsiMount<'_>) -> VolumeCapability {
    let of_mode = (what.modes, with.abilities);
    let mut capability = plain_capability(what.is_block, of_mode, (what.fs_type, what.mount_flags));
    if let Some(mount) = &mut capability.mount {
        mount.volume_mount_group = mount_group(request, with.abilities);
    }
    capability
}

/// Stages the volume for the node, which is idempotent in CSI.
async fn stage(
    request: &Request<'_>,
    with: &MountContext<'_>,
    what: &CsiMount<'_>,
    path: &Path,
    contexts: Contexts,
) -> Result<(), String> {
    let me = &request.volumes.csi;
    let turn = me.turn(&unique_name(what.driver, what.handle));
    let _turn = turn.lock().await;
    let data = what.data(&me.node, "");
    let (dir, file) = (path.to_owned(), path.with_file_name(DATA_FILE));
    in_files(move || write_data(&dir, &file, &data)).await?;
    let call = Stage {
        volume_id: what.handle.to_owned(),
        publish_context: contexts.publish,
        staging_target_path: path.display().to_string(),
        volume_capability: Some(capability(request, with, what)),
        secrets: contexts.secrets,
        volume_context: what.attributes.clone(),
    };
    let staged = with.driver.client.stage(call).await;
    staged.map(drop).map_err(|e| format!("MountVolume.MountDevice failed for volume {:?} : {e}", what.name))
}

/// Publishes the volume for the pod. According to CSI the driver creates the target and the kubelet its parent.
async fn publish(
    request: &Request<'_>,
    with: &MountContext<'_>,
    what: &CsiMount<'_>,
    contexts: Contexts,
    staged: Option<&Path>,
) -> Result<(), String> {
    let target = request.dir_of(PLUGIN, what.name).join("mount");
    let is_again = is_there(request, &target).await?;
    let (mut context, mut secrets) = (what.attributes.clone(), contexts.secrets);
    if with.spec.pod_info_on_mount == Some(true) {
        context.extend(pod_info(request, what.is_inline));
    }
    if let Some(tokens) = tokens(request, with.spec).await? {
        let as_secret = with.spec.service_account_token_in_secrets == Some(true);
        let into = if as_secret { &mut secrets } else { &mut context };
        into.insert("csi.storage.k8s.io/serviceAccount.tokens".into(), tokens);
    }
    let call = Publish {
        volume_id: what.handle.to_owned(),
        publish_context: contexts.publish,
        staging_target_path: staged.map(|p| p.display().to_string()).unwrap_or_default(),
        target_path: target.display().to_string(),
        volume_capability: Some(capability(request, with, what)),
        readonly: what.read_only,
        secrets,
        volume_context: context,
    };
    with.driver.client.publish(call).await.map_err(|e| e.to_string())?;
    if is_again {
        return Ok(());
    }
    let finished = match what.is_block {
        true => is_device(&target).await,
        false => give_to_group(request, with, what, &target).await,
    };
    if let Err(why) = finished {
        // A mounted target counts as ready at the next check, so an invalid one is unmounted.
        let call = Unpublish { volume_id: what.handle.to_owned(), target_path: target.display().to_string() };
        with.driver.client.unpublish(call).await.map_err(|e| format!("{why}; then: {e}"))?;
        return Err(why);
    }
    Ok(())
}

/// Checks that a driver published a block device. Otherwise the container would get an arbitrary file or device of the host.
async fn is_device(target: &Path) -> Result<(), String> {
    let target = target.to_owned();
    in_files(move || {
        let found = std::fs::metadata(&target).map_err(|e| format!("{}: {e}", target.display()))?;
        match found.file_type().is_block_device() {
            true => Ok(()),
            false => Err(format!("the driver published no block device at {}", target.display())),
        }
    })
    .await
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

/// Requests service account tokens for the driver's audiences. Returns them as JSON by audience.
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

/// Applies `fsGroup` if `fsGroupPolicy` says that the kubelet does it.
async fn give_to_group(
    request: &Request<'_>,
    with: &MountContext<'_>,
    what: &CsiMount<'_>,
    path: &Path,
) -> Result<(), String> {
    let has_one_node = what.modes.iter().any(|m| m == "ReadWriteOnce" || m == "ReadWriteOncePod");
    let allows = match with.spec.fs_group_policy.as_deref() {
        _ if what.read_only || with.abilities.contains(&VOLUME_MOUNT_GROUP) => false,
        Some("File") => true,
        Some("None") => false,
        _ => !what.fs_type.is_empty() && has_one_node,
    };
    let Some(ownership) = ownership::of(request).filter(|_| allows) else { return Ok(()) };
    let path = path.to_owned();
    in_files(move || ownership.apply(&path).map_err(|e| format!("applyFSGroup failed: {e}"))).await
}
