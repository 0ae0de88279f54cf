//! Locks and elections (`server/etcdserver/api/v3lock`, `v3election`): the client that created the first of the keys
//! below a name holds it, with a lease. The keys are those of etcd's Go client (`client/v3/concurrency`), so that both
//! kinds of clients interoperate.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};
use kelson_tasks::OnPanic;
use tonic::Status;

use super::face::Face;
use super::streams::watch;
use crate::proto::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::proto::range_request::{SortOrder, SortTarget};
use crate::proto::{request_op, response_op, watch_request, *};

/// The TTL in seconds of a lease for a request that names none.
const LEASE_S: i64 = 60;

type Waiting = BoxStream<'static, Result<WatchResponse, Status>>;

pub(super) async fn lock(face: Arc<Face>, r: LockRequest) -> Result<LockResponse, Status> {
    let lease = lease(&face, r.lease).await?;
    let prefix = below(&r.name);
    let key = key_of(&prefix, lease);
    let (created, _) = enter(&face, &key, Bytes::new(), lease).await?;
    let entered = Entered { face: Arc::clone(&face), key: Some(key.clone()) };
    wait_for_turn(&face, &prefix, created, lease).await?;
    // The lease may have ended meanwhile.
    if value_of(&face, &key)?.is_none() {
        return Err(Status::unknown("mutex: session is expired"));
    }
    entered.stays();
    Ok(LockResponse { header: header(&face), key })
}

pub(super) async fn unlock(face: Arc<Face>, r: UnlockRequest) -> Result<HeaderResponse, Status> {
    face.store.delete_range(DeleteRangeRequest { key: r.key, ..Default::default() }).await?;
    Ok(HeaderResponse { header: header(&face) })
}

pub(super) async fn campaign(face: Arc<Face>, r: CampaignRequest) -> Result<CampaignResponse, Status> {
    let lease = lease(&face, r.lease).await?;
    let prefix = below(&r.name);
    let key = key_of(&prefix, lease);
    let (rev, before) = enter(&face, &key, r.value.clone(), lease).await?;
    let leader = LeaderKey { name: r.name, key: key.clone(), rev, lease };
    let entered = Entered { face: Arc::clone(&face), key: Some(key) };
    if before.is_some_and(|before| before != r.value) {
        put_if_leading(&face, &leader, Some(r.value)).await?;
    }
    wait_for_turn(&face, &prefix, rev, lease).await?;
    entered.stays();
    Ok(CampaignResponse { header: header(&face), leader: Some(leader) })
}

pub(super) async fn proclaim(face: Arc<Face>, r: ProclaimRequest) -> Result<HeaderResponse, Status> {
    put_if_leading(&face, &given(r.leader)?, Some(r.value)).await?;
    Ok(HeaderResponse { header: header(&face) })
}

pub(super) async fn resign(face: Arc<Face>, r: ResignRequest) -> Result<HeaderResponse, Status> {
    let resigned = put_if_leading(&face, &given(r.leader)?, None).await;
    // A client that is not the leader has nothing to resign.
    resigned.or_else(|status| if status.message() == NOT_LEADER { Ok(()) } else { Err(status) })?;
    Ok(HeaderResponse { header: header(&face) })
}

pub(super) fn leader(face: &Face, r: &LeaderRequest) -> Result<LeaderResponse, Status> {
    let kv = first(face, &below(&r.name))?.ok_or_else(|| Status::unknown("election: no leader"))?;
    Ok(LeaderResponse { header: header(face), kv: Some(kv) })
}

/// Sends the leader, now and after each change.
pub(super) fn observe(
    face: &Arc<Face>,
    r: &LeaderRequest,
) -> impl Stream<Item = Result<LeaderResponse, Status>> + Send + use<> {
    let prefix = below(&r.name);
    let changes = changes(face, prefix.clone(), end_of(&prefix), face.store.revision() + 1);
    let begun = (Arc::clone(face), prefix, changes, 0);
    futures::stream::unfold(Some(begun), |state| async {
        let (face, prefix, mut changes, mut reported) = state?;
        loop {
            match first(&face, &prefix) {
                Ok(Some(kv)) if kv.mod_revision != reported => {
                    reported = kv.mod_revision;
                    let answer = LeaderResponse { header: header(&face), kv: Some(kv) };
                    return Some((Ok(answer), Some((face, prefix, changes, reported))));
                }
                Ok(_) => {}
                Err(status) => return Some((Err(status), None)),
            }
            if let Err(status) = next(&mut changes).await {
                return Some((Err(status), None));
            }
        }
    })
}

const NOT_LEADER: &str = "election: not leader";

fn given(leader: Option<LeaderKey>) -> Result<LeaderKey, Status> {
    leader.ok_or_else(|| Status::unknown("\"leader\" field must be provided"))
}

fn header(face: &Face) -> Option<ResponseHeader> {
    Some(face.store.shared().header(face.store.revision()))
}

fn below(name: &[u8]) -> Bytes {
    [name, b"/"].concat().into()
}

/// Returns the end of the range of keys with this prefix: the next name of the same length.
fn end_of(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    // The prefix ends with a slash.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end.into()
}

fn key_of(prefix: &[u8], lease: i64) -> Bytes {
    [prefix, format!("{lease:x}").as_bytes()].concat().into()
}

/// Returns the lease of a request, or grants a new one.
async fn lease(face: &Face, named: i64) -> Result<i64, Status> {
    if named != 0 {
        return Ok(named);
    }
    Ok(face.store.grant(0, LEASE_S).await?.0)
}

