//! Everything under the prefix, at one revision.

use std::sync::Arc;

use kelson_etcd::proto::RangeRequest;
use kelson_store::Seen;
use kelson_tasks::Lane;

use crate::connection::{CallError, revision_of};
use crate::core::{Core, Unreadable};

/// Pairs in a page (upstream reads as many at most).
const PAGE: i64 = 10_000;
/// Times that reading is begun anew because etcd was compacted meanwhile.
const ATTEMPTS_MAX: usize = 5;

/// Where values are decoded when there are many of them, or a key service must be waited for.
pub(crate) static DECODE: Lane = Lane::new("etcd-decode", 1);

/// Why not everything could be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("{0}")]
    Call(#[from] CallError),
    #[error("{0}")]
    Sealed(Unreadable),
    #[error("{0}")]
    Lane(#[from] kelson_tasks::LaneError),
}

/// Everything there is, and the revision that it is of. What cannot be read is left out and logged; what cannot be decrypted is an
/// error: it would look as if it were not there.
pub(crate) async fn load(core: &Arc<Core>) -> Result<(u64, Vec<Seen>), LoadError> {
    for _ in 0..ATTEMPTS_MAX {
        match pages(core).await {
            Err(LoadError::Call(CallError::Compacted)) => {}
            other => return other,
        }
    }
    Err(CallError::Compacted.into())
}

async fn pages(core: &Arc<Core>) -> Result<(u64, Vec<Seen>), LoadError> {
    let (mut key, end) = core.keys.range();
    let (mut revision, mut all) = (0, Vec::new());
    loop {
        let request = RangeRequest {
            key: key.clone().into(),
            range_end: end.clone().into(),
            limit: PAGE,
            revision: i64::try_from(revision).unwrap_or(0),
            ..Default::default()
        };
        let page = core.connection.range("list", request).await?;
        if revision == 0 {
            revision = revision_of(page.header.as_ref());
        }
        let more = page.more;
        if let Some(last) = page.kvs.last() {
            key = last.key.to_vec();
            key.push(0);
        }
        let decoder = Arc::clone(core);
        let read = move || {
            let mut seen = Vec::with_capacity(page.kvs.len());
            for kv in &page.kvs {
                match decoder.read(kv) {
                    Ok(found) => seen.extend(found),
                    Err(unreadable) if unreadable.sealed => return Err(LoadError::Sealed(unreadable)),
                    Err(unreadable) => tracing::error!(%unreadable, "stored object cannot be decoded; not serving it"),
                }
            }
            Ok(seen)
        };
        all.extend(DECODE.run(read).await??);
        if !more {
            return Ok((revision, all));
        }
    }
}
