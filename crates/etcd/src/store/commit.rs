//! The committer: writers send jobs to it; jobs that wait together are stored by one sync.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use kelson_tasks::Tasks;
use tokio::sync::mpsc;

use super::interest::ReadyStreams;
use super::shared::Shared;
use super::snapshot;
use crate::disk::{DISK, DiskError, Log, Record};
use crate::error::Error;
use crate::mvcc::State;
use crate::proto::AlarmType;

/// The maximum number of queued jobs; further writers wait to enqueue.
pub(super) const WAITING_MAX: usize = 1024;
/// The maximum number of writes and bytes in one commit.
const BATCH_MAX: usize = 512;
const BATCH_BYTES: u64 = 8 << 20;
/// The maximum number of changes that a compaction frees while readers and writers wait.
const FORGOTTEN_AT_ONCE: usize = 4096;

/// Reports the result to a writer.
pub(super) type Completion = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// Changes the state, unless the job is rejected, and returns how to report the result.
pub(super) type Apply = Box<dyn FnOnce(Result<&mut State, Error>) -> Completion + Send>;

/// A job for the committer.
pub(super) enum Job {
    /// A change of keys. `grows` is the size that it may add.
    Write {
        grows: u64,
        change: Apply,
    },
    /// A lease whose TTL was validated.
    Grant {
        id: i64,
        seconds: i64,
        report: Completion,
    },
    /// The end of a lease. `ended` requires that its time has passed.
    Revoke {
        id: i64,
        ended: bool,
        report: Completion,
    },
    /// A compaction; `whole` waits until memory is freed.
    Compact {
        main: i64,
        whole: bool,
        report: Completion,
    },
    Alarm {
        alarm: i32,
        on: bool,
        report: Completion,
    },
    /// A new log, and a snapshot of everything before it.
    Snapshot {
        report: Completion,
    },
}

pub(super) struct Committer {
    pub shared: Arc<Shared>,
    pub jobs: mpsc::Receiver<Job>,
    /// `None` in a store without files, and while the disk is busy.
    pub log: Option<Log>,
    pub tasks: Tasks,
    pub snapshots: snapshot::Snapshots,
    /// Whether a compaction still has versions to free.
    pub forgetting: bool,
}

impl Committer {
    /// Runs until the last handle of the store is dropped or the group ends.
    pub async fn run(mut self) {
        let stop = self.tasks.token().clone();
        let mut next = None;
        loop {
            let job = match next.take() {
                Some(job) => job,
                None if self.forgetting => match self.jobs.try_recv() {
                    Ok(job) => job,
                    Err(_) => {
                        self.forget();
                        tokio::task::yield_now().await;
                        continue;
                    }
                },
                None => match stop.run_until_cancelled(self.jobs.recv()).await {
                    Some(Some(job)) => job,
                    _ => return,
                },
            };
            next = self.work(job).await;
            if self.forgetting {
                self.forget();
            }
        }
    }

    /// Runs a step of the compaction in progress.
    fn forget(&mut self) {
        self.forgetting = self.shared.state.write().forget_some(FORGOTTEN_AT_ONCE);
    }

    /// Runs a job, and the writes that follow a write in the queue; returns the first job after them that is not a
    /// write.
    async fn work(&mut self, job: Job) -> Option<Job> {
        match job {
            Job::Write { grows, change } => return self.writes(grows, change).await,
            Job::Grant { id, seconds, report } => report(self.grant(id, seconds).await),
            Job::Revoke { id, ended, report } => report(self.revoke(id, ended).await),
            Job::Compact { main, whole, report } => report(self.compact(main, whole).await),
            Job::Alarm { alarm, on, report } => report(self.alarm(alarm, on).await),
            Job::Snapshot { report } => self.snapshot(Some(report)).await,
        }
        None
    }

    async fn writes(&mut self, grows: u64, change: Apply) -> Option<Job> {
        let mut batch = vec![(grows, change)];
        let mut bytes = grows;
        let mut next = None;
        while batch.len() < BATCH_MAX && bytes < BATCH_BYTES {
            match self.jobs.try_recv() {
                Ok(Job::Write { grows, change }) => {
                    bytes = bytes.saturating_add(grows);
                    batch.push((grows, change));
                }
                Ok(other) => {
                    next = Some(other);
                    break;
                }
                Err(_) => break,
            }
        }
        let mut reported: Vec<Completion> = Vec::with_capacity(batch.len());
        let (full, records) = {
            let mut state = self.shared.state.write();
            let mut full = self.shared.is_full();
            for (grows, change) in batch {
                full |= grows > 0 && self.is_over(&state, grows);
                let state = if full && grows > 0 { Err(Error::NoSpace) } else { Ok(&mut *state) };
                reported.push(change(state));
            }
            (full, state.changes_not_shown().map(Record::change).collect())
        };
        // Even a job without changes may have read what is not stored yet.
        let stored = self.store(records).await;
        reported.into_iter().for_each(|report| report(stored));
        if full && !self.shared.is_full() {
            tracing::warn!(
                "storage quota exceeded; rejecting writes until keys are deleted and compacted and the alarm is disarmed"
            );
            let _ = self.alarm(AlarmType::Nospace as i32, true).await;
        }
        self.maintain().await;
        next
    }

    fn is_over(&self, state: &State, grows: u64) -> bool {
        self.shared.limits.quota_bytes.is_some_and(|quota| state.bytes().saturating_add(grows) > quota)
    }

