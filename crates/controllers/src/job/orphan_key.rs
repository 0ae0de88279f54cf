//! The keys of the queue for pods that no job counts.
use std::fmt;

use kelson_meta::ObjectKey;

/// The pods to check.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OrphanKey {
    Pod(ObjectKey),
    /// The pods of a deleted or finished job, by its namespace and UID, and the pods of the namespace without a
    /// controller.
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
