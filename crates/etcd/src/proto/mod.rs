//! The messages of etcd's version 3 protocol (`etcdserverpb`, `mvccpb`, `v3lockpb`, `v3electionpb`), field numbers and types as published, and the
//! paths of its methods. Keys and values are [`bytes::Bytes`]: a decoded message shares them with the buffer it came in.
#![allow(missing_docs, reason = "names and meaning of the fields are the protocol's own")]

mod cluster;
mod concurrency;
mod kv;
mod lease;
mod maintenance;
pub mod method;
mod watch;

pub use cluster::{
    AuthListRequest, AuthListResponse, AuthStatusRequest, AuthStatusResponse, Member, MemberAddRequest,
    MemberAddResponse, MemberChangeRequest, MemberChangeResponse, MemberListRequest, MemberListResponse,
    MemberUpdateRequest,
};
pub use concurrency::{
    CampaignRequest, CampaignResponse, HeaderResponse, LeaderKey, LeaderRequest, LeaderResponse, LockRequest,
    LockResponse, ProclaimRequest, ResignRequest, UnlockRequest,
};
pub use kv::{
    CompactionRequest, CompactionResponse, Compare, DeleteRangeRequest, DeleteRangeResponse, KeyValue, PutRequest,
    PutResponse, RangeRequest, RangeResponse, RequestOp, ResponseHeader, ResponseOp, TxnRequest, TxnResponse, compare,
    range_request, request_op, response_op,
};
pub use lease::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest,
    LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse,
};
pub use maintenance::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse, DowngradeInfo,
    HashKvRequest, HashKvResponse, HashRequest, HashResponse, MoveLeaderRequest, MoveLeaderResponse, SnapshotRequest,
    SnapshotResponse, StatusRequest, StatusResponse, alarm_request,
};
pub use watch::{
    Event, WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse, event,
    watch_create_request, watch_request,
};