/// Creates the key of a lease unless it exists; returns the revision that created it, and its value if it existed.
async fn enter(face: &Face, key: &Bytes, value: Bytes, lease: i64) -> Result<(i64, Option<Bytes>), Status> {
    let put = PutRequest { key: key.clone(), value, lease, ..Default::default() };
    let get = RangeRequest { key: key.clone(), ..Default::default() };
    let txn = TxnRequest {
        compare: vec![made_at(key, 0)],
        success: vec![RequestOp { request: Some(request_op::Request::RequestPut(put)) }],
        failure: vec![RequestOp { request: Some(request_op::Request::RequestRange(get)) }],
    };
    let answer = face.store.txn(txn).await?;
    let revision = answer.header.map_or(0, |header| header.revision);
    let before = answer.responses.into_iter().find_map(|op| match op.response {
        Some(response_op::Response::ResponseRange(range)) => range.kvs.into_iter().next(),
        _ => None,
    });
    Ok(before.map_or((revision, None), |kv| (kv.create_revision, Some(kv.value))))
}

fn made_at(key: &Bytes, revision: i64) -> Compare {
    Compare {
        key: key.clone(),
        result: CompareResult::Equal as i32,
        target: CompareTarget::Create as i32,
        target_union: Some(TargetUnion::CreateRevision(revision)),
        ..Default::default()
    }
}

/// Writes the leader's key, or deletes it, if it still has the same creation revision.
async fn put_if_leading(face: &Face, leader: &LeaderKey, value: Option<Bytes>) -> Result<(), Status> {
    let (key, lease) = (leader.key.clone(), leader.lease);
    let op = match value {
        Some(value) => request_op::Request::RequestPut(PutRequest { key, value, lease, ..Default::default() }),
        None => request_op::Request::RequestDeleteRange(DeleteRangeRequest { key, ..Default::default() }),
    };
    let txn = TxnRequest {
        compare: vec![made_at(&leader.key, leader.rev)],
        success: vec![RequestOp { request: Some(op) }],
        failure: Vec::new(),
    };
    let done = face.store.txn(txn).await?.succeeded;
    if done { Ok(()) } else { Err(Status::unknown(NOT_LEADER)) }
}

fn value_of(face: &Face, key: &Bytes) -> Result<Option<KeyValue>, Status> {
    let range = RangeRequest { key: key.clone(), ..Default::default() };
    Ok(face.store.range(&range)?.kvs.into_iter().next())
}

/// Returns the key that was created first.
fn first(face: &Face, prefix: &Bytes) -> Result<Option<KeyValue>, Status> {
    let range = RangeRequest {
        key: prefix.clone(),
        range_end: end_of(prefix),
        limit: 1,
        sort_order: SortOrder::Ascend as i32,
        sort_target: SortTarget::Create as i32,
        ..Default::default()
    };
    Ok(face.store.range(&range)?.kvs.into_iter().next())
}

/// Waits until no key with an earlier creation revision is left, and renews the lease meanwhile.
async fn wait_for_turn(face: &Arc<Face>, prefix: &Bytes, created: i64, lease: i64) -> Result<(), Status> {
    let turn = async {
        let before = RangeRequest {
            key: prefix.clone(),
            range_end: end_of(prefix),
            limit: 1,
            sort_order: SortOrder::Descend as i32,
            sort_target: SortTarget::Create as i32,
            max_create_revision: created - 1,
            ..Default::default()
        };
        loop {
            let answer = face.store.range(&before)?;
            let Some(kv) = answer.kvs.into_iter().next() else { return Ok::<(), Status>(()) };
            let from = answer.header.map_or(face.store.revision(), |header| header.revision) + 1;
            let mut changes = changes(face, kv.key, Bytes::new(), from);
            while !next(&mut changes).await?.iter().any(|e| e.r#type == event::EventType::Delete as i32) {}
        }
    };
    tokio::select! {
        done = turn => done,
        never = keep_alive(face, lease) => match never {},
    }
}

async fn keep_alive(face: &Face, lease: i64) -> std::convert::Infallible {
    loop {
        let seconds = match face.store.renew(lease) {
            Ok(seconds) => u64::try_from(seconds).unwrap_or(1),
            // It has ended with its keys, which the wait finds out at its end.
            Err(_) => std::future::pending().await,
        };
        tokio::time::sleep(Duration::from_secs(seconds) / 3).await;
    }
}

/// Returns the changes of a range of keys from a revision on.
fn changes(face: &Face, key: Bytes, range_end: Bytes, start_revision: i64) -> Waiting {
    let create = WatchCreateRequest { key, range_end, start_revision, ..Default::default() };
    let create = WatchRequest { request_union: Some(watch_request::RequestUnion::CreateRequest(create)) };
    watch(face, futures::stream::iter([Ok(create)]).chain(futures::stream::pending()).boxed()).boxed()
}

async fn next(changes: &mut Waiting) -> Result<Vec<Event>, Status> {
    match changes.next().await {
        Some(Ok(answer)) if answer.canceled => Err(crate::Error::Compacted.into()),
        Some(answer) => Ok(answer?.events),
        None => Err(crate::Error::Stopped.into()),
    }
}

/// A waiting key. It is removed if the client disconnects, so that it does not block others.
struct Entered {
    face: Arc<Face>,
    key: Option<Bytes>,
}

impl Entered {
    fn stays(mut self) {
        self.key = None;
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let Some(key) = self.key.take() else { return };
        let store = self.face.store.clone();
        self.face.tasks.spawn("etcd-lock-left", OnPanic::Contain, async move {
            let delete = DeleteRangeRequest { key, ..Default::default() };
            if let Err(error) = store.delete_range(delete).await {
                tracing::debug!(%error, "releasing an abandoned lock failed; it is held until its lease expires");
            }
        });
    }
}
