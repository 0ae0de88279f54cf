//! Snapshots of the store at runtime: `POST /kelson/snapshots` saves one to the server's snapshot directory and returns its path and
//! contents. The path exists only in Kelson. As no role contains it, only administrators can post to it.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane of snapshots")]
use std::path::Path;
use std::time::Duration;

use http::StatusCode;
use kelson_meta::Status;
use kelson_tasks::Lane;
use serde_json::json;

use crate::catalog::ObjectSchema;
use crate::request::answer::{self, Answer};
use crate::request::negotiate::Accepted;
use crate::request::version_param;
use crate::shared::Server;

/// The path of snapshots.
pub const PATH: &str = "/kelson/snapshots";
/// One at a time: each reads all objects and writes them to disk.
static SAVING: Lane = Lane::new("snapshot", 1);

/// A snapshot of this age was abandoned by its client.
const LEFT_AFTER: Duration = Duration::from_secs(3600);

/// Removes abandoned snapshots.
fn remove_abandoned(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        // Only snapshots have such names; other entries are left alone.
        let is_snapshot = entry.file_name().to_str().is_some_and(|name| uuid::Uuid::parse_str(name).is_ok());
        let age = entry.metadata().and_then(|m| m.modified()).map(|at| at.elapsed().unwrap_or_default());
        if is_snapshot && age.is_ok_and(|age| age > LEFT_AFTER) {
            match std::fs::remove_dir_all(entry.path()) {
                Ok(()) => {
                    tracing::info!(path = %entry.path().display(), "removed an abandoned snapshot of the store")
                }
                Err(error) => {
                    tracing::warn!(path = %entry.path().display(), %error, "failed to remove an abandoned snapshot of the store");
                }
            }
        }
    }
}

/// Saves a snapshot and answers with its path and contents.
///
/// # Errors
/// 404 without a snapshot directory; 500 if the snapshot cannot be written, or etcd does not answer.
pub async fn make(server: &Server) -> Result<Answer, Status> {
    let Some(dir) = &server.config.snapshots else { return Err(Status::no_such_path()) };
    let to = dir.join(uuid::Uuid::new_v4().to_string());
    // Servers on one etcd see each other's writes later; the snapshot has all that were acknowledged before it.
    server.store.catch_up().await.map_err(|e| version_param::store_error(&e))?;
    let (store, target) = (server.store.clone(), to.clone());
    let parent = dir.clone();
    let saved = SAVING.run(move || {
        remove_abandoned(&parent);
        let saved = store.save(&target);
        if saved.is_err() {
            // A partial snapshot is useless. The response has the error.
            #[expect(clippy::disallowed_methods, reason = "in the lane of snapshots")]
            let _ = std::fs::remove_dir_all(&target);
        }
        saved
    });
    let contents = saved.await.map_err(Status::internal)?.map_err(|e| version_param::store_error(&e))?;
    let saved = json!({
        "path": to.display().to_string(), "revision": contents.revision, "identity": contents.identity,
        "records": contents.records, "encrypted": contents.encrypted,
    });
    answer::tree(StatusCode::CREATED, &Accepted::JSON, &ObjectSchema::Open, saved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_abandoned_snapshots_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let old = std::time::SystemTime::now() - LEFT_AFTER * 2;
        let make = |name: &str, old_at: Option<std::time::SystemTime>| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("data"), "x").unwrap();
            if let Some(at) = old_at {
                std::fs::File::open(&path).unwrap().set_modified(at).unwrap();
            }
            path
        };
        let left = make("0b9e3f0c-5a1b-4c0e-9d8b-3f5b1f0c2a11", Some(old));
        let fresh = make("0b9e3f0c-5a1b-4c0e-9d8b-3f5b1f0c2a12", None);
        let other = make("monday", Some(old));
        remove_abandoned(dir.path());
        assert_eq!((left.exists(), fresh.exists(), other.exists()), (false, true, true));
        remove_abandoned(&dir.path().join("absent"));
    }
}
