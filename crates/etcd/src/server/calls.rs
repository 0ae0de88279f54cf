//! Calls with one request and one answer.

use tonic::Status;

use super::face::Face;
use super::options::{CLUSTER_VERSION, VERSION};
use crate::error::Error;
use crate::mvcc::State;
use crate::proto::*;

/// Fills the header of an answer; without a revision from the store, the visible one is used.
fn fill(face: &Face, header: &mut Option<ResponseHeader>) {
    let revision = header.as_ref().map_or_else(|| face.store.revision(), |header| header.revision);
    *header = Some(face.store.shared().header(revision));
}

fn header(face: &Face) -> Option<ResponseHeader> {
    Some(face.store.shared().header(face.store.revision()))
}

pub(super) fn range(face: &Face, r: &RangeRequest) -> Result<RangeResponse, Status> {
    face.metrics.ranges.inc();
    let mut answer = face.store.range(r)?;
    fill(face, &mut answer.header);
    Ok(answer)
}

pub(super) async fn put(face: &Face, r: PutRequest) -> Result<PutResponse, Status> {
    let mut answer = face.store.put(r).await?;
    face.metrics.puts.inc();
    fill(face, &mut answer.header);
    Ok(answer)
}

pub(super) async fn delete_range(face: &Face, r: DeleteRangeRequest) -> Result<DeleteRangeResponse, Status> {
    let mut answer = face.store.delete_range(r).await?;
    face.metrics.deletes.inc();
    fill(face, &mut answer.header);
    Ok(answer)
}

pub(super) async fn txn(face: &Face, r: TxnRequest) -> Result<TxnResponse, Status> {
    let mut answer = face.store.txn(r).await?;
    face.metrics.txns.inc();
    fill(face, &mut answer.header);
    Ok(answer)
}

pub(super) async fn compact(face: &Face, r: CompactionRequest) -> Result<CompactionResponse, Status> {
    let revision = face.store.compact(r.revision, r.physical).await?;
    Ok(CompactionResponse { header: Some(face.store.shared().header(revision)) })
}

pub(super) async fn lease_grant(face: &Face, r: LeaseGrantRequest) -> Result<LeaseGrantResponse, Status> {
    let (id, ttl) = face.store.grant(r.id, r.ttl).await?;
    face.metrics.leases_granted.inc();
    Ok(LeaseGrantResponse { header: header(face), id, ttl, error: String::new() })
}

pub(super) async fn lease_revoke(face: &Face, r: LeaseRevokeRequest) -> Result<LeaseRevokeResponse, Status> {
    face.store.revoke(r.id).await?;
    face.metrics.leases_revoked.inc();
    Ok(LeaseRevokeResponse { header: header(face) })
}

pub(super) fn lease_time_to_live(face: &Face, r: LeaseTimeToLiveRequest) -> LeaseTimeToLiveResponse {
    // A missing lease is reported by its TTL, not by an error.
    let (ttl, granted_ttl, keys) = face.store.lease(r.id, r.keys).unwrap_or((-1, 0, Vec::new()));
    LeaseTimeToLiveResponse { header: header(face), id: r.id, ttl, granted_ttl, keys }
}

pub(super) fn lease_leases(face: &Face, _: LeaseLeasesRequest) -> LeaseLeasesResponse {
    let mut by_end: Vec<_> = face.store.shared().read(|s| s.leases().map(|(id, l)| (l.ends, id)).collect());
    by_end.sort_unstable();
    let leases = by_end.into_iter().map(|(_, id)| LeaseStatus { id }).collect();
    LeaseLeasesResponse { header: header(face), leases }
}

pub(super) fn member_list(face: &Face, _: MemberListRequest) -> MemberListResponse {
    let member = Member {
        id: face.store.shared().identity().member_id,
        name: face.options.name.clone(),
        peer_urls: face.options.peer_urls.clone(),
        client_urls: face.options.client_urls.clone(),
        is_learner: false,
    };
    MemberListResponse { header: header(face), members: vec![member] }
}

