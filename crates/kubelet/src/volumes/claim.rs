//! Volumes with `persistentVolumeClaim` or `ephemeral`: sets up the bound PersistentVolume by its type.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{HostPathVolumeSource, Volume};

use super::host_path::host_path;
use super::persistent::Persistent;
use super::source::{Ready, Request, SetUp, Source, in_files, make_dir};
use super::{csi, nfs, ownership};

pub(super) struct Claim;

#[async_trait]
impl Source for Claim {
    fn is(&self, v: &Volume) -> bool {
        v.persistent_volume_claim.is_some() || v.ephemeral.is_some()
    }

    async fn set_up(&self, request: &Request<'_>) -> Result<SetUp, String> {
        let volume = request.persistent.clone().ok_or("the claim was not read")?;
        let spec = &volume.spec;
        let path = if let Some(source) = &spec.host_path {
            let (source, ours) = (source.clone(), request.volumes.local_volumes.clone());
            let (is_local_path, is_block) = (volume.is_local_path, volume.is_block());
            in_files(move || of_host(&source, ours.as_deref().filter(|_| is_local_path), is_block)).await?
        } else if let Some(source) = &spec.local {
            let (path, is_block) = (PathBuf::from(&source.path), volume.is_block());
            let ownership = ownership::of(request);
            in_files(move || local(&path, is_block, ownership)).await?
        } else if let Some(source) = &spec.nfs {
            let dir = request.dir_of("kubernetes.io~nfs", &volume.name);
            let options = spec.mount_options.clone().unwrap_or_default();
            let read_only = source.read_only.unwrap_or(false) || volume.read_only;
            nfs::mount(request, dir, source, &options, read_only).await?
        } else if let Some(source) = &spec.csi {
            let (path, renew_at) = csi::set_up(request, &volume, source).await?;
            return Ok(SetUp { ready: ready(&volume, path), renew_at });
        } else {
            let known = "hostPath, local, nfs and csi volumes of claims";
            return Err(format!("no volume plugin matched: this kubelet serves {known}"));
        };
        Ok(ready(&volume, path).into())
    }
}

fn ready(volume: &Arc<Persistent>, path: PathBuf) -> Ready {
    match volume.is_block() {
        true => Ready::Device { path, read_only: volume.read_only },
        false => Ready::Path { path, read_only: volume.read_only },
    }
}

/// Sets up a path of the node. `ours` is the directory of volumes of the built-in provisioner, which are writable for all users.
fn of_host(source: &HostPathVolumeSource, ours: Option<&Path>, is_block: bool) -> Result<PathBuf, String> {
    let path = Path::new(&source.path);
    if let Some(root) = ours {
        if path.parent() != Some(root) {
            return Err(format!("{} is not below this node's directory of local volumes", source.path));
        }
        // Writable for any user, because `fsGroup` does not apply to hostPath.
        make_dir(root, 0o711).and_then(|()| make_dir(path, 0o777)).map_err(|e| e.to_string())?;
    }
    match is_block {
        true => device(path),
        false => host_path(source),
    }
}

fn local(path: &Path, is_block: bool, ownership: Option<ownership::Ownership>) -> Result<PathBuf, String> {
    if is_block {
        return device(path);
    }
    let found = std::fs::metadata(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => format!("path {:?} does not exist", path.display()),
        _ => format!("{}: {e}", path.display()),
    })?;
    if !found.is_dir() {
        return Err(format!("{} is not a directory: a device is only served with volumeMode Block", path.display()));
    }
    if let Some(ownership) = ownership {
        ownership.apply(path).map_err(|e| format!("applyFSGroup failed for {}: {e}", path.display()))?;
    }
    Ok(path.to_owned())
}

/// Resolves symbolic links to a block device.
fn device(path: &Path) -> Result<PathBuf, String> {
    let real = path.canonicalize().map_err(|e| format!("{}: {e}", path.display()))?;
    let kind = std::fs::metadata(&real).map_err(|e| format!("{}: {e}", real.display()))?.file_type();
    if kind.is_block_device() { Ok(real) } else { Err(format!("{} is not a block device", path.display())) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn source(path: &Path) -> HostPathVolumeSource {
        HostPathVolumeSource { path: path.display().to_string(), type_: Some("DirectoryOrCreate".into()) }
    }

    #[test]
    fn provisioner_volumes_are_world_writable_and_below_one_directory() {
        let dir = tempfile::tempdir().expect("tempdir");
        let root = dir.path().join("storage");
        let path = root.join("pvc-u_n_c");
        assert_eq!(of_host(&source(&path), Some(&root), false), Ok(path.clone()));
        assert_eq!(std::fs::metadata(&path).expect("made").permissions().mode() & 0o777, 0o777);
        for elsewhere in ["../etc", "a/b"] {
            assert!(of_host(&source(&root.join(elsewhere)), Some(&root), false).is_err(), "{elsewhere}");
        }
        let other = dir.path().join("other");
        assert!(of_host(&source(&other), None, false).is_ok());
        assert_eq!(std::fs::metadata(&other).expect("made").permissions().mode() & 0o777, 0o755, "as any hostPath");
    }

    #[test]
    fn local_volumes_are_validated() {
        let dir = tempfile::tempdir().expect("tempdir");
        assert_eq!(local(dir.path(), false, None), Ok(dir.path().to_owned()));
        let missing = dir.path().join("missing");
        let text = format!("path {:?} does not exist", missing.display());
        assert_eq!(local(&missing, false, None), Err(text));
        assert!(local(dir.path(), true, None).expect_err("a directory").ends_with("is not a block device"));
        let file = dir.path().join("file");
        std::fs::write(&file, "").expect("write");
        assert!(local(&file, false, None).is_err());
    }
}