    async fn grant(&mut self, id: i64, seconds: i64) -> Result<(), Error> {
        if self.shared.is_full() {
            return Err(Error::NoSpace);
        }
        self.shared.read(|state| state.check_grant(id, seconds))?;
        self.store(vec![Record::grant(id, seconds)]).await?;
        self.shared.state.write().grant(id, seconds, self.shared.clock.now());
        self.shared.granted.notify_one();
        Ok(())
    }

    async fn revoke(&mut self, id: i64, ended: bool) -> Result<(), Error> {
        let records = {
            let mut state = self.shared.state.write();
            let now = self.shared.clock.now();
            if ended && state.lease(id).is_some_and(|lease| lease.ends > now) {
                return Ok(());
            }
            state.revoke(id)?;
            let changes = state.changes_not_shown().map(Record::change);
            changes.chain([Record::lease_ended(id)]).collect()
        };
        self.store(records).await?;
        self.shared.state.write().end_lease(id);
        Ok(())
    }

    async fn compact(&mut self, main: i64, whole: bool) -> Result<(), Error> {
        self.shared.read(|state| state.check_compact(main))?;
        self.store(vec![Record::compacted(main)]).await?;
        self.shared.state.write().compact(main);
        self.forgetting = true;
        while whole && self.forgetting {
            self.forget();
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    async fn alarm(&mut self, alarm: i32, on: bool) -> Result<(), Error> {
        let mut alarms: BTreeSet<i32> = self.shared.alarms.read().clone();
        if if on { alarms.insert(alarm) } else { alarms.remove(&alarm) } {
            self.store(vec![Record::alarms(alarms.iter().copied().collect())]).await?;
            *self.shared.alarms.write() = alarms;
        }
        Ok(())
    }

    /// Stores records, then shows the changes; on an error, reverts the changes.
    async fn store(&mut self, records: Vec<Record>) -> Result<(), Error> {
        let stored = self.append(records).await;
        let mut state = self.shared.state.write();
        if stored.is_err() {
            state.undo();
            return stored;
        }
        let mut woken = ReadyStreams::default();
        for (change, _) in state.changes_not_shown() {
            self.shared.interests.mark(&change.key, change.revision.main, &mut woken);
        }
        state.show();
        drop(state);
        woken.wake();
        self.shared.commits.fetch_add(1, Ordering::Relaxed);
        stored
    }

    async fn append(&mut self, records: Vec<Record>) -> Result<(), Error> {
        if self.shared.failed.read().is_some() {
            return Err(Error::Stopped);
        }
        if records.is_empty() {
            return Ok(());
        }
        let Some(mut log) = self.log.take() else { return Ok(()) };
        let done = DISK
            .run(move || {
                let begun = Instant::now();
                let done = log.append(&records);
                (log, done, begun.elapsed())
            })
            .await;
        if let Ok((log, _, took)) = &done {
            self.shared.commit_times.took(*took);
            log.sync_took().into_iter().for_each(|took| self.shared.sync_times.took(took));
        }
        if !matches!(done, Ok((_, Ok(()), _))) {
            self.shared.failed_commits.fetch_add(1, Ordering::Relaxed);
        }
        match done.map(|(log, done, _)| (log, done)) {
            Ok((log, Ok(()))) => {
                self.shared.log_bytes.store(log.bytes(), Ordering::Relaxed);
                self.shared.disk(None);
                self.log = Some(log);
                Ok(())
            }
            Ok((log, Err(error @ DiskError::Io { .. }))) => {
                self.shared.disk(Some(error.to_string()));
                self.log = Some(log);
                Err(Error::NoSpace)
            }
            Ok((_, Err(error))) => Err(self.fail(&error.to_string())),
            Err(error) => Err(self.fail(&error.to_string())),
        }
    }

    /// Ends all writing, since the content of the disk is unknown. The next start reads it.
    fn fail(&self, why: &str) -> Error {
        tracing::error!(error = why, "store failed; stopping");
        self.shared.failed.write().get_or_insert_with(|| why.to_owned());
        self.tasks.fail(&format!("etcd's store: {why}"));
        Error::Stopped
    }

    /// Begins a snapshot when the log has become long.
    async fn maintain(&mut self) {
        let last = self.shared.snapshot_bytes.load(Ordering::Relaxed);
        if self.log.as_ref().is_some_and(|log| log.is_long(last)) && !self.snapshots.is_running() {
            self.snapshot(None).await;
        }
    }

    async fn snapshot(&mut self, report: Option<Completion>) {
        let reported = |answer| report.into_iter().for_each(|report| report(answer));
        if self.snapshots.is_running() {
            return reported(Ok(()));
        }
        let Some(mut log) = self.log.take() else { return reported(Ok(())) };
        let rotated = DISK
            .run(move || {
                let rotated = log.rotate();
                (log, rotated)
            })
            .await;
        match rotated {
            Ok((log, Ok(writer))) => {
                self.log = Some(log);
                self.snapshots.begin(writer, &self.shared, &self.tasks, reported);
            }
            Ok((log, Err(error))) => {
                tracing::error!(%error, "starting a snapshot failed");
                self.log = Some(log);
                reported(Err(Error::NoSpace));
            }
            Err(error) => reported(Err(self.fail(&error.to_string()))),
        }
    }
}
