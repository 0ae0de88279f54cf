//! Read, change, commit: the one loop of everything that changes a stored object. When somebody else wrote in between,
//! the change is made again on the newest object.
use std::sync::Arc;

use futures::future::BoxFuture;
use kelson_meta::Status;
use kelson_store::Record;
use serde_json::Value;

use crate::catalog::Served;
use crate::shared::context::RequestContext;
use crate::write::commit::{Committer, Refused};

/// Times a change is made again after a conflict.
pub const RETRIES_MAX: usize = 10;

/// Calls `attempt` with the newest record of an object until it succeeds or is refused for another reason than a conflict.
///
/// # Errors
/// 404 when there is no such object, 409 when others were always faster, and what `attempt` refuses.
pub async fn on_newest<'a, T>(
    cx: &'a RequestContext,
    served: &'a Served,
    name: &'a str,
    attempt: impl Fn(Arc<Record>) -> BoxFuture<'a, Result<T, Refused>>,
) -> Result<T, Status> {
    for _ in 0..=RETRIES_MAX {
        match attempt(cx.stored(served, name)?).await {
            Err(Refused::Conflict) => {}
            Err(refused) => return Err(refused.status(served, name)),
            Ok(done) => return Ok(done),
        }
    }
    Err(Status::conflict(&served.gr, name, Status::MODIFIED))
}

/// What a change made of a tree.
pub enum Changed {
    /// It is to be stored.
    Yes,
    /// Nothing is to be stored: it is as it should be, or this is a dry run.
    No,
}

/// Changes a stored object in place, without admission or validation: for what the server itself notes on objects.
///
/// # Errors
/// 404, 409, and what `change` refuses.
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
                Changed::Yes => Committer::of(&cx.server).update(served, &record, value).await.map(drop),
            }
        })
    })
    .await
}
