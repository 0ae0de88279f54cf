//! Messages of containerd's own services that an import calls (`containerd/api/services/{leases,content,images}/v1`).
use std::collections::BTreeMap;

use prost::Message;

// The fields of containerd's messages that an import needs. Unknown fields of answers are skipped.

#[derive(Clone, PartialEq, Message)]
pub(super) struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct FieldMask {
    #[prost(string, repeated, tag = "1")]
    pub(super) paths: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CreateLease {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub(super) labels: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Lease {
    #[prost(string, tag = "1")]
    pub(super) id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseAnswer {
    #[prost(message, optional, tag = "1")]
    pub(super) lease: Option<Lease>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeleteLease {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(bool, tag = "2")]
    pub(super) sync: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(super) enum WriteAction {
    Stat = 0,
    Write = 1,
    Commit = 2,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WriteContent {
    #[prost(enumeration = "WriteAction", tag = "1")]
    pub(super) action: i32,
    #[prost(string, tag = "2")]
    pub(super) reference: String,
    #[prost(int64, tag = "3")]
    pub(super) total: i64,
    #[prost(string, tag = "4")]
    pub(super) expected: String,
    #[prost(int64, tag = "5")]
    pub(super) offset: i64,
    #[prost(bytes = "vec", tag = "6")]
    pub(super) data: Vec<u8>,
    #[prost(btree_map = "string, string", tag = "7")]
    pub(super) labels: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WriteAnswer {
    #[prost(int64, tag = "4")]
    pub(super) offset: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AbortContent {
    #[prost(string, tag = "1")]
    pub(super) reference: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Info {
    #[prost(string, tag = "1")]
    pub(super) digest: String,
    #[prost(btree_map = "string, string", tag = "5")]
    pub(super) labels: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct UpdateContent {
    #[prost(message, optional, tag = "1")]
    pub(super) info: Option<Info>,
    #[prost(message, optional, tag = "2")]
    pub(super) update_mask: Option<FieldMask>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TargetDescriptor {
    #[prost(string, tag = "1")]
    pub(super) media_type: String,
    #[prost(string, tag = "2")]
    pub(super) digest: String,
    #[prost(int64, tag = "3")]
    pub(super) size: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ImageRecord {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, optional, tag = "3")]
    pub(super) target: Option<TargetDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CreateImage {
    #[prost(message, optional, tag = "1")]
    pub(super) image: Option<ImageRecord>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct UpdateImage {
    #[prost(message, optional, tag = "1")]
    pub(super) image: Option<ImageRecord>,
    #[prost(message, optional, tag = "2")]
    pub(super) update_mask: Option<FieldMask>,
}
