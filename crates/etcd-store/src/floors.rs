//! The revisions from which watches can start in data that was moved from an embedded store: what changed last in each
//! resource is known there, although its history is not. They are kept under a key beside those of objects.

use kelson_etcd::proto::RangeRequest;
use kelson_store::Floors;
use serde_json::{Value, json};

use crate::connection::CallError;
use crate::core::Core;

/// The key, below `--etcd-prefix`, where no API server stores an object.
pub(crate) const KEY: &str = "kelson/floors";

/// The value under the key: the revision of the move, and the floors.
pub(crate) fn encode(revision: u64, floors: &Floors) -> Vec<u8> {
    json!({"revision": revision, "base": floors.base, "resources": floors.resources}).to_string().into_bytes()
}

fn decode(value: &[u8], revision: u64) -> Option<Floors> {
    let tree: Value = serde_json::from_slice(value).ok()?;
    // After a later change nothing is known about what came between.
    if tree["revision"].as_u64()? != revision {
        return None;
    }
    let floors = tree["resources"].as_object()?.iter();
    let resources = floors.map(|(name, floor)| Some((name.clone(), floor.as_u64()?))).collect::<Option<_>>()?;
    Some(Floors { base: tree["base"].as_u64()?, resources })
}

/// Returns the floors if the data has not changed since it was moved, and `revision` is the current revision.
///
/// # Errors
/// Etcd cannot be read.
pub(crate) async fn read(core: &Core, revision: u64) -> Result<Option<Floors>, CallError> {
    let request = RangeRequest { key: core.keys.beside(KEY).into(), ..Default::default() };
    let answer = core.connection.range("get", request).await?;
    Ok(answer.kvs.first().and_then(|kv| decode(&kv.value, revision)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floors_hold_for_the_revision_of_the_move() {
        let floors =
            Floors { base: 0, resources: [("pods".to_owned(), 7), ("example.com/widgets".to_owned(), 9)].into() };
        let stored = encode(9, &floors);
        assert_eq!(decode(&stored, 9), Some(floors));
        assert_eq!(decode(&stored, 10), None);
        for damaged in [&b""[..], b"{}", br#"{"revision":9,"base":0,"resources":{"pods":"x"}}"#] {
            assert_eq!(decode(damaged, 9), None);
        }
    }
}
