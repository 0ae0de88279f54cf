//! Which node ports are in use: one object that all servers change by comparing its revision, so that none is handed out twice. The
//! reference's servers keep theirs in the same one (`pkg/registry/core/service/allocator/storage`).

use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use kelson_etcd::proto::{PutRequest, RangeRequest, request_op};
use kelson_meta::tree::text;
use kelson_schema::{Schema, TypeId};
use kelson_store::{Key, PortChange, Resource, StoreError};
use serde_json::json;

use crate::connection::when_at;
use crate::core::Core;
use crate::raw;
use crate::value::MediaType;

/// Times that a change is made again because another server was faster.
const ATTEMPTS_MAX: usize = 32;

/// Under which name the object may be encrypted, and by which its key is made.
fn key() -> Key {
    Key::new(Resource::new("", "servicenodeportallocations"), "", "servicenodeports")
}

/// The ports that are noted, ascending.
///
/// # Errors
/// Etcd cannot be asked; what is there cannot be read.
pub(crate) async fn in_use(core: &Arc<Core>) -> Result<Vec<u16>, StoreError> {
    Ok(stored(core).await?.1.into_iter().collect())
}

/// Changes the allocations. Returns the first port that should be free and is not; then nothing is changed.
///
/// # Errors
/// As of [`in_use`]; others change them all the time.
pub(crate) async fn change(core: &Arc<Core>, change: PortChange) -> Result<Option<u16>, StoreError> {
    let key = key();
    let name = Bytes::from(core.keys.of(&key));
    for _ in 0..ATTEMPTS_MAX {
        let (at, before) = stored(core).await?;
        if change.only_free
            && let Some(port) = change.take.iter().find(|port| before.contains(port))
        {
            return Ok(Some(*port));
        }
        let mut ports = before.clone();
        ports.extend(&change.take);
        ports.retain(|port| !change.give_back.contains(port));
        if at > 0 && ports == before {
            return Ok(None);
        }
        let value = raw::sealed(core, &key, value(core.media, change.range, &ports)?)?;
        let put = PutRequest { key: name.clone(), value: value.into(), ..Default::default() };
        if core.connection.txn("update", when_at(&name, at, request_op::Request::RequestPut(put))).await?.succeeded {
            return Ok(None);
        }
    }
    Err(StoreError::Elsewhere("etcd: too many conflicting node port allocations".into()))
}

/// Returns the stored bitmap and its revision, which are empty and 0 before the first change.
async fn stored(core: &Arc<Core>) -> Result<(u64, BTreeSet<u16>), StoreError> {
    let key = key();
    let range = RangeRequest { key: core.keys.of(&key).into(), ..Default::default() };
    let Some(kv) = core.connection.range("get", range).await?.kvs.into_iter().next() else {
        return Ok((0, BTreeSet::new()));
    };
    let revision = u64::try_from(kv.mod_revision).unwrap_or(0);
    match raw::read(core, &key, kv.value, ports_in).await? {
        Some(ports) => Ok((revision, ports)),
        None => Err(StoreError::Elsewhere("etcd: cannot decode the allocated node ports".into())),
    }
}

fn allocation() -> Option<TypeId> {
    Schema::builtin().by_gvk("", "v1", "RangeAllocation")
}

/// Encodes ports as a bitmap: the bit of a port is its distance from the first port of the range, in a number whose
/// bytes are stored from the highest non-zero one. Ports outside the range are left out, because they are not allocated
/// from it.
fn value(media: MediaType, (low, high): (u16, u16), ports: &BTreeSet<u16>) -> Result<Vec<u8>, StoreError> {
    let noted = || if low <= high { ports.range(low..=high) } else { ports.range(..0) };
    let highest = noted().next_back().map(|port| usize::from(port - low) / 8 + 1);
    let mut bits = vec![0u8; highest.unwrap_or(0)];
    let bytes = bits.len();
    for bit in noted().map(|port| usize::from(port - low)) {
        bits[bytes - 1 - bit / 8] |= 1 << (bit % 8);
    }
    let tree = json!({"kind": "RangeAllocation", "apiVersion": "v1", "metadata": {},
        "range": format!("{low}-{high}"), "data": STANDARD.encode(bits)});
    raw::encode(media, allocation(), &tree)
}

fn ports_in(plain: &[u8]) -> Option<BTreeSet<u16>> {
    let tree = raw::decode(allocation(), plain)?;
    let (low, _) = text(&tree["range"]).split_once('-')?;
    let low: usize = low.parse().ok()?;
    let bits = STANDARD.decode(text(&tree["data"])).ok()?;
    let mut ports = BTreeSet::new();
    for (at, byte) in bits.iter().rev().enumerate() {
        for bit in (0..8).filter(|bit| byte & (1 << bit) != 0) {
            ports.insert(u16::try_from(low + at * 8 + bit).ok()?);
        }
    }
    Some(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: (u16, u16) = (30000, 32767);

    #[test]
    fn ports_are_bits_of_a_number() {
        for media in [MediaType::Protobuf, MediaType::Json] {
            for ports in [&[][..], &[30000], &[30007, 30008], &[30000, 30086, 32767]] {
                let ports: BTreeSet<u16> = ports.iter().copied().collect();
                assert_eq!(ports_in(&value(media, RANGE, &ports).unwrap()), Some(ports));
            }
        }
        let nine = value(MediaType::Json, RANGE, &BTreeSet::from([30000, 30009])).unwrap();
        let tree: serde_json::Value = serde_json::from_slice(&nine).unwrap();
        // The number 0x0201.
        assert_eq!((text(&tree["range"]), text(&tree["data"])), ("30000-32767", "AgE="));
    }

    #[test]
    fn ports_outside_the_range_are_not_noted() {
        let stored = value(MediaType::Protobuf, RANGE, &BTreeSet::from([80, 30001, 40000])).unwrap();
        assert_eq!(ports_in(&stored), Some(BTreeSet::from([30001])));
        for bad in
            [&b""[..], b"k8s\0x", b"{}", br#"{"range":"x-y","data":""}"#, br#"{"range":"65535-65535","data":"/w=="}"#]
        {
            assert_eq!(ports_in(bad), None, "{bad:?}");
        }
    }
}
