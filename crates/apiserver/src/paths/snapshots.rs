//! Copies of the store while the server runs: `POST /kelson/snapshots` has one made in the server's own directory and answers where
//! it is and what it holds. It is this server's own path; whoever may post to it is an administrator, as for any path that no role
//! names.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane of copies")]
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

/// Where a copy is asked for; no other server has this path.
pub const PATH: &str = "/kelson/snapshots";
/// One at a time: each reads all objects and writes them to the disk.
static SAVING: Lane = Lane::new("snapshot", 1);

/// A copy that was not taken away by then was left by a client that is gone.
const LEFT_AFTER: Duration = Duration::from_secs(3600);

/// Removes copies that nobody took.
fn remove_left(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        // Copies alone have such names: what else is there is not ours.
        let is_copy = entry.file_name().to_str().is_some_and(|name| uuid::Uuid::parse_str(name).is_ok());
        let age = entry.metadata().and_then(|m| m.modified()).map(|at| at.elapsed().unwrap_or_default());
        if is_copy && age.is_ok_and(|age| age > LEFT_AFTER) {
            match std::fs::remove_dir_all(entry.path()) {
                Ok(()) => {
                    tracing::info!(path = %entry.path().display(), "removed a copy of the store that nobody took")
                }
                Err(error) => {
                    tracing::warn!(path = %entry.path().display(), %error, "cannot remove a copy of the store that nobody took");
                }
            }
        }
    }
}

/// Makes a copy.
///
/// # Errors
/// 404 where the server has no place for copies; 500 when the disk does not take it.
pub async fn make(server: &Server) -> Result<Answer, Status> {
    let Some(dir) = &server.config.snapshots else { return Err(Status::no_such_path()) };
    let to = dir.join(uuid::Uuid::new_v4().to_string());
    let (store, target) = (server.store.clone(), to.clone());
    let parent = dir.clone();
    let saved = SAVING.run(move || {
        remove_left(&parent);
        let saved = store.save(&target);
        if saved.is_err() {
            // Half a copy is none; what was wrong is the answer.
            #[expect(clippy::disallowed_methods, reason = "in the lane for copies")]
            let _ = std::fs::remove_dir_all(&target);
        }
        saved
    });
    let contents = saved.await.map_err(Status::internal)?.map_err(|e| version_param::of_store(&e))?;
    let told = json!({
        "path": to.display().to_string(), "revision": contents.revision, "identity": contents.identity,
        "records": contents.records, "encrypted": contents.encrypted,
    });
    answer::tree(StatusCode::CREATED, &Accepted::JSON, &ObjectSchema::Open, told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_that_nobody_took_go_and_nothing_else() {
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
        remove_left(dir.path());
        assert_eq!((left.exists(), fresh.exists(), other.exists()), (false, true, true));
        remove_left(&dir.path().join("absent"));
    }
}
