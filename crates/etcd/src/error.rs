//! Why a request is refused: the codes and messages of etcd, which clients compare word by word.

use tonic::{Code, Status};

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A request that names no key.
    #[error("etcdserver: key is not provided")]
    EmptyKey,
    /// A put that keeps the value or lease of a key that is not there, or an operation of no kind.
    #[error("etcdserver: key not found")]
    KeyNotFound,
    /// A put that keeps the value and gives one.
    #[error("etcdserver: value is provided")]
    ValueProvided,
    /// A put that keeps the lease and gives one.
    #[error("etcdserver: lease is provided")]
    LeaseProvided,
    /// A transaction with more operations than `--max-txn-ops`.
    #[error("etcdserver: too many operations in txn request")]
    TooManyOps,
    /// A transaction that would write one key twice.
    #[error("etcdserver: duplicate key given in txn request")]
    DuplicateKey,
    /// An order that the protocol does not have.
    #[error("etcdserver: invalid sort option")]
    InvalidSortOption,
    /// A request of more bytes than `--max-request-bytes`.
    #[error("etcdserver: request is too large")]
    RequestTooLarge,
    /// More requests wait than are taken.
    #[error("etcdserver: too many requests")]
    TooManyRequests,
    /// A revision whose state is no longer known.
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    /// A revision that is not there yet.
    #[error("etcdserver: mvcc: required revision is a future revision")]
    FutureRevision,
    /// The quota is used up, or the disk is full.
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    /// A lease that is not there.
    #[error("etcdserver: requested lease not found")]
    LeaseNotFound,
    /// A lease that is there already.
    #[error("etcdserver: lease already exists")]
    LeaseExists,
    /// A lease for longer than can be counted.
    #[error("etcdserver: too large lease TTL")]
    LeaseTtlTooLarge,
    /// This server has no users.
    #[error("etcdserver: authentication is not enabled")]
    AuthNotEnabled,
    /// A user that is not there, as there are none.
    #[error("etcdserver: user name not found")]
    UserNotFound,
    /// A role that is not there, as there are none.
    #[error("etcdserver: role name not found")]
    RoleNotFound,
    /// A member that is not there.
    #[error("etcdserver: member not found")]
    MemberNotFound,
    /// A change of the members of a cluster that has one.
    #[error("etcdserver: re-configuration failed due to not enough started members")]
    NotEnoughMembers,
    /// A leader that cannot be one.
    #[error("etcdserver: bad leader transferee")]
    BadLeader,
    /// The disk took the request and cannot say whether it kept it, or the server is ending.
    #[error("etcdserver: server stopped")]
    Stopped,
}

impl Error {
    /// The code of gRPC.
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
