//! Messages for locks (`v3lockpb`) and elections (`v3electionpb`).

use bytes::Bytes;

use super::{KeyValue, ResponseHeader};

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct LockRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub name: Bytes,
    #[prost(int64, tag = "2")]
    pub lease: i64,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct LockResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(bytes = "bytes", tag = "2")]
    pub key: Bytes,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UnlockRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
}

/// `UnlockResponse`, `ProclaimResponse`, `ResignResponse` and `AuthDisableResponse`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct HeaderResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
}

/// The leader of an election: its key, and the revision that created it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct LeaderKey {
    #[prost(bytes = "bytes", tag = "1")]
    pub name: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub key: Bytes,
    #[prost(int64, tag = "3")]
    pub rev: i64,
    #[prost(int64, tag = "4")]
    pub lease: i64,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CampaignRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub name: Bytes,
    #[prost(int64, tag = "2")]
    pub lease: i64,
    #[prost(bytes = "bytes", tag = "3")]
    pub value: Bytes,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CampaignResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(message, optional, tag = "2")]
    pub leader: Option<LeaderKey>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ProclaimRequest {
    #[prost(message, optional, tag = "1")]
    pub leader: Option<LeaderKey>,
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct LeaderRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub name: Bytes,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct LeaderResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(message, optional, tag = "2")]
    pub kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ResignRequest {
    #[prost(message, optional, tag = "1")]
    pub leader: Option<LeaderKey>,
}
