//! The fields of messages by their JSON names: those of etcd's definitions, as its gateway is configured.

/// The type of a field.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// Base64 in JSON.
    Bytes,
    Text,
    Bool,
    /// A 64-bit integer, which is a string in JSON.
    Int,
    Uint,
    /// A 32-bit integer, which is a number in JSON.
    Uint32,
    /// An enumeration: names by number.
    Enum(&'static [&'static str]),
    Message(&'static Message),
}

#[derive(Clone, Copy)]
pub(super) struct Field {
    pub number: u32,
    pub name: &'static str,
    pub kind: Kind,
    pub repeated: bool,
}

/// The fields of a message.
pub(super) struct Message(pub &'static [Field]);

const fn f(number: u32, name: &'static str, kind: Kind) -> Field {
    Field { number, name, kind, repeated: false }
}

const fn many(number: u32, name: &'static str, kind: Kind) -> Field {
    Field { number, name, kind, repeated: true }
}

const fn header() -> Field {
    f(1, "header", Kind::Message(&HEADER))
}

use Kind::{Bool, Bytes, Enum, Int, Text, Uint, Uint32};

const RESULTS: &[&str] = &["EQUAL", "GREATER", "LESS", "NOT_EQUAL"];
const TARGETS: &[&str] = &["VERSION", "CREATE", "MOD", "VALUE", "LEASE"];
const ALARMS: &[&str] = &["NONE", "NOSPACE", "CORRUPT"];

pub(super) static EMPTY: Message = Message(&[]);
pub(super) static HEADER_ALONE: Message = Message(&[header()]);

static HEADER: Message =
    Message(&[f(1, "cluster_id", Uint), f(2, "member_id", Uint), f(3, "revision", Int), f(4, "raft_term", Uint)]);
static KEY_VALUE: Message = Message(&[
    f(1, "key", Bytes),
    f(2, "create_revision", Int),
    f(3, "mod_revision", Int),
    f(4, "version", Int),
    f(5, "value", Bytes),
    f(6, "lease", Int),
]);
pub(super) static RANGE: Message = Message(&[
    f(1, "key", Bytes),
    f(2, "range_end", Bytes),
    f(3, "limit", Int),
    f(4, "revision", Int),
    f(5, "sort_order", Enum(&["NONE", "ASCEND", "DESCEND"])),
    f(6, "sort_target", Enum(&["KEY", "VERSION", "CREATE", "MOD", "VALUE"])),
    f(7, "serializable", Bool),
    f(8, "keys_only", Bool),
    f(9, "count_only", Bool),
    f(10, "min_mod_revision", Int),
    f(11, "max_mod_revision", Int),
    f(12, "min_create_revision", Int),
    f(13, "max_create_revision", Int),
]);
pub(super) static RANGED: Message =
    Message(&[header(), many(2, "kvs", Kind::Message(&KEY_VALUE)), f(3, "more", Bool), f(4, "count", Int)]);
pub(super) static PUT: Message = Message(&[
    f(1, "key", Bytes),
    f(2, "value", Bytes),
    f(3, "lease", Int),
    f(4, "prev_kv", Bool),
    f(5, "ignore_value", Bool),
    f(6, "ignore_lease", Bool),
]);
pub(super) static WAS_PUT: Message = Message(&[header(), f(2, "prev_kv", Kind::Message(&KEY_VALUE))]);
pub(super) static DELETE: Message = Message(&[f(1, "key", Bytes), f(2, "range_end", Bytes), f(3, "prev_kv", Bool)]);
pub(super) static DELETED: Message =
    Message(&[header(), f(2, "deleted", Int), many(3, "prev_kvs", Kind::Message(&KEY_VALUE))]);
static COMPARE: Message = Message(&[
    f(1, "result", Enum(RESULTS)),
    f(2, "target", Enum(TARGETS)),
    f(3, "key", Bytes),
    f(4, "version", Int),
    f(5, "create_revision", Int),
    f(6, "mod_revision", Int),
    f(7, "value", Bytes),
    f(8, "lease", Int),
    f(64, "range_end", Bytes),
]);
static OPERATION: Message = Message(&[
    f(1, "request_range", Kind::Message(&RANGE)),
    f(2, "request_put", Kind::Message(&PUT)),
    f(3, "request_delete_range", Kind::Message(&DELETE)),
    f(4, "request_txn", Kind::Message(&TXN)),
]);
static OUTCOME: Message = Message(&[
    f(1, "response_range", Kind::Message(&RANGED)),
    f(2, "response_put", Kind::Message(&WAS_PUT)),
    f(3, "response_delete_range", Kind::Message(&DELETED)),
    f(4, "response_txn", Kind::Message(&TXN_DONE)),
]);
pub(super) static TXN: Message = Message(&[
    many(1, "compare", Kind::Message(&COMPARE)),
    many(2, "success", Kind::Message(&OPERATION)),
    many(3, "failure", Kind::Message(&OPERATION)),
]);
pub(super) static TXN_DONE: Message =
    Message(&[header(), f(2, "succeeded", Bool), many(3, "responses", Kind::Message(&OUTCOME))]);
pub(super) static COMPACTION: Message = Message(&[f(1, "revision", Int), f(2, "physical", Bool)]);

pub(super) static WATCH: Message = Message(&[
    f(1, "create_request", Kind::Message(&CREATE_WATCH)),
    f(2, "cancel_request", Kind::Message(&CANCEL_WATCH)),
    f(3, "progress_request", Kind::Message(&EMPTY)),
]);
static CREATE_WATCH: Message = Message(&[
    f(1, "key", Bytes),
    f(2, "range_end", Bytes),
    f(3, "start_revision", Int),
    f(4, "progress_notify", Bool),
    many(5, "filters", Enum(&["NOPUT", "NODELETE"])),
    f(6, "prev_kv", Bool),
    f(7, "watch_id", Int),
    f(8, "fragment", Bool),
]);
static CANCEL_WATCH: Message = Message(&[f(1, "watch_id", Int)]);
static EVENT: Message = Message(&[
    f(1, "type", Enum(&["PUT", "DELETE"])),
    f(2, "kv", Kind::Message(&KEY_VALUE)),
    f(3, "prev_kv", Kind::Message(&KEY_VALUE)),
]);
pub(super) static WATCHED: Message = Message(&[
    header(),
    f(2, "watch_id", Int),
    f(3, "created", Bool),
    f(4, "canceled", Bool),
    f(5, "compact_revision", Int),
    f(6, "cancel_reason", Text),
    f(7, "fragment", Bool),
    many(11, "events", Kind::Message(&EVENT)),
]);

pub(super) static GRANT: Message = Message(&[f(1, "TTL", Int), f(2, "ID", Int)]);
pub(super) static GRANTED: Message = Message(&[header(), f(2, "ID", Int), f(3, "TTL", Int), f(4, "error", Text)]);
/// A message with the ID of a lease or of a member.
pub(super) static BY_ID: Message = Message(&[f(1, "ID", Int)]);
pub(super) static KEPT_ALIVE: Message = Message(&[header(), f(2, "ID", Int), f(3, "TTL", Int)]);
pub(super) static TIME_TO_LIVE: Message = Message(&[f(1, "ID", Int), f(2, "keys", Bool)]);
pub(super) static LIVES: Message =
    Message(&[header(), f(2, "ID", Int), f(3, "TTL", Int), f(4, "grantedTTL", Int), many(5, "keys", Bytes)]);
pub(super) static LEASES: Message = Message(&[header(), many(2, "leases", Kind::Message(&BY_ID))]);

static MEMBER: Message = Message(&[
    f(1, "ID", Uint),
    f(2, "name", Text),
    many(3, "peerURLs", Text),
    many(4, "clientURLs", Text),
    f(5, "isLearner", Bool),
]);
pub(super) static LIST_MEMBERS: Message = Message(&[f(1, "linearizable", Bool)]);
pub(super) static MEMBERS: Message = Message(&[header(), many(2, "members", Kind::Message(&MEMBER))]);
pub(super) static MEMBER_BY_ID: Message = Message(&[f(1, "ID", Uint)]);

pub(super) static ALARM: Message = Message(&[
    f(1, "action", Enum(&["GET", "ACTIVATE", "DEACTIVATE"])),
    f(2, "memberID", Uint),
    f(3, "alarm", Enum(ALARMS)),
]);
static RAISED: Message = Message(&[f(1, "memberID", Uint), f(2, "alarm", Enum(ALARMS))]);
pub(super) static RAISED_ALL: Message = Message(&[header(), many(2, "alarms", Kind::Message(&RAISED))]);
static DOWNGRADE: Message = Message(&[f(1, "enabled", Bool), f(2, "targetVersion", Text)]);
pub(super) static STATUS: Message = Message(&[
    header(),
    f(2, "version", Text),
    f(3, "dbSize", Int),
    f(4, "leader", Uint),
    f(5, "raftIndex", Uint),
    f(6, "raftTerm", Uint),
    f(7, "raftAppliedIndex", Uint),
    many(8, "errors", Text),
    f(9, "dbSizeInUse", Int),
    f(10, "isLearner", Bool),
    f(11, "storageVersion", Text),
    f(12, "dbSizeQuota", Int),
    f(13, "downgradeInfo", Kind::Message(&DOWNGRADE)),
]);
pub(super) static HASHED: Message = Message(&[header(), f(2, "hash", Uint32)]);
pub(super) static HASH_KV: Message = Message(&[f(1, "revision", Int)]);
pub(super) static HASHED_KV: Message =
    Message(&[header(), f(2, "hash", Uint32), f(3, "compact_revision", Int), f(4, "hash_revision", Int)]);
pub(super) static SNAPSHOT: Message =
    Message(&[header(), f(2, "remaining_bytes", Uint), f(3, "blob", Bytes), f(4, "version", Text)]);
pub(super) static MOVE_LEADER: Message = Message(&[f(1, "targetID", Uint)]);

pub(super) static AUTH_STATUS: Message = Message(&[header(), f(2, "enabled", Bool), f(3, "authRevision", Uint)]);
pub(super) static USERS: Message = Message(&[header(), many(2, "users", Text)]);
pub(super) static ROLES: Message = Message(&[header(), many(2, "roles", Text)]);

pub(super) static LOCK: Message = Message(&[f(1, "name", Bytes), f(2, "lease", Int)]);
pub(super) static LOCKED: Message = Message(&[header(), f(2, "key", Bytes)]);
pub(super) static UNLOCK: Message = Message(&[f(1, "key", Bytes)]);
static LEADER_KEY: Message = Message(&[f(1, "name", Bytes), f(2, "key", Bytes), f(3, "rev", Int), f(4, "lease", Int)]);
pub(super) static CAMPAIGN: Message = Message(&[f(1, "name", Bytes), f(2, "lease", Int), f(3, "value", Bytes)]);
pub(super) static ELECTED: Message = Message(&[header(), f(2, "leader", Kind::Message(&LEADER_KEY))]);
pub(super) static PROCLAIM: Message = Message(&[f(1, "leader", Kind::Message(&LEADER_KEY)), f(2, "value", Bytes)]);
pub(super) static BY_NAME: Message = Message(&[f(1, "name", Bytes)]);
pub(super) static LEADS: Message = Message(&[header(), f(2, "kv", Kind::Message(&KEY_VALUE))]);
pub(super) static RESIGN: Message = Message(&[f(1, "leader", Kind::Message(&LEADER_KEY))]);
