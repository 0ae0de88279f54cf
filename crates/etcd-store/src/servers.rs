//! Leases of API servers: the address of each live server is a key that etcd deletes when the server does not renew
//! it. Upstream's servers keep theirs under the same keys: those of the endpoints of the `kubernetes` service by address
//! (`pkg/controlplane/reconcilers`), those with the address for requests of other servers by identity (KEP-4020,
//! `apiserver/pkg/reconcilers`).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kelson_etcd::client::Client;
use kelson_etcd::proto::{DeleteRangeRequest, KeyValue, LeaseGrantRequest, PutRequest, RangeRequest, request_op};
use kelson_meta::tree::int0;
use kelson_schema::{Schema, TypeId};
use kelson_store::{Key, Resource, StoreError};
use serde_json::{Value, json};
use tonic::transport::Channel;

use crate::connection::when_at;
use crate::core::Core;
use crate::raw;
use crate::value::MediaType;

/// Times that a lease is written again because another server has the same address.
const ATTEMPTS_MAX: usize = 5;

/// The label of a lease with the identity of its server, by which upstream's servers find it.
const IDENTITY_LABEL: &str = "apiserverIdentity";

/// The key of the lease of the server at an address. Its resource is the name under which leases may be encrypted.
pub(crate) fn key_of(server: IpAddr) -> Key {
    Key::new(Resource::new("", "apiserveripinfo"), "", &server.to_string())
}

/// The key of the lease with the address for requests of other servers. Upstream's name of the resource has capital letters, which an
/// encryption configuration cannot have: only a wildcard of the legacy group names it, as it names this one.
pub(crate) fn peer_key_of(id: &str) -> Key {
    Key::new(Resource::new("", "peerserverleases"), "", id)
}

/// A lease of a server.
pub(crate) struct ServerLease {
    key: Key,
    /// Endpoints without a generation.
    object: Value,
}

impl ServerLease {
    /// The lease by which a server is listed in the endpoints of the `kubernetes` service.
    pub fn of_address(server: IpAddr) -> Self {
        let object = json!({"kind": "Endpoints", "apiVersion": "v1", "metadata": {},
            "subsets": [{"addresses": [{"ip": server.to_string()}]}]});
        Self { key: key_of(server), object }
    }

    /// The lease with the address at which other servers reach the one with this identity.
    pub fn of_peer(id: &str, address: SocketAddr) -> Self {
        let object = json!({"kind": "Endpoints", "apiVersion": "v1", "metadata": {"labels": {IDENTITY_LABEL: id}},
            "subsets": [{"addresses": [{"ip": address.ip().to_string()}],
                "ports": [{"name": "https", "port": address.port(), "protocol": "TCP"}]}]});
        Self { key: peer_key_of(id), object }
    }

    /// The value with a generation, which makes each renewal another value: without it the reference would not write it.
    fn value(&self, media: MediaType, generation: i64) -> Result<Vec<u8>, StoreError> {
        let mut object = self.object.clone();
        object["metadata"]["generation"] = generation.into();
        raw::encode(media, endpoints(), &object)
    }
}

/// Makes the lease of a server, or renews it.
///
/// # Errors
/// Etcd cannot be asked; the value cannot be encrypted now.
pub(crate) async fn announce(core: &Arc<Core>, of: ServerLease, life: Duration) -> Result<(), StoreError> {
    let key = &of.key;
    let name = Bytes::from(core.keys.of(key));
    let grant = LeaseGrantRequest { ttl: i64::try_from(life.as_secs()).unwrap_or(i64::MAX), id: 0 };
    // The one before ends by itself: nothing is kept by it any more.
    let call = |mut client: Client<Channel>| async move { client.lease_grant(grant).await };
    let lease = core.connection.read("leaseGrant", call).await?.id;
    for _ in 0..ATTEMPTS_MAX {
        let current = core.connection.range("get", RangeRequest { key: name.clone(), ..Default::default() }).await?;
        let (at, generation) = match current.kvs.into_iter().next() {
            Some(kv) => (u64::try_from(kv.mod_revision).unwrap_or(0), generation(core, key, kv).await?),
            None => (0, 0),
        };
        let value = raw::sealed(core, key, of.value(core.media, generation + 1)?)?;
        let put = PutRequest { key: name.clone(), value: value.into(), lease, ..Default::default() };
        let put = when_at(&name, at, request_op::Request::RequestPut(put));
        if core.connection.txn("update", put).await?.succeeded {
            return Ok(());
        }
    }
    Err(StoreError::Elsewhere(format!("etcd: the lease of {} is renewed by another server", key.name)))
}

/// Ends the lease of a server, as any other object is deleted: not every storage has another way.
///
/// # Errors
/// Etcd cannot be asked; another server renews the same lease all the time.
pub(crate) async fn withdraw(core: &Core, key: Key) -> Result<bool, StoreError> {
    let name = Bytes::from(core.keys.of(&key));
    for _ in 0..ATTEMPTS_MAX {
        let current = core.connection.range("get", RangeRequest { key: name.clone(), ..Default::default() }).await?;
        let Some(kv) = current.kvs.first() else { return Ok(false) };
        let at = u64::try_from(kv.mod_revision).unwrap_or(0);
        let delete = DeleteRangeRequest { key: name.clone(), ..Default::default() };
        let delete = when_at(&name, at, request_op::Request::RequestDeleteRange(delete));
        if core.connection.txn("delete", delete).await?.succeeded {
            return Ok(true);
        }
    }
    Err(StoreError::Elsewhere(format!("etcd: the lease of {} is renewed by another server", key.name)))
}

/// The servers that have a lease. Their addresses are in the keys, so that no value need be read.
///
/// # Errors
/// Etcd cannot be asked.
pub(crate) async fn living(core: &Core) -> Result<Vec<IpAddr>, StoreError> {
    let below = core.keys.below(key_of(IpAddr::from([0, 0, 0, 0])).resource);
    let mut end = below.clone().into_bytes();
    // It ends with a slash.
    end.pop();
    end.push(b'/' + 1);
    let request =
        RangeRequest { key: below.clone().into(), range_end: end.into(), keys_only: true, ..Default::default() };
    let answer = core.connection.range("list", request).await?;
    let address = |kv: &KeyValue| std::str::from_utf8(&kv.key).ok()?.strip_prefix(&below)?.parse().ok();
    Ok(answer.kvs.iter().filter_map(address).collect())
}

fn endpoints() -> Option<TypeId> {
    Schema::builtin().by_gvk("", "v1", "Endpoints")
}

/// Returns the generation of a stored lease, or 0 for one that cannot be read, which is then replaced.
async fn generation(core: &Arc<Core>, key: &Key, stored: KeyValue) -> Result<i64, StoreError> {
    Ok(raw::read(core, key, stored.value, generation_in).await?.unwrap_or(0))
}

fn generation_in(plain: &[u8]) -> Option<i64> {
    Some(int0(&raw::decode(endpoints(), plain)?["metadata"]["generation"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_renewed_by_its_generation() {
        let leases = [
            ServerLease::of_address(IpAddr::from([192, 0, 2, 2])),
            ServerLease::of_peer("apiserver-a", SocketAddr::from(([192, 0, 2, 2], 6443))),
        ];
        for lease in &leases {
            for media in [MediaType::Protobuf, MediaType::Json] {
                assert_eq!(generation_in(&lease.value(media, 7).unwrap()), Some(7));
            }
        }
        assert_eq!(generation_in(b"k8s:enc:aescbc:v1:one:x"), None);
        assert_eq!(generation_in(b""), None);
    }
}