/// Membership changes are rejected, since there is always one member.
pub(super) fn member_change(face: &Face, r: MemberChangeRequest) -> Result<MemberListResponse, Status> {
    let own = r.id == face.store.shared().identity().member_id;
    Err(if own { Error::NotEnoughMembers } else { Error::MemberNotFound }.into())
}

pub(super) async fn alarm(face: &Face, r: AlarmRequest) -> Result<AlarmResponse, Status> {
    let alarms = face.store.alarm(r).await?;
    Ok(AlarmResponse { header: header(face), alarms })
}

pub(super) fn status(face: &Face, _: StatusRequest) -> StatusResponse {
    let shared = face.store.shared();
    let sizes = shared.sizes();
    let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let head = shared.header(face.store.revision());
    let alarms = shared.alarms().into_iter();
    let named = |a: AlarmMember| format!("memberID:{} alarm:{} ", a.member_id, AlarmType::name_of(a.alarm));
    StatusResponse {
        header: Some(head),
        version: VERSION.to_owned(),
        db_size: bytes(sizes.disk.max(sizes.data)),
        leader: head.member_id,
        raft_index: shared.commits(),
        raft_term: head.raft_term,
        raft_applied_index: shared.commits(),
        errors: alarms.map(named).chain(shared.failed()).collect(),
        db_size_in_use: bytes(sizes.data),
        is_learner: false,
        storage_version: CLUSTER_VERSION.to_owned(),
        db_size_quota: bytes(sizes.quota),
        downgrade_info: Some(DowngradeInfo::default()),
    }
}

pub(super) async fn defragment(face: &Face, _: DefragmentRequest) -> Result<DefragmentResponse, Status> {
    face.store.defragment().await?;
    Ok(DefragmentResponse { header: None })
}

pub(super) fn hash(face: &Face, _: HashRequest) -> Result<HashResponse, Status> {
    let (hash, _) = face.store.shared().read(|state| state.hash(0))?;
    Ok(HashResponse { header: header(face), hash })
}

pub(super) fn hash_kv(face: &Face, r: HashKvRequest) -> Result<HashKvResponse, Status> {
    let shared = face.store.shared();
    let of = |state: &State| state.hash(r.revision).map(|(hash, main)| (hash, main, state.compacted()));
    let (hash, hash_revision, compact_revision) = shared.read(of)?;
    Ok(HashKvResponse { header: header(face), hash, compact_revision, hash_revision })
}

pub(super) fn move_leader(face: &Face, r: MoveLeaderRequest) -> Result<MoveLeaderResponse, Status> {
    let own = r.target_id == face.store.shared().identity().member_id;
    if own { Ok(MoveLeaderResponse { header: None }) } else { Err(Error::BadLeader.into()) }
}

pub(super) fn auth_status(face: &Face, _: AuthStatusRequest) -> AuthStatusResponse {
    AuthStatusResponse { header: header(face), enabled: false, auth_revision: 1 }
}

/// Lists users and roles: there are none, and that is not an error unless one is requested by name.
pub(super) fn auth_list(face: &Face, _: AuthListRequest) -> AuthListResponse {
    AuthListResponse { header: header(face), names: Vec::new() }
}

/// There is nothing to disable, which is not an error in etcd either.
pub(super) fn auth_disable(face: &Face, _: AuthStatusRequest) -> HeaderResponse {
    HeaderResponse { header: header(face) }
}

/// Returns the error for calls about users and roles, which do not exist here.
pub(super) fn auth_refused(path: &str) -> Status {
    match path.trim_start_matches("/etcdserverpb.Auth/") {
        "Authenticate" => Error::AuthNotEnabled.into(),
        "UserGet" | "UserDelete" | "UserChangePassword" | "UserGrantRole" | "UserRevokeRole" => {
            Error::UserNotFound.into()
        }
        "RoleGet" | "RoleDelete" | "RoleGrantPermission" | "RoleRevokePermission" => Error::RoleNotFound.into(),
        _ => Status::unimplemented(
            "etcdserver: users and roles are not supported; restrict clients with --client-cert-auth",
        ),
    }
}
