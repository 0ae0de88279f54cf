//! The calls of etcd's protocol over any gRPC channel: one method for each. Retries, deadlines and addresses are left
//! to the caller.

use http::uri::PathAndQuery;
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic::codegen::{Body as HttpBody, StdError};
use tonic::{IntoStreamingRequest, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::proto::{self, method};

/// A client of one server, or of several behind one channel. Cloning it is as cheap as cloning the channel.
#[derive(Clone, Debug)]
pub struct Client<T> {
    grpc: Grpc<T>,
}

impl<T> Client<T>
where
    T: GrpcService<Body>,
    T::Error: Into<StdError>,
    T::ResponseBody: HttpBody<Data = bytes::Bytes> + Send + 'static,
    <T::ResponseBody as HttpBody>::Error: Into<StdError> + Send,
{
    /// Creates a client over a channel. `answer_bytes_max` is the maximum size of an answer.
    pub fn new(channel: T, answer_bytes_max: usize) -> Self {
        let grpc = Grpc::new(channel).max_decoding_message_size(answer_bytes_max);
        Self { grpc }
    }

    /// Returns keys and values of a range.
    ///
    /// # Errors
    /// The status of the server, or [`tonic::Code::Unavailable`] if it could not be reached. This applies to all calls.
    pub async fn range(&mut self, request: proto::RangeRequest) -> Result<proto::RangeResponse, Status> {
        self.unary(method::RANGE, request).await
    }

    /// Writes one key.
    ///
    /// # Errors
    /// As of [`Client::range`].
    pub async fn put(&mut self, request: proto::PutRequest) -> Result<proto::PutResponse, Status> {
        self.unary(method::PUT, request).await
    }

    /// Deletes the keys of a range.
    ///
    /// # Errors
    /// As of [`Client::range`].
    pub async fn delete_range(
        &mut self,
        request: proto::DeleteRangeRequest,
    ) -> Result<proto::DeleteRangeResponse, Status> {
        self.unary(method::DELETE_RANGE, request).await
    }

    /// Runs one of two lists of operations, at one revision, depending on conditions.
    ///
    /// # Errors
    /// As of [`Client::range`].
    pub async fn txn(&mut self, request: proto::TxnRequest) -> Result<proto::TxnResponse, Status> {
        self.unary(method::TXN, request).await
    }

    /// Removes versions that were replaced before a revision.
    ///
    /// # Errors
    /// As of [`Client::range`].
    pub async fn compact(&mut self, request: proto::CompactionRequest) -> Result<proto::CompactionResponse, Status> {
        self.unary(method::COMPACT, request).await
    }

    /// Opens a stream of watches. Requests on it create and cancel watches, and ask for progress.
    ///
    /// # Errors
    /// As of [`Client::range`].
    pub async fn watch(
        &mut self,
        requests: impl IntoStreamingRequest<Message = proto::WatchRequest>,
    ) -> Result<Streaming<proto::WatchResponse>, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static(method::WATCH);
        let codec = ProstCodec::<proto::WatchRequest, proto::WatchResponse>::default();
        self.grpc.streaming(requests.into_streaming_request(), path, codec).await.map(Response::into_inner)
    }

    /// Grants a lease.
    ///
    /// # Errors
    /// As of [`Client::range`].
    pub async fn lease_grant(
        &mut self,
        request: proto::LeaseGrantRequest,
    ) -> Result<proto::LeaseGrantResponse, Status> {
        self.unary(method::LEASE_GRANT, request).await
    }

    /// Revokes a lease and deletes its keys.
    ///
    /// # Errors
    /// As of [`Client::range`].
    pub async fn lease_revoke(
        &mut self,
        request: proto::LeaseRevokeRequest,
    ) -> Result<proto::LeaseRevokeResponse, Status> {
        self.unary(method::LEASE_REVOKE, request).await
    }

    /// Opens a stream on which each request renews a lease.
    ///
    /// # Errors
    /// As of [`Client::range`].
    pub async fn lease_keep_alive(
        &mut self,
        requests: impl IntoStreamingRequest<Message = proto::LeaseKeepAliveRequest>,
    ) -> Result<Streaming<proto::LeaseKeepAliveResponse>, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static(method::LEASE_KEEP_ALIVE);
        let codec = ProstCodec::<proto::LeaseKeepAliveRequest, proto::LeaseKeepAliveResponse>::default();
        self.grpc.streaming(requests.into_streaming_request(), path, codec).await.map(Response::into_inner)
    }

    /// Returns the remaining time of a lease, and its keys if requested.
    ///
    /// # Errors
    /// As of [`Client::range`].
    pub async fn lease_time_to_live(
        &mut self,
        request: proto::LeaseTimeToLiveRequest,
    ) -> Result<proto::LeaseTimeToLiveResponse, Status> {
        self.unary(method::LEASE_TIME_TO_LIVE, request).await
    }

    /// Returns the IDs of all leases.
    ///
    /// # Errors
    /// As of [`Client::range`].
    pub async fn lease_leases(&mut self) -> Result<proto::LeaseLeasesResponse, Status> {
        self.unary(method::LEASE_LEASES, proto::LeaseLeasesRequest {}).await
    }

    /// Returns the members of the cluster.
    ///
    /// # Errors
    /// As of [`Client::range`].
    pub async fn member_list(
        &mut self,
        request: proto::MemberListRequest,
    ) -> Result<proto::MemberListResponse, Status> {
        self.unary(method::MEMBER_LIST, request).await
    }

    /// Adds a member. Etcd accepts one learner at a time, and no voter while that could cost the quorum.
    ///
    /// # Errors
    /// As of [`Client::range`].
    pub async fn member_add(&mut self, request: proto::MemberAddRequest) -> Result<proto::MemberAddResponse, Status> {
        self.unary(method::MEMBER_ADD, request).await
    }

    /// Removes a member. Etcd rejects the call while that could cost the quorum.
    ///
    /// # Errors
    /// As of [`Client::range`].
    pub async fn member_remove(&mut self, id: u64) -> Result<proto::MemberChangeResponse, Status> {
        self.unary(method::MEMBER_REMOVE, proto::MemberChangeRequest { id }).await
    }

    /// Makes a learner a voter. Etcd rejects the call while the learner has not caught up with the leader.
    ///
    /// # Errors
    /// As of [`Client::range`].
    pub async fn member_promote(&mut self, id: u64) -> Result<proto::MemberChangeResponse, Status> {
        self.unary(method::MEMBER_PROMOTE, proto::MemberChangeRequest { id }).await
    }

    /// Replaces the peer URLs of a member.
    ///
    /// # Errors
    /// As of [`Client::range`].
    pub async fn member_update(
        &mut self,
        request: proto::MemberUpdateRequest,
    ) -> Result<proto::MemberChangeResponse, Status> {
        self.unary(method::MEMBER_UPDATE, request).await
    }

    /// Hands leadership to another voter. Only the leader accepts the call.
    ///
    /// # Errors
    /// As of [`Client::range`].
    pub async fn move_leader(&mut self, target_id: u64) -> Result<proto::MoveLeaderResponse, Status> {
        self.unary(method::MOVE_LEADER, proto::MoveLeaderRequest { target_id }).await
    }

    /// Returns version, sizes and errors of the member.
    ///
    /// # Errors
    /// As of [`Client::range`].
    pub async fn status(&mut self) -> Result<proto::StatusResponse, Status> {
        self.unary(method::STATUS, proto::StatusRequest {}).await
    }

    /// Reads, raises or clears alarms.
    ///
    /// # Errors
    /// As of [`Client::range`].
    pub async fn alarm(&mut self, request: proto::AlarmRequest) -> Result<proto::AlarmResponse, Status> {
        self.unary(method::ALARM, request).await
    }

    /// Releases unused space on the disk.
    ///
    /// # Errors
    /// As of [`Client::range`].
    pub async fn defragment(&mut self) -> Result<proto::DefragmentResponse, Status> {
        self.unary(method::DEFRAGMENT, proto::DefragmentRequest {}).await
    }

    /// Returns a hash of all stored versions up to a revision.
    ///
    /// # Errors
    /// As of [`Client::range`].
    pub async fn hash_kv(&mut self, request: proto::HashKvRequest) -> Result<proto::HashKvResponse, Status> {
        self.unary(method::HASH_KV, request).await
    }

    /// Returns a snapshot of the data, in pieces.
    ///
    /// # Errors
    /// As of [`Client::range`].
    pub async fn snapshot(&mut self) -> Result<Streaming<proto::SnapshotResponse>, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static(method::SNAPSHOT);
        let codec = ProstCodec::<proto::SnapshotRequest, proto::SnapshotResponse>::default();
        let request = Request::new(proto::SnapshotRequest {});
        self.grpc.server_streaming(request, path, codec).await.map(Response::into_inner)
    }

    async fn ready(&mut self) -> Result<(), Status> {
        self.grpc.ready().await.map_err(|e| {
            let error: StdError = e.into();
            Status::unavailable(error.to_string())
        })
    }

    async fn unary<Q, A>(&mut self, path: &'static str, request: Q) -> Result<A, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        self.ready().await?;
        let path = PathAndQuery::from_static(path);
        let codec = ProstCodec::<Q, A>::default();
        self.grpc.unary(Request::new(request), path, codec).await.map(Response::into_inner)
    }
}
