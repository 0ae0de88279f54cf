//! Exports the data in etcd's file format (`member/snap/db`): `etcdctl snapshot save` downloads it, and `snapshot
//! restore` creates a member of any etcd from it.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for the disk")]

mod bolt;

use std::fs::File;
use std::io::{self, Seek as _};

use bytes::Bytes;
use prost::Message;

use crate::mvcc::{State, Version, stored_name, stored_value};
use bolt::Bolt;

/// The data to write, as of one revision. Keys and values are shared with the state.
#[derive(Debug)]
pub struct Export {
    versions: Vec<(Bytes, Version)>,
    leases: Vec<(i64, i64)>,
    compacted: i64,
    commits: u64,
}

/// The stored form of a lease in etcd (`leasepb.Lease`).
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct EtcdLease {
    #[prost(int64, tag = "1")]
    id: i64,
    #[prost(int64, tag = "2")]
    ttl: i64,
}

/// Buckets that etcd expects in addition to those with content.
const EMPTY: &[&str] =
    &["alarm", "auth", "authRoles", "authUsers", "cluster", "key", "lease", "members", "members_removed", "meta"];

impl Export {
    /// Reads the state that readers see. `commits` is etcd's consistent index.
    pub fn of(state: &State, commits: u64) -> Self {
        let shown = state.revision();
        let seen = state.versions_after(None).filter(|(_, version)| version.revision.main <= shown);
        let mut versions: Vec<(Bytes, Version)> = seen.map(|(key, version)| (key.clone(), version.clone())).collect();
        versions.sort_unstable_by_key(|(_, version)| version.revision);
        let mut leases: Vec<(i64, i64)> = state.leases().map(|(id, lease)| (id, lease.seconds)).collect();
        // The bucket is ordered by the unsigned value of the IDs.
        leases.sort_unstable_by_key(|(id, _)| id.cast_unsigned());
        Self { versions, leases, compacted: state.compacted(), commits }
    }

    /// Creates the data of a new cluster from versions in any order and leases (ID, seconds). Everything before the
    /// revision `compacted`, which is at least the highest one, is compacted. A member that has no log yet
    /// (`member/wal`) starts with the file as its data, as the first member of a new cluster.
    pub fn new(mut versions: Vec<(Bytes, Version)>, mut leases: Vec<(i64, i64)>, compacted: i64) -> Self {
        versions.sort_unstable_by_key(|(_, version)| version.revision);
        leases.sort_unstable_by_key(|(id, _)| id.cast_unsigned());
        Self { versions, leases, compacted, commits: 0 }
    }

    /// Writes the file from its beginning and seeks back to it; returns its size in bytes.
    ///
    /// # Errors
    /// An I/O error.
    pub fn write(&self, file: &mut File) -> io::Result<u64> {
        let mut bolt = Bolt::new(io::BufWriter::new(&mut *file))?;
        let mut roots = Vec::new();
        for name in EMPTY {
            let root =
                match *name {
                    "key" => bolt.bucket(self.versions.iter().map(|(key, version)| {
                        let name = stored_name(version.revision, version.is_deletion());
                        (name, stored_value(key, version).encode_to_vec())
                    })),
                    "lease" => bolt.bucket(self.leases.iter().map(|(id, ttl)| {
                        (id.to_be_bytes().to_vec(), EtcdLease { id: *id, ttl: *ttl }.encode_to_vec())
                    })),
                    "meta" => bolt.bucket(self.meta().into_iter()),
                    _ => bolt.bucket(std::iter::empty()),
                };
            roots.push((*name, root?));
        }
        let bytes = bolt.end(&roots)?;
        file.rewind()?;
        Ok(bytes)
    }

    /// Returns the pairs of the meta bucket, in order of names.
    fn meta(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        const TERM: u64 = 2;
        let pair = |name: &str, value: Vec<u8>| (name.as_bytes().to_vec(), value);
        let mut pairs = Vec::new();
        // A member skips the entries of its log up to this index. The log of a new cluster begins with 1.
        if self.commits > 0 {
            pairs.push(pair("consistent_index", self.commits.to_be_bytes().to_vec()));
        }
        if self.compacted >= 0 {
            let revision = crate::mvcc::Revision { main: self.compacted, sub: 0 };
            let compacted = stored_name(revision, false);
            pairs.push(pair("finishedCompactRev", compacted.clone()));
            pairs.push(pair("scheduledCompactRev", compacted));
        }
        if self.commits > 0 {
            pairs.push(pair("term", TERM.to_be_bytes().to_vec()));
        }
        pairs
    }
}
