//! From an etcd with one member back to an embedded store.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use kelson_store::Resource;
use kelson_tasks::FILES;

use super::place::{self, Change};
use super::{MoveError, Moved, io_at, store_at};
use crate::open::{EtcdOptions, EtcdStore};

/// The resource whose objects expire. Etcd counts their time by leases; here it begins again.
const EVENTS: &str = "events";

/// Makes an embedded store in `data_dir` of what a member has, which the caller runs for this call alone, and which stops
/// when `stopped` has resolved, before the store takes the member's place. Objects keep their revisions. Watches from before
/// the current revision must list again. Events are kept for another `event_ttl_s` seconds.
///
/// # Errors
/// See [`MoveError`].
pub async fn into_embedded(
    data_dir: &Path,
    options: EtcdOptions,
    event_ttl_s: u64,
    stopped: impl Future<Output = ()>,
) -> Result<Moved, MoveError> {
    let at_rest = options.store.at_rest.clone();
    let store_dir = place::store(data_dir);
    if place::has_store(data_dir) {
        return Err(MoveError::Both { store: store_dir, member: place::member_data(data_dir) });
    }
    let opened = EtcdStore::open(options).await?;
    let inventory = opened.store.inventory().map_err(store_at(&store_dir))?;
    let dir = data_dir.to_path_buf();
    let written = FILES.run(move || {
        let to = Change::IntoEmbedded.begin(&dir).map_err(io_at(&dir))?;
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let (events, ends) = (Resource::parse(EVENTS), now_s + event_ttl_s);
        let expires = |record: &kelson_store::Record| if record.key().resource == events { ends } else { 0 };
        inventory.write(&to, at_rest.as_deref(), expires).map_err(store_at(&to))?;
        place::sync_all(&to).map_err(io_at(&to))?;
        Ok::<_, MoveError>((inventory.revision(), inventory.len()))
    });
    let (revision, objects) = written.await??;
    opened.store.close().await;
    stopped.await;
    let dir = data_dir.to_path_buf();
    let aside = FILES.run(move || Change::IntoEmbedded.finish(&dir)).await?.map_err(io_at(data_dir))?;
    tracing::info!(revision, objects, before = %aside.display(), "moved all objects from etcd to the embedded store");
    Ok(Moved { revision, objects, aside })
}
