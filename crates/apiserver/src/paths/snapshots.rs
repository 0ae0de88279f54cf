//! Copies of the store while the server runs: `POST /kelson/snapshots` has one made in the server's own directory and answers where
//! it is and what it holds. It is this server's own path; whoever may post to it is an administrator, as for any path that no role
//! names.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane of copies")]
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

/// Makes a copy.
///
/// # Errors
/// 404 where the server has no place for copies; 500 when the disk does not take it.
pub async fn make(server: &Server) -> Result<Answer, Status> {
    let Some(dir) = &server.config.snapshots else { return Err(Status::no_such_path()) };
    let to = dir.join(uuid::Uuid::new_v4().to_string());
    let (store, target) = (server.store.clone(), to.clone());
    let saved = SAVING.run(move || {
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
