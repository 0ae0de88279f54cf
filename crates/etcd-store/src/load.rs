//! Everything under the prefix, at one revision.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kelson_etcd::proto::RangeRequest;
use kelson_store::{Key, MirrorChange, Resource, SealError};

use crate::connection::{CallError, revision_of};
use crate::core::{Core, DECODE, Fault, Unreadable};

/// Pairs in a page (upstream reads as many at most).
const PAGE: i64 = 10_000;
/// The number of attempts to read everything when etcd is compacted meanwhile, or a member fails.
const ATTEMPTS_MAX: usize = 5;
/// The pause after a read that failed.
const PAUSE: Duration = Duration::from_millis(200);

/// The reasons why the data could not be read completely.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("{0}")]
    Call(#[from] CallError),
    #[error("{0}")]
    Sealed(Unreadable),
    #[error("{0}")]
    Lane(#[from] kelson_tasks::LaneError),
}

/// The content of etcd at one revision.
#[derive(Default)]
pub(crate) struct Loaded {
    pub revision: u64,
    pub records: Vec<MirrorChange>,
    /// Resources with values that cannot be decrypted now, and why.
    pub locked: HashMap<Resource, SealError>,
    /// One such value of each.
    pub values: HashMap<Resource, (Key, Bytes)>,
}

impl Loaded {
    /// Puts it in place of what is shown.
    pub fn show(self, core: &Core) {
        core.mirror.replace(self.revision, self.records, self.locked);
        core.locked.replace(self.values);
    }
}

/// Reads everything that etcd holds, or what it held at a revision. Values that cannot be read are left out and logged. A value that
/// no provider can decrypt is an error, because it would appear to be absent. A value whose key service is not available locks its
/// resource.
///
/// # Errors
/// See [`LoadError`]. A failure of the current read is returned at once, since callers report it and read again.
pub(crate) async fn load(core: &Arc<Core>, at: Option<u64>) -> Result<Loaded, LoadError> {
    let mut attempt = 1;
    loop {
        match (pages(core, at.unwrap_or_default()).await, at) {
            // Etcd was compacted between two pages.
            (Err(LoadError::Call(CallError::Compacted)), None) if attempt < ATTEMPTS_MAX => {}
            // The connection may be with another member now.
            (Err(LoadError::Call(CallError::Failed(why))), Some(revision)) if attempt < ATTEMPTS_MAX => {
                tracing::warn!(why, revision, "reading etcd failed; retrying");
                tokio::time::sleep(PAUSE).await;
            }
            (done, _) => return done,
        }
        attempt += 1;
    }
}

/// Reads page by page, at a revision or at the current one (0).
async fn pages(core: &Arc<Core>, revision: u64) -> Result<Loaded, LoadError> {
    let (mut key, end) = core.keys.range();
    let mut loaded = Loaded { revision, ..Loaded::default() };
    loop {
        let request = RangeRequest {
            key: key.clone().into(),
            range_end: end.clone().into(),
            limit: PAGE,
            revision: i64::try_from(loaded.revision).unwrap_or(0),
            ..Default::default()
        };
        let page = core.connection.range("list", request).await?;
        if loaded.revision == 0 {
            loaded.revision = revision_of(page.header.as_ref());
        }
        let more = page.more;
        if let Some(last) = page.kvs.last() {
            key = last.key.to_vec();
            key.push(0);
        }
        let decoder = Arc::clone(core);
        let mut into = loaded;
        let read = move || {
            for kv in &page.kvs {
                let resource = decoder.keys.parse(&kv.key).map(|key| key.resource);
                if resource.is_some_and(|resource| into.locked.contains_key(&resource)) {
                    continue;
                }
                match decoder.read(kv) {
                    Ok(found) => into.records.extend(found),
                    Err(unreadable) => match unreadable.fault {
                        Fault::Sealed => return Err(LoadError::Sealed(unreadable)),
                        Fault::Damaged => {
                            tracing::error!(%unreadable, "stored object cannot be decoded; not serving it");
                        }
                        Fault::Unavailable => {
                            tracing::error!(%unreadable, "the KMS plugin is unavailable; the resource is locked until it responds");
                            into.locked.insert(unreadable.key.resource, SealError::Unavailable(unreadable.why));
                            into.values.insert(unreadable.key.resource, (unreadable.key, kv.value.clone()));
                        }
                    },
                }
            }
            Ok(into)
        };
        loaded = DECODE.run(read).await??;
        if !more {
            return Ok(loaded);
        }
    }
}
