//! Read, change, commit: the loop of all changes of a stored object. After a conflict the change is made again on the newest object.
use std::sync::Arc;

use futures::future::BoxFuture;
use kelson_meta::Status;
use kelson_store::Record;
use serde_json::Value;

use crate::catalog::Served;
use crate::shared::context::RequestContext;
use crate::write::commit::{Committer, WriteError};

/// Retries after a conflict.
pub const RETRIES_MAX: usize = 10;

/// Calls `attempt` with the newest record of an object until it succeeds or fails for another reason than a conflict.
///
/// # Errors
/// 404 without such an object, 409 after too many conflicts, and the errors of `attempt`.
pub async fn on_newest<'a, T>(
    cx: &'a RequestContext,
    served: &'a Served,
    name: &'a str,
    attempt: impl Fn(Arc<Record>) -> BoxFuture<'a, Result<T, WriteError>>,
) -> Result<T, Status> {
    for _ in 0..=RETRIES_MAX {
        match attempt(cx.stored(served, name)?).await {
            Err(WriteError::Conflict) => {}
            Err(refused) => return Err(refused.status(served, name)),
            Ok(done) => return Ok(done),
        }
    }
    Err(Status::conflict(&served.gr, name, Status::MODIFIED))
}

/// Whether a change needs to be stored.
pub enum Changed {
    /// The tree changed and is stored.
    Yes,
    /// Nothing is stored: nothing changed, or it is a dry run.
    No,
}

/// Changes a stored object without admission or validation, for fields that the server itself maintains.
///
/// # Errors
/// 404, 409, and the errors of `change`.
pub async fn modify(
    cx: &RequestContext,
    served: &Served,
    name: &str,
    change: impl Fn(&mut Value) -> Result<Changed, Status> + Sync,
) -> Result<(), Status> {
    let change = &change;
    on_newest(cx, served, name, move |record| {
        Box::pin(async move {
            let mut value = served.one_working(&record).await?;
            match change(&mut value)? {
                Changed::No => Ok(()),
                Changed::Yes => Committer::new(&cx.server).update(served, &record, value).await.map(drop),
            }
        })
    })
    .await
}
