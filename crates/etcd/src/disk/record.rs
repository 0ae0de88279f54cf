//! The stored records, as protobuf messages: fields may be added, numbers never change their meaning.

use bytes::Bytes;
use prost::Message;

use crate::mvcc::{Change, Revision, Version};

/// The format version of the files.
pub(super) const FORMAT: u64 = 1;

/// One stored record.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Record {
    #[prost(oneof = "Entry", tags = "1, 2, 3, 4, 5, 6, 7, 8")]
    pub(super) entry: Option<Entry>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Entry {
    /// The first record of a snapshot and of the first log.
    #[prost(message, tag = "1")]
    Identity(Identity),
    #[prost(message, tag = "2")]
    Version(StoredVersion),
    /// All revisions before this one are compacted.
    #[prost(int64, tag = "3")]
    Compacted(i64),
    #[prost(message, tag = "4")]
    Grant(StoredLease),
    /// The lease with this ID has ended.
    #[prost(int64, tag = "5")]
    LeaseEnded(i64),
    /// All active alarms, by their numbers in the protocol.
    #[prost(message, tag = "6")]
    Alarms(Alarms),
    /// The store reached this revision, though its last changes may have been compacted.
    #[prost(int64, tag = "7")]
    Revision(i64),
    /// Ends a snapshot, with the number of records before it.
    #[prost(uint64, tag = "8")]
    End(u64),
}

/// The identity of a store: chosen once, the same after each start.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Identity {
    #[prost(uint64, tag = "1")]
    pub(super) format: u64,
    /// The cluster ID in answers.
    #[prost(fixed64, tag = "2")]
    pub cluster_id: u64,
    /// The ID of its only member.
    #[prost(fixed64, tag = "3")]
    pub member_id: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StoredVersion {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    #[prost(int64, tag = "2")]
    pub main: i64,
    #[prost(uint32, tag = "3")]
    pub sub: u32,
    #[prost(int64, tag = "4")]
    pub created: i64,
    #[prost(int64, tag = "5")]
    pub number: i64,
    #[prost(int64, tag = "6")]
    pub lease: i64,
    #[prost(bytes = "bytes", tag = "7")]
    pub value: Bytes,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct StoredLease {
    #[prost(int64, tag = "1")]
    pub id: i64,
    #[prost(int64, tag = "2")]
    pub seconds: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Alarms {
    #[prost(int32, repeated, tag = "1")]
    pub on: Vec<i32>,
}

impl Identity {
    /// Creates the identity of a new store.
    pub fn new(cluster_id: u64, member_id: u64) -> Self {
        Self { format: FORMAT, cluster_id, member_id }
    }
}

impl Record {
    fn of(entry: Entry) -> Self {
        Self { entry: Some(entry) }
    }

    /// A record for the identity of the store.
    pub fn identity(identity: Identity) -> Self {
        Self::of(Entry::Identity(identity))
    }

    /// A record for a version of a key.
    pub fn version(key: &Bytes, version: &Version) -> Self {
        Self::of(Entry::Version(StoredVersion {
            key: key.clone(),
            main: version.revision.main,
            sub: version.revision.sub,
            created: version.created,
            number: version.number,
            lease: version.lease,
            value: version.value.clone(),
        }))
    }

    /// A record for a change with its version.
    pub fn change((change, version): (&Change, &Version)) -> Self {
        Self::version(&change.key, version)
    }

    /// A record that revisions before this one are compacted.
    pub fn compacted(main: i64) -> Self {
        Self::of(Entry::Compacted(main))
    }

    /// A record for the revision of the store.
    pub fn revision(main: i64) -> Self {
        Self::of(Entry::Revision(main))
    }

    /// A record for a granted lease.
    pub fn grant(id: i64, seconds: i64) -> Self {
        Self::of(Entry::Grant(StoredLease { id, seconds }))
    }

    /// A record that a lease has ended.
    pub fn lease_ended(id: i64) -> Self {
        Self::of(Entry::LeaseEnded(id))
    }

    /// A record for the active alarms; all others are inactive.
    pub fn alarms(on: Vec<i32>) -> Self {
        Self::of(Entry::Alarms(Alarms { on }))
    }

    pub(super) fn end(records: u64) -> Self {
        Self::of(Entry::End(records))
    }
}

impl StoredVersion {
    pub fn version(self) -> (Bytes, Version) {
        let revision = Revision { main: self.main, sub: self.sub };
        let Self { created, number, lease, value, .. } = self;
        (self.key, Version { revision, created, number, lease, value })
    }
}

/// Encodes records one after the other.
pub(super) fn encode(records: &[Record], into: &mut Vec<u8>) {
    for record in records {
        // Encoding into a vector cannot fail.
        let _ = record.encode_length_delimited(into);
    }
}

/// Decodes records; an item is `None` if the bytes are invalid.
pub(super) fn decode(mut bytes: &[u8]) -> impl Iterator<Item = Option<Entry>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let entry = Record::decode_length_delimited(&mut bytes).ok().and_then(|record| record.entry);
        if entry.is_none() {
            bytes = &[];
        }
        Some(entry)
    })
}
