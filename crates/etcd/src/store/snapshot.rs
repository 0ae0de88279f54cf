//! Copies the state to the disk in pieces, while writes continue: versions do not change, and everything written after
//! the start of the snapshot is in the log that was begun with it. Versions that a compaction frees meanwhile are
//! missing in both, as they should be.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use kelson_tasks::{OnPanic, Tasks};

use super::shared::Shared;
use crate::disk::{DISK, DiskError, Record, SnapshotWriter};
use crate::error::Error;

/// The maximum number of versions and bytes read under one lock.
const PIECE_VERSIONS: usize = 2048;
const PIECE_BYTES: usize = 4 << 20;

/// The only snapshot that may be in progress.
#[derive(Debug, Default)]
pub(super) struct Snapshots(Arc<()>);

impl Snapshots {
    pub fn is_running(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Begins a snapshot of the state that readers see now.
    pub fn begin(
        &self,
        writer: SnapshotWriter,
        shared: &Arc<Shared>,
        tasks: &Tasks,
        report: impl FnOnce(Result<(), Error>) + Send + 'static,
    ) {
        let running = Arc::clone(&self.0);
        let copy = Copy::of(shared);
        let shared = Arc::clone(shared);
        tasks.spawn("etcd-snapshot", OnPanic::Contain, async move {
            let written = copy.write(writer, &shared).await;
            drop(running);
            if let Err(error) = &written {
                tracing::error!(%error, "writing a snapshot failed; the log keeps growing");
            }
            report(written.map_err(|_| Error::NoSpace));
        });
    }
}

struct Copy {
    revision: i64,
    head: Vec<Record>,
}

impl Copy {
    fn of(shared: &Shared) -> Self {
        let alarms = shared.alarms.read().iter().copied().collect();
        shared.read(|state| {
            let mut head = vec![Record::identity(shared.identity), Record::alarms(alarms)];
            head.extend(state.leases().map(|(id, lease)| Record::grant(id, lease.seconds)));
            head.push(Record::revision(state.revision()));
            if state.compacted() >= 0 {
                head.push(Record::compacted(state.compacted()));
            }
            Self { revision: state.revision(), head }
        })
    }

    async fn write(self, mut writer: SnapshotWriter, shared: &Shared) -> Result<(), DiskError> {
        let mut records = self.head;
        let mut after = None;
        loop {
            writer = add(writer, records).await?;
            (records, after) = shared.read(|state| piece(state, self.revision, after.as_ref()));
            if records.is_empty() && after.is_none() {
                break;
            }
        }
        let bytes = in_lane(move || writer.finish()).await?;
        shared.snapshot_bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// Returns the next versions in order of keys, those of a key together, and the last key; no key at the end.
fn piece(state: &crate::mvcc::State, revision: i64, after: Option<&Bytes>) -> (Vec<Record>, Option<Bytes>) {
    let (mut records, mut bytes) = (Vec::new(), 0);
    let mut last: Option<&Bytes> = None;
    for (key, version) in state.versions_after(after) {
        if (records.len() >= PIECE_VERSIONS || bytes >= PIECE_BYTES) && last != Some(key) {
            return (records, last.cloned());
        }
        last = Some(key);
        if version.revision.main <= revision {
            bytes += key.len() + version.value.len();
            records.push(Record::version(key, version));
        }
    }
    (records, last.cloned())
}

async fn add(mut writer: SnapshotWriter, records: Vec<Record>) -> Result<SnapshotWriter, DiskError> {
    in_lane(move || writer.add(&records).map(|()| writer)).await
}

async fn in_lane<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, DiskError> + Send + 'static,
) -> Result<T, DiskError> {
    DISK.run(work).await.unwrap_or_else(|error| {
        Err(DiskError::Io { what: "write", path: "a snapshot".into(), source: std::io::Error::other(error) })
    })
}
