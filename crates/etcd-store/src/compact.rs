//! Compaction: what was replaced more than an interval ago is forgotten by etcd. All API servers of a cluster, the
//! reference's among them, agree by one key on which of them does it (upstream's `storage/etcd3/compact.go`).

use std::sync::Arc;
use std::time::Duration;

use kelson_etcd::client::Client;
use kelson_etcd::proto::{self, compare, request_op, response_op};
use tonic::transport::Channel;

use crate::connection::{CallError, Connection, revision_of};
use crate::core::Core;

/// Holds the revision that the last round compacted; its version counts the rounds.
pub(crate) const KEY: &str = "compact_rev_key";

/// The state of the compaction rounds as one server knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Round {
    /// The version that the key had.
    version: i64,
    /// The revision that etcd was at then.
    revision: u64,
    /// The revision before which etcd's history has been compacted.
    compacted: u64,
}

/// Compacts for as long as it runs.
pub(crate) async fn run(core: Arc<Core>, every: Duration) {
    let mut known = Round::default();
    loop {
        tokio::time::sleep(every).await;
        match round(&core.connection, known).await {
            Ok(next) => {
                core.mirror.forget_before(next.compacted);
                known = next;
            }
            Err(error) => tracing::warn!(%error, "compacting etcd failed; retrying at the next interval"),
        }
    }
}

/// Runs one round. The server that finds the key unchanged since its last round compacts; the others adopt the values
/// of the key. A round compacts what was replaced before the previous round, so that the history of one interval is
/// always available.
async fn round(connection: &Connection, known: Round) -> Result<Round, CallError> {
    let answer = connection.txn("compact", claim(known)).await?;
    let at = revision_of(answer.header.as_ref());
    if !answer.succeeded {
        let (version, compacted) = read(&answer).unwrap_or_default();
        return Ok(Round { version, revision: at, compacted });
    }
    let next = Round { version: known.version + 1, revision: at, compacted: known.revision };
    if known.revision == 0 {
        return Ok(next);
    }
    let revision = i64::try_from(known.revision).unwrap_or(i64::MAX);
    let request = proto::CompactionRequest { revision, physical: false };
    let call = |mut client: Client<Channel>| async move { client.compact(request).await };
    match connection.read("compact", call).await {
        Ok(_) => tracing::debug!(revision, "compacted etcd"),
        // Another client, perhaps a person, has compacted already.
        Err(CallError::Compacted) => {}
        Err(error) => return Err(error),
    }
    Ok(next)
}

/// Writes the revision that is about to be compacted if the key is as it was left, else reads it.
fn claim(known: Round) -> proto::TxnRequest {
    let value = known.revision.to_string().into_bytes().into();
    let put = proto::PutRequest { key: KEY.into(), value, ..Default::default() };
    let get = proto::RangeRequest { key: KEY.into(), ..Default::default() };
    proto::TxnRequest {
        compare: vec![proto::Compare {
            key: KEY.into(),
            result: compare::CompareResult::Equal as i32,
            target: compare::CompareTarget::Version as i32,
            target_union: Some(compare::TargetUnion::Version(known.version)),
            ..Default::default()
        }],
        success: vec![proto::RequestOp { request: Some(request_op::Request::RequestPut(put)) }],
        failure: vec![proto::RequestOp { request: Some(request_op::Request::RequestRange(get)) }],
    }
}

/// Returns the version of the key and the compacted revision, read from the answer to a claim that another server won.
fn read(answer: &proto::TxnResponse) -> Option<(i64, u64)> {
    let op = answer.responses.first().and_then(|op| op.response.as_ref());
    let Some(response_op::Response::ResponseRange(range)) = op else { return None };
    let kv = range.kvs.first()?;
    let compacted = std::str::from_utf8(&kv.value).ok().and_then(|text| text.parse().ok());
    Some((kv.version, compacted.unwrap_or(0)))
}
