//! The bounds of the store. Callers that need other bounds for the log set them in `StoreOptions`.

/// The most writes that wait for the committer. Further writers wait asynchronously for room.
pub const QUEUE_WRITES_MAX: usize = 2048;
/// The most writes in one batch, which is one sync.
pub const BATCH_WRITES_MAX: usize = 512;
/// The longest time, in microseconds, that a batch waits for announced writes. The sync of a fast disk takes about as long.
pub const COMPANY_WAIT_MAX_US: u64 = 2000;
/// The number of body bytes after which a batch is closed, so that one sync never covers many megabytes.
pub const BATCH_BYTES_MAX: usize = 8 << 20;
/// The largest body of one object in bytes. The API server's own limit for requests (3 MiB) is lower.
pub const BODY_BYTES_MAX: usize = 8 << 20;
/// The most bytes that the watch log keeps in memory beyond the current state.
pub const LOG_BYTES_MAX: usize = 32 << 20;
/// The most events in the log of one resource.
pub const LOG_EVENTS_PER_RESOURCE_MAX: usize = 100_000;
/// The age after which an event leaves the log at the next commit. Kubernetes compacts its history every 5 minutes.
pub const LOG_AGE_MAX_S: u64 = 600;
/// The time between two sweeps of the log for old events, in seconds.
pub const LOG_SWEEP_EVERY_S: u64 = 30;
/// The most events that one call of `Cursor::next` returns.
pub const CURSOR_BATCH_MAX: usize = 256;
/// The JSON bytes of records after which one call of `Cursor::next` returns no further event, so that a watcher that starts late holds
/// only a part of what it missed.
pub const CURSOR_BATCH_BYTES_MAX: usize = 64 << 10;
/// The most bytes of encoded watch frames that are cached, for all events and encodings together.
pub const FRAME_CACHE_BYTES_MAX: usize = 4 << 20;
/// The most JSON bytes of recently written records, which are in memory without delta encoding.
pub const RECENT_BYTES_MAX: usize = 128 << 10;
/// The most samples for delta encoding per resource. Different kinds of objects and pod templates each need one.
pub const SAMPLES_PER_RESOURCE_MAX: usize = 6;
/// The default limit for the bytes of all records; writes that would exceed it are rejected. All of it is in memory, so a server on a
/// small machine sets less (`--quota-backend-bytes`). etcd has the same default quota.
pub const STORE_BYTES_MAX: usize = 2 << 30;
/// The records of one namespace may take this part of what all records may take, by default.
pub const NAMESPACE_PART: usize = 2;
/// Time that the committer may spend on one batch before the store counts as stuck. Slow disks take seconds, not more.
pub const BATCH_TIME_MAX_S: u64 = 30;
/// The longest time, in seconds, that a `Durability::Relaxed` write waits for the sync that makes it survive a power cut.
pub const RELAXED_SYNC_DELAY_S: u64 = 10;
/// The number of revisions that one synced write reserves for relaxed writes, so that no revision is assigned twice even if a power cut
/// loses the last relaxed writes.
pub const REVISIONS_RESERVED: u64 = 10_000;
/// The number of expired records that are deleted at once.
pub const EXPIRY_BATCH_MAX: usize = 256;
/// The shortest time between two passes over expired records, in seconds. Expiry is coarse so that it costs little.
pub const EXPIRY_PASS_EVERY_S: u64 = 30;
/// Time between two attempts to decrypt what could not be decrypted when the store was opened, in seconds.
pub const UNLOCK_EVERY_S: u64 = 2;
/// The time for which records of the Event resource live after their last write, by default, in seconds (`--event-ttl`).
pub const EVENT_TTL_S: u64 = 3600;
/// The time from a deletion to the housekeeping that may return its space, in seconds.
pub const MAINTAIN_DELAY_S: u64 = 60;
/// The time between two checks whether a full disk has space again, in seconds.
pub const ROOM_LOOK_EVERY_S: u64 = 1;
/// The time between two steps of housekeeping, in milliseconds.
pub const MAINTAIN_STEP_MS: u64 = 20;
