//! Every bound of the store, named once. Callers that need other bounds for the log set them in `StoreOptions`.

/// Writes that may wait for the committer; further writers wait asynchronously for room.
pub const QUEUE_WRITES_MAX: usize = 2048;
/// Writes the committer takes into one batch, and so into one sync.
pub const BATCH_WRITES_MAX: usize = 512;
/// Longest time, in microseconds, that a batch waits for writes that are being prepared. A sync of a fast disk takes about as long.
pub const COMPANY_WAIT_MAX_US: u64 = 2000;
/// Bytes of bodies after which a batch is closed, so that one sync never waits on many megabytes.
pub const BATCH_BYTES_MAX: usize = 8 << 20;
/// Largest body of one object. The API server's own request limit (3 MiB) is lower; this is the net below it.
pub const BODY_BYTES_MAX: usize = 8 << 20;
/// Bytes the watch log may keep alive that are no longer part of the current state.
pub const LOG_BYTES_MAX: usize = 32 << 20;
/// Events the log keeps per resource.
pub const LOG_EVENTS_PER_RESOURCE_MAX: usize = 100_000;
/// Age after which an event leaves the log at the next commit. The reference compacts its history every 5 minutes.
pub const LOG_AGE_MAX_S: u64 = 600;
/// Seconds between two sweeps of the log for aged events.
pub const LOG_SWEEP_EVERY_S: u64 = 30;
/// Events that one call of `Cursor::next` hands out at most.
pub const CURSOR_BATCH_MAX: usize = 256;
/// JSON bytes of the records of these events, beyond which no further one is handed out: a watcher that comes late holds a piece of
/// what it missed, not all of it.
pub const CURSOR_BATCH_BYTES_MAX: usize = 64 << 10;
/// Bytes of encoded watch frames kept for reuse, over all events and encodings.
pub const FRAME_CACHE_BYTES_MAX: usize = 4 << 20;
/// JSON bytes of the records written last, which lie in memory as they are.
pub const RECENT_BYTES_MAX: usize = 128 << 10;
/// Records of a resource by which others are told: kinds of objects, templates of pods.
pub const SAMPLES_PER_RESOURCE_MAX: usize = 6;
/// Bytes that all records together may take before writes that would make them more are refused, by default. All of it
/// is held in memory, so a server on a small machine sets less (`--quota-backend-bytes`). The reference's store has the same default quota.
pub const STORE_BYTES_MAX: usize = 2 << 30;
/// The records of one namespace may take this part of what all records may take, by default.
pub const NAMESPACE_PART: usize = 2;
/// Time that the committer may spend on one batch before the store counts as stuck. Slow disks take seconds, not more.
pub const BATCH_TIME_MAX_S: u64 = 30;
/// Longest time that a `Durability::Relaxed` write may wait for the sync that makes it survive a power cut, in seconds.
pub const RELAXED_SYNC_DELAY_S: u64 = 10;
/// Revisions that are reserved at once (in a synced write) for relaxed writes, so that no revision is given out twice
/// even when a power cut takes the last relaxed writes away.
pub const REVISIONS_RESERVED: u64 = 10_000;
/// Expired records deleted by one pass.
pub const EXPIRY_BATCH_MAX: usize = 256;
/// Shortest time between two passes over expired records, in seconds: expiry is coarse so that it costs nothing.
pub const EXPIRY_PASS_EVERY_S: u64 = 30;
/// Time between two attempts to decrypt what could not be decrypted when the store was opened, in seconds.
pub const UNLOCK_EVERY_S: u64 = 2;
/// How long records of the Event resource live after their last write, by default, in seconds (`--event-ttl`).
pub const EVENT_TTL_S: u64 = 3600;
/// Time from a deletion to the housekeeping that may give its space back, in seconds.
pub const MAINTAIN_DELAY_S: u64 = 60;
/// While a full disk takes deletions alone: seconds between two looks whether it has room again.
pub const ROOM_LOOK_EVERY_S: u64 = 1;
/// Time between two pieces of housekeeping, in milliseconds.
pub const MAINTAIN_STEP_MS: u64 = 20;
