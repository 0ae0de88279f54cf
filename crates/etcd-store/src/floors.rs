//! The revisions from which watches can start in data that was moved from an embedded store: what changed last in each
//! resource is known there, although its history is not. They are kept under a key beside those of objects.

use std::sync::Arc;

use kelson_etcd::proto::RangeRequest;
use kelson_store::Floors;
use serde_json::{Value, json};

use crate::connection::{CallError, revision_of};
use crate::core::Core;
use crate::load::{self, LoadError, Loaded};

/// The key, below `--etcd-prefix`, where no API server stores an object.
pub(crate) const KEY: &str = "kelson/floors";

/// The number of changes since a move up to which a start reads them. More would take longer than a start may, and etcd, which
/// collects them in its memory for a watch, gigabytes.
const CHANGES_MAX: u64 = 10_000;

/// The value under the key: the revision of the move, and the floors.
pub(crate) fn encode(revision: u64, floors: &Floors) -> Vec<u8> {
    json!({"revision": revision, "base": floors.base, "resources": floors.resources}).to_string().into_bytes()
}

fn decode(value: &[u8]) -> Option<(u64, Floors)> {
    let tree: Value = serde_json::from_slice(value).ok()?;
    let floors = tree["resources"].as_object()?.iter();
    let resources = floors.map(|(name, floor)| Some((name.clone(), floor.as_u64()?))).collect::<Option<_>>()?;
    Some((tree["revision"].as_u64()?, Floors { base: tree["base"].as_u64()?, resources }))
}

/// The state at the revision of a move, and the current revision.
pub(crate) struct Beginning {
    /// Everything at the revision of the move.
    pub loaded: Loaded,
    /// The revisions from which watches can start.
    pub floors: Floors,
    /// The current revision.
    pub current: u64,
}

/// Reads everything as it was moved, if etcd still has that revision and not too much has changed since. From there the watch
/// brings all later changes.
///
/// # Errors
/// Etcd cannot be read.
pub(crate) async fn load(core: &Arc<Core>) -> Result<Option<Beginning>, LoadError> {
    let request = RangeRequest { key: core.keys.beside(KEY).into(), ..Default::default() };
    let answer = core.connection.range("get", request).await?;
    let current = revision_of(answer.header.as_ref());
    let Some((revision, floors)) = answer.kvs.first().and_then(|kv| decode(&kv.value)) else { return Ok(None) };
    if current.saturating_sub(revision) > CHANGES_MAX {
        return Ok(None);
    }
    match load::load(core, Some(revision)).await {
        Ok(loaded) => Ok(Some(Beginning { loaded, floors, current })),
        Err(LoadError::Call(CallError::Compacted)) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floors_are_read_as_they_were_written() {
        let floors =
            Floors { base: 0, resources: [("pods".to_owned(), 7), ("example.com/widgets".to_owned(), 9)].into() };
        let stored = encode(9, &floors);
        assert_eq!(decode(&stored), Some((9, floors)));
        for damaged in [&b""[..], b"{}", br#"{"revision":9,"base":0,"resources":{"pods":"x"}}"#] {
            assert_eq!(decode(damaged), None);
        }
    }
}
