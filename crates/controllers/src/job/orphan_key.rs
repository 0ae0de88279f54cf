//! The keys of the queue that looks after pods whom no job counts.
use std::fmt;

use kelson_meta::ObjectKey;

/// What to look through.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OrphanKey {
    Pod(ObjectKey),
    /// The pods of a job that is gone or at its end, by its namespace and UID, and those of the namespace that nobody
    /// controls any more.
    OfJob(String, String),
}

impl fmt::Display for OrphanKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(key) => write!(f, "pod {key}"),
            Self::OfJob(namespace, uid) => write!(f, "pods of job {uid} in {namespace}"),
        }
    }
}
