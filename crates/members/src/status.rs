//! What each member says of itself: a key in etcd that its server writes and that ends with a lease. `kelson member list` shows
//! it on every server.

use kelson_etcd::proto::{self, request_op};
use serde::{Deserialize, Serialize};
use tonic::Status;

use crate::local::Local;

/// The prefix of the keys, beside the API's own.
const PREFIX: &str = "/kelson/members/status/";
/// The end of the range of keys with that prefix.
const PREFIX_END: &str = "/kelson/members/status0";
/// The lock of a defragmentation.
const LOCK: &str = "/kelson/members/defragment";
/// The lifetime of a status in seconds: three intervals of its renewal.
const TTL_S: i64 = 90;
/// The lifetime of the lock in seconds, longer than a defragmentation takes.
const LOCK_TTL_S: i64 = 600;

/// The state of one member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemberStatus {
    /// The name of the member.
    pub name: String,
    /// Its ID, hexadecimal.
    pub id: String,
    /// The release of etcd.
    pub version: String,
    /// The size of its database file in bytes.
    pub size_bytes: i64,
    /// Bytes in use in that file.
    pub in_use_bytes: i64,
    /// The maximum size of the file in bytes; 0 if it is not known.
    pub quota_bytes: i64,
    /// Whether a defragmentation would release much.
    pub is_fragmented: bool,
    /// The 99th percentile of the duration of a sync in the last minute, in milliseconds; absent for too few syncs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fsync_p99_ms: Option<u64>,
    /// The index of the last applied entry of the log: the lag is the difference to the leader's.
    pub applied_index: u64,
    /// Whether its disk was fast and its heartbeats were in time during the last ten minutes; absent while that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_steady: Option<bool>,
}

fn put(key: &str, value: Vec<u8>, lease: i64) -> proto::RequestOp {
    let put =
        proto::PutRequest { key: key.as_bytes().to_vec().into(), value: value.into(), lease, ..Default::default() };
    proto::RequestOp { request: Some(request_op::Request::RequestPut(put)) }
}

/// Writes the status of the member of this server.
///
/// # Errors
/// etcd cannot be written.
pub(crate) async fn publish(local: &Local, status: &MemberStatus) -> Result<(), Status> {
    let value = serde_json::to_vec(status).map_err(|e| Status::internal(e.to_string()))?;
    let lease = local.grant(TTL_S).await?;
    let success = vec![put(&format!("{PREFIX}{}", status.name), value, lease)];
    local.txn(proto::TxnRequest { success, ..Default::default() }).await.map(drop)
}

/// Returns the status of every member whose server runs.
///
/// # Errors
/// etcd cannot be read.
pub(crate) async fn all(local: &Local) -> Result<Vec<MemberStatus>, Status> {
    let range = proto::RangeRequest { key: PREFIX.into(), range_end: PREFIX_END.into(), ..Default::default() };
    let answer = local.range(range).await?;
    Ok(answer.kvs.iter().filter_map(|kv| serde_json::from_slice(&kv.value).ok()).collect())
}

/// Takes the lock of a defragmentation. Returns its lease, whose revocation releases it, or `None` if a member has it.
///
/// # Errors
/// etcd cannot be written.
pub(crate) async fn lock(local: &Local, name: &str) -> Result<Option<i64>, Status> {
    let lease = local.grant(LOCK_TTL_S).await?;
    let is_free = proto::Compare {
        key: LOCK.into(),
        result: proto::compare::CompareResult::Equal as i32,
        target: proto::compare::CompareTarget::Create as i32,
        target_union: Some(proto::compare::TargetUnion::CreateRevision(0)),
        ..Default::default()
    };
    let success = vec![put(LOCK, name.as_bytes().to_vec(), lease)];
    let taken = local.txn(proto::TxnRequest { compare: vec![is_free], success, ..Default::default() }).await;
    match taken {
        Ok(answer) if answer.succeeded => Ok(Some(lease)),
        other => {
            local.revoke(lease).await?;
            other.map(|_| None)
        }
    }
}
