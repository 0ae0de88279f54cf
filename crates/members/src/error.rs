//! Errors of members.

use std::path::PathBuf;

use crate::version::VersionError;

/// The reason why a member could not be started or kept.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The settings of the member are not valid.
    #[error("{path}: {why}")]
    Settings {
        /// The path of the file.
        path: PathBuf,
        /// The error that was found.
        why: String,
    },
    /// No etcd was found.
    #[error("etcd was not found: looked at {looked}; install etcd {oldest} or newer (https://etcd.io), or name it with --etcd-binary", oldest = crate::version::OLDEST)]
    NotFound {
        /// The places, in order.
        looked: String,
    },
    /// A program that is not an etcd.
    #[error("{path} is not an etcd: {why}")]
    NotEtcd {
        /// The file that was run.
        path: PathBuf,
        /// The answer of the server.
        why: String,
    },
    /// The found release cannot be used.
    #[error("{path}: {why}; install one from https://etcd.io in DIR/bin, or name it with --etcd-binary")]
    Version {
        /// The file of the program.
        path: PathBuf,
        /// Why this release is rejected.
        why: VersionError,
    },
    /// Flags contradict the settings of the member.
    #[error("{flag} is {given}, but the etcd member of this server has {kept} ({path}); {remedy}")]
    Contradiction {
        /// The flag on the command line.
        flag: &'static str,
        /// The value of the flag.
        given: String,
        /// The value in the settings.
        kept: String,
        /// The file with the settings.
        path: PathBuf,
        /// The steps that solve the problem.
        remedy: &'static str,
    },
    /// There is data without settings, or settings without data.
    #[error("{path}: {why}")]
    Layout {
        /// The directory of the member.
        path: PathBuf,
        /// The missing part, and the remedy.
        why: String,
    },
    /// The certificates could not be made.
    #[error("certificates of the etcd member: {0}")]
    Pki(#[from] kelson_pki::PkiError),
    /// TLS could not be set up with the certificates.
    #[error("TLS of the etcd member: {0}")]
    Tls(String),
    /// The listener of a joining server could not be opened.
    #[error(
        "listening on {address} for the check of the cluster: {source}; is another etcd running? --etcd-peer-port changes the port"
    )]
    Listen {
        /// The address and the port.
        address: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The process could not be started, or ended in a way that a restart does not change.
    #[error("etcd {what}{}", if tail.is_empty() { String::new() } else { format!("; its last errors: {tail}") })]
    Ended {
        /// The end of the process.
        what: String,
        /// Its last errors.
        tail: String,
    },
    /// The member was removed from its cluster.
    #[error(
        "this server's etcd member was removed from the cluster; stop the server, move {dir} away and join again with --server and --token"
    )]
    Removed {
        /// The directory of the member.
        dir: PathBuf,
    },
    /// The list of members that a joining member got is not the cluster's any more.
    #[error("the cluster changed while this server joined; ask again")]
    StaleCluster,
    /// The blocking work could not be done.
    #[error("{0}")]
    Lane(#[from] kelson_tasks::LaneError),
    /// etcd rejected a call or did not answer.
    #[error("etcd: {0}")]
    Call(String),
    /// The call needs a member that this cluster does not have.
    #[error("the cluster has no member {name}; it has {members}")]
    NoSuchMember {
        /// The name that was given.
        name: String,
        /// The names of all members.
        members: String,
    },
    /// The removal would leave the cluster without a quorum.
    #[error(
        "removing {name} would leave {up} of {voters} members running, and {needed} are needed; not running: {missing}. Start them \
         first, or use --force"
    )]
    Quorum {
        /// The member to remove.
        name: String,
        /// The voters that would run.
        up: usize,
        /// The voters that would be left.
        voters: usize,
        /// The size of the quorum.
        needed: usize,
        /// The members that do not run.
        missing: String,
    },
    /// The only voter cannot be removed.
    #[error("{0} is the only voter of its cluster and cannot be removed")]
    LastVoter(String),
    /// The member runs, so nothing can take its place.
    #[error("{name} is running at {url}; stop that server before it is replaced, or use --force")]
    Running {
        /// The name of the member.
        name: String,
        /// The URL at which it answered.
        url: String,
    },
}

/// The reason why a server was not admitted to the cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// The name or a URL is not valid.
    #[error("{0}")]
    Invalid(String),
    /// The peer URL does not lead to the joining server.
    #[error(
        "the peer URL {url} of the joining server cannot be reached from {from}: {why}; check its address, --etcd-peer-port and firewalls"
    )]
    Unreachable {
        /// The peer URL of the joining server.
        url: String,
        /// The member that dialled it.
        from: String,
        /// The reason, as the system gives it.
        why: String,
    },
    /// A running member has the name.
    #[error(
        "a running member is named {name} ({url}); a server joins under another --node-name, or after that member has stopped"
    )]
    NameTaken {
        /// The name of the member.
        name: String,
        /// The peer URL of the member that has it.
        url: String,
    },
    /// Another member has the peer URL.
    #[error("the member {name} has the peer URL {url} already; remove it with `kelson member remove {name}`")]
    UrlTaken {
        /// The peer URL of the joining server.
        url: String,
        /// The member that has it.
        name: String,
    },
    /// Another server is joining: etcd has one learner at a time.
    #[error("another server is joining ({learner}); waiting for it")]
    Busy {
        /// The name or the peer URL of the learner.
        learner: String,
    },
    /// The cluster cannot change its members now.
    #[error("the cluster cannot change its members now: {0}")]
    Unavailable(String),
}

impl AdmitError {
    /// Reports whether the same request may succeed later without a change by the administrator.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::Unavailable(_))
    }
}
