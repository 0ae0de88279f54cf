//! Endpoint `/localVolumes`: removes a directory of the built-in provisioner. Its controller calls it through the API server's proxy after
//! the claim was deleted. The node has no permission for volumes and so does not watch them.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use http::{Method, Response, StatusCode};
use kelson_tasks::FILES;

use super::answer::{Body, not_found, text};
use super::endpoint::{Answer, Call};
use super::state::ServerState;

/// Prefix of the names of all such directories.
const PREFIX: &str = "pvc-";

/// Removes one directory and its contents. A missing directory is a success.
pub fn serve(state: Arc<ServerState>, call: Call) -> Answer {
    Box::pin(async move {
        let (root, is_delete) = (state.config.local_volumes_dir.clone(), call.request.method() == Method::DELETE);
        match (root, call.below.as_slice()) {
            (Some(root), [name]) if is_delete && name.starts_with(PREFIX) => remove(root.join(name)).await,
            _ => not_found(),
        }
    })
}

async fn remove(dir: PathBuf) -> Response<Body> {
    let work = move || {
        if let Some(mount) = kelson_cri::mounts::below(&dir).first() {
            return Err(io::Error::other(format!("{} is mounted", mount.display())));
        }
        match std::fs::remove_dir_all(&dir) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    };
    match FILES.run(work).await.map_err(io::Error::other).and_then(|done| done) {
        Ok(()) => text(StatusCode::OK, "removed"),
        Err(e) => text(StatusCode::CONFLICT, e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_directory_goes_with_its_content_and_a_link_alone() {
        let root = tempfile::tempdir().expect("tempdir");
        let (dir, kept) = (root.path().join("pvc-1_n_c"), root.path().join("kept"));
        std::fs::create_dir_all(dir.join("a/b")).expect("mkdir");
        std::fs::create_dir_all(&kept).expect("mkdir");
        std::os::unix::fs::symlink(&kept, dir.join("a/link")).expect("symlink");
        for _ in 0..2 {
            assert_eq!(remove(dir.clone()).await.status(), StatusCode::OK);
            assert!(!dir.exists() && kept.exists());
        }
    }
}
