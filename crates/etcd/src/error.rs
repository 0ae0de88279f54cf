//! Errors of requests: the codes and messages of etcd, which clients compare word by word.

use tonic::{Code, Status};

/// Why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A request without a key.
    #[error("etcdserver: key is not provided")]
    EmptyKey,
    /// A put that keeps the value or lease of a key that does not exist, or an operation without a kind.
    #[error("etcdserver: key not found")]
    KeyNotFound,
    /// A put that both keeps the value and sets one.
    #[error("etcdserver: value is provided")]
    ValueProvided,
    /// A put that both keeps the lease and sets one.
    #[error("etcdserver: lease is provided")]
    LeaseProvided,
    /// A transaction with more operations than `--max-txn-ops`.
    #[error("etcdserver: too many operations in txn request")]
    TooManyOps,
    /// A transaction that would write one key twice.
    #[error("etcdserver: duplicate key given in txn request")]
    DuplicateKey,
    /// A sort option that the protocol does not have.
    #[error("etcdserver: invalid sort option")]
    InvalidSortOption,
    /// A request of more bytes than `--max-request-bytes`.
    #[error("etcdserver: request is too large")]
    RequestTooLarge,
    /// Too many requests are waiting.
    #[error("etcdserver: too many requests")]
    TooManyRequests,
    /// A revision that was compacted.
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    /// A revision that does not exist yet.
    #[error("etcdserver: mvcc: required revision is a future revision")]
    FutureRevision,
    /// The quota is exceeded, or the disk is full.
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    /// A lease that does not exist.
    #[error("etcdserver: requested lease not found")]
    LeaseNotFound,
    /// A lease that exists already.
    #[error("etcdserver: lease already exists")]
    LeaseExists,
    /// A lease with a TTL that is too large.
    #[error("etcdserver: too large lease TTL")]
    LeaseTtlTooLarge,
    /// Authentication is not enabled; this server has no users.
    #[error("etcdserver: authentication is not enabled")]
    AuthNotEnabled,
    /// A user that does not exist, since there are none.
    #[error("etcdserver: user name not found")]
    UserNotFound,
    /// A role that does not exist, since there are none.
    #[error("etcdserver: role name not found")]
    RoleNotFound,
    /// A member that does not exist.
    #[error("etcdserver: member not found")]
    MemberNotFound,
    /// A membership change of a cluster with one member.
    #[error("etcdserver: re-configuration failed due to not enough started members")]
    NotEnoughMembers,
    /// A member that cannot become the leader.
    #[error("etcdserver: bad leader transferee")]
    BadLeader,
    /// The disk failed while storing the request, or the server is stopping.
    #[error("etcdserver: server stopped")]
    Stopped,
}

impl Error {
    /// Returns the gRPC status code.
    pub fn code(self) -> Code {
        match self {
            Self::EmptyKey
            | Self::KeyNotFound
            | Self::ValueProvided
            | Self::LeaseProvided
            | Self::TooManyOps
            | Self::DuplicateKey
            | Self::InvalidSortOption
            | Self::RequestTooLarge => Code::InvalidArgument,
            Self::TooManyRequests | Self::NoSpace => Code::ResourceExhausted,
            Self::Compacted | Self::FutureRevision | Self::LeaseTtlTooLarge => Code::OutOfRange,
            Self::LeaseNotFound | Self::MemberNotFound => Code::NotFound,
            Self::LeaseExists
            | Self::AuthNotEnabled
            | Self::UserNotFound
            | Self::RoleNotFound
            | Self::NotEnoughMembers
            | Self::BadLeader => Code::FailedPrecondition,
            Self::Stopped => Code::Unavailable,
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
