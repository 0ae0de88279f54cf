//! Messages for cluster members, and for authentication.

use super::ResponseHeader;

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Member {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, repeated, tag = "3")]
    pub peer_urls: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub client_urls: Vec<String>,
    #[prost(bool, tag = "5")]
    pub is_learner: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct MemberListRequest {
    #[prost(bool, tag = "1")]
    pub linearizable: bool,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MemberListResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub members: Vec<Member>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MemberAddRequest {
    #[prost(string, repeated, tag = "1")]
    pub peer_urls: Vec<String>,
    #[prost(bool, tag = "2")]
    pub is_learner: bool,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MemberAddResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(message, optional, tag = "2")]
    pub member: Option<Member>,
    #[prost(message, repeated, tag = "3")]
    pub members: Vec<Member>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MemberUpdateRequest {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(string, repeated, tag = "2")]
    pub peer_urls: Vec<String>,
}

/// `MemberRemoveResponse`, `MemberUpdateResponse` and `MemberPromoteResponse`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MemberChangeResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub members: Vec<Member>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct AuthStatusRequest {}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct AuthStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub enabled: bool,
    #[prost(uint64, tag = "3")]
    pub auth_revision: u64,
}

/// `AuthUserListRequest` and `AuthRoleListRequest`, which have no fields.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct AuthListRequest {}

/// `AuthUserListResponse` and `AuthRoleListResponse`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AuthListResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(string, repeated, tag = "2")]
    pub names: Vec<String>,
}

/// The common first field of `MemberRemoveRequest`, `MemberUpdateRequest` and `MemberPromoteRequest`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct MemberChangeRequest {
    #[prost(uint64, tag = "1")]
    pub id: u64,
}
