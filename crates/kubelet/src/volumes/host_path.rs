//! Volumes with `hostPath`: a path of the node, checked against its type (upstream: `pkg/volume/hostpath`).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{HostPathVolumeSource, Volume};

use super::source::{Ready, Request, SetUp, Source, in_files};

pub(super) struct HostPath;

#[async_trait]
impl Source for HostPath {
    fn is(&self, v: &Volume) -> bool {
        v.host_path.is_some()
    }

    async fn set_up(&self, request: &Request<'_>) -> Result<SetUp, String> {
        let source = request.volume.host_path.clone().unwrap_or_default();
        let path = in_files(move || host_path(&source)).await?;
        Ok(Ready::Path { path, read_only: false }.into())
    }
}

/// Checks a path against its type, and creates it for the types `DirectoryOrCreate` and `FileOrCreate`.
pub(super) fn host_path(h: &HostPathVolumeSource) -> Result<PathBuf, String> {
    use std::os::unix::fs::FileTypeExt as _;
    let path = PathBuf::from(&h.path);
    let kind = h.type_.as_deref().unwrap_or_default();
    let make = |e: io::Error| e.to_string();
    match kind {
        "" => return Ok(path),
        "DirectoryOrCreate" if !path.exists() => {
            std::fs::create_dir_all(&path).map_err(make)?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).map_err(make)?;
        }
        "FileOrCreate" if !path.exists() => {
            std::fs::File::create(&path).map_err(make)?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).map_err(make)?;
        }
        _ => {}
    }
    let found = std::fs::metadata(&path).map(|m| m.file_type()).ok();
    let (what, good) = match kind {
        "Directory" | "DirectoryOrCreate" => ("directory", found.is_some_and(|t| t.is_dir())),
        "File" | "FileOrCreate" => ("file", found.is_some_and(|t| t.is_file())),
        "Socket" => ("socket", found.is_some_and(|t| t.is_socket())),
        "CharDevice" => ("character device", found.is_some_and(|t| t.is_char_device())),
        "BlockDevice" => ("block device", found.is_some_and(|t| t.is_block_device())),
        other => return Err(format!("{other} is an invalid volume type")),
    };
    if good { Ok(path) } else { Err(format!("hostPath type check failed: {} is not a {what}", h.path)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_path_types() {
        let dir = tempfile::tempdir().expect("tempdir");
        let at = |name: &str, kind: &str| {
            let path = dir.path().join(name).display().to_string();
            host_path(&HostPathVolumeSource { path, type_: Some(kind.to_owned()) })
        };
        assert!(at("new", "").is_ok());
        assert!(at("d", "DirectoryOrCreate").is_ok() && at("d", "Directory").is_ok());
        assert!(at("f", "FileOrCreate").is_ok() && at("f", "File").is_ok());
        let e = at("f", "Directory").expect_err("a file");
        assert!(e.starts_with("hostPath type check failed: ") && e.ends_with("/f is not a directory"), "{e}");
        assert!(at("none", "Socket").is_err() && at("none", "odd").is_err());
    }
}
