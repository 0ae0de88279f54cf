//! Snapshots that a server saves on a schedule, into a directory and a bucket of S3, where old ones are deleted. Of several
//! servers on one etcd, the one with the Lease saves them.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or in the lane for files")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use kelson_apiserver::Running;
use kelson_auth::{UserInfo, user};
use kelson_bundle::Passphrase;
use kelson_client::{BoxFuture, Client, EventRecorder, EventType, ObjectRef, Transport};
use kelson_meta::{Clock, CronSchedule, SystemClock};
use kelson_metrics::{IntCounterVec, IntGauge, Registry};
use kelson_platform::files::make_private_dir;
use kelson_s3::S3Bucket;
use kelson_tasks::{FILES, OnPanic, Tasks};

use crate::election::Election;
use crate::leading::{Candidate, Elector, Part, Term};
use crate::snapshot::{self, SavedBundle};
use crate::snapshot_flags::ScheduleArgs;
use crate::snapshot_list;

/// The name of the Lease in `kube-system`.
const LEASE: &str = "kelson-snapshots";
/// The default directory of scheduled snapshots, below the data directory.
const DIR: &str = "backups";
/// The longest sleep between two looks at the clock, which may have been set.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// How long a server that stops waits for a snapshot that it is saving.
const END_MAX: Duration = Duration::from_secs(5);

/// What is saved when, and where to.
struct SnapshotPlan {
    schedule: CronSchedule,
    retention: u32,
    dir: PathBuf,
    passphrase: Option<Arc<Passphrase>>,
    bucket: Option<S3Bucket>,
    data_dir: PathBuf,
}

/// The metrics of scheduled snapshots.
#[derive(Clone)]
struct SnapshotMetrics {
    saved: IntCounterVec,
    at: IntGauge,
    bytes: IntGauge,
}

/// The scheduled snapshots of a server, if it has a schedule.
pub struct ScheduledSnapshots {
    plan: Option<Arc<SnapshotPlan>>,
    metrics: SnapshotMetrics,
    registry: Registry,
}

impl ScheduledSnapshots {
    /// Reads the flags of a server with this data directory.
    ///
    /// # Errors
    /// A flag is missing, or a file cannot be read.
    pub fn read(args: &ScheduleArgs, data_dir: &Path) -> anyhow::Result<Self> {
        let plan = SnapshotPlan::read(args, data_dir)?.map(Arc::new);
        let registry = Registry::new();
        let metrics = SnapshotMetrics {
            saved: registry.counters(
                "kelson_scheduled_snapshots_total",
                "Scheduled snapshots by result: success or failure.",
                &["result"],
            ),
            at: registry.gauge(
                "kelson_scheduled_snapshot_last_success_timestamp_seconds",
                "Time of the last scheduled snapshot of this server in seconds since the Unix epoch.",
            ),
            bytes: registry.gauge(
                "kelson_scheduled_snapshot_last_size_bytes",
                "Size of the last scheduled snapshot of this server in bytes.",
            ),
        };
        // Both series are there from the start, so that an alert sees the first failure.
        for result in ["success", "failure"] {
            metrics.saved.with_label_values(&[result]).inc_by(0);
        }
        Ok(Self { plan, metrics, registry })
    }

    /// Returns the registry with the metrics.
    pub fn registry(&self) -> Registry {
        self.registry.clone()
    }

    /// Saves snapshots from now on, or with an `identity` while this server holds the Lease. Events are about the node with
    /// the name `node`.
    pub fn start(self, api: &Running, identity: Option<String>, node: &str, tasks: &Tasks) -> Option<Part> {
        let plan = self.plan?;
        let as_admin = UserInfo::new(user::API_SERVER, [user::MASTERS]);
        let transport: Arc<dyn Transport> = api.in_process(as_admin);
        let elector = identity.map(|identity| Elector {
            transport: Arc::clone(&transport),
            identity,
            election: Election::of(LEASE),
        });
        let (node, group, metrics) = (node.to_owned(), tasks.clone(), self.metrics);
        let start = move |term: &Term| {
            let (client, group) =
                (Client::new(term.guard(Arc::clone(&transport)), "snapshots"), group.child("snapshots"));
            let events = EventRecorder::start_in(&group, client.clone(), Arc::new(SystemClock), "snapshots", &node);
            let work = Work { plan: Arc::clone(&plan), client, events, node: node.clone(), metrics: metrics.clone() };
            group.spawn("scheduled-snapshots", OnPanic::Contain, work.run(Arc::new(SystemClock)));
            Box::pin(async move {
                group.shutdown(END_MAX).await;
            }) as BoxFuture<()>
        };
        Some(Part::start(Candidate { name: LEASE, end_max: END_MAX, start: Box::new(start) }, elector, tasks))
    }
}

impl SnapshotPlan {
    fn read(args: &ScheduleArgs, data_dir: &Path) -> anyhow::Result<Option<Self>> {
        let Some(schedule) = args.snapshot_schedule_cron.clone() else { return Ok(None) };
        let file = args.snapshot_passphrase_file.as_ref();
        if file.is_none() && !args.snapshot_unsealed {
            bail!("--snapshot-schedule-cron needs --snapshot-passphrase-file, or --snapshot-unsealed");
        }
        let passphrase = file.map(|file| Passphrase::read(file)).transpose().context("--snapshot-passphrase-file")?;
        Ok(Some(Self {
            schedule,
            retention: args.snapshot_retention,
            dir: args.snapshot_dir.clone().unwrap_or_else(|| data_dir.join(DIR)),
            passphrase: passphrase.map(Arc::new),
            bucket: args.s3.bucket()?,
            data_dir: data_dir.to_owned(),
        }))
    }

    /// Saves a snapshot and deletes old ones. The bucket has its snapshot when this returns, too.
    async fn save(&self, client: &Client) -> anyhow::Result<SavedBundle> {
        let dir = self.dir.clone();
        FILES.run(move || make_private_dir(&dir)).await?.with_context(|| self.dir.display().to_string())?;
        let saved = snapshot::save(client, &self.data_dir, &self.dir, self.passphrase.clone()).await?;
        let (dir, keep) = (self.dir.clone(), self.retention);
        FILES.run(move || snapshot_list::prune_dir(&dir, keep)).await??;
        if let Some(bucket) = &self.bucket {
            snapshot::upload(bucket, &saved.file).await?;
            snapshot_list::prune_bucket(bucket, self.retention).await?;
        }
        Ok(saved)
    }
}

/// The task of one term.
struct Work {
    plan: Arc<SnapshotPlan>,
    client: Client,
    events: EventRecorder,
    node: String,
    metrics: SnapshotMetrics,
}

impl Work {
    async fn run(self, clock: Arc<dyn Clock>) {
        loop {
            let Some(next) = self.plan.schedule.next(clock.now(), &TimeZone::system()) else {
                tracing::warn!("no time matches --snapshot-schedule-cron; no snapshots are saved");
                return;
            };
            wait_for(next, &*clock).await;
            let saved = self.plan.save(&self.client).await;
            self.report(saved, clock.now()).await;
        }
    }

    async fn report(&self, saved: anyhow::Result<SavedBundle>, now: Timestamp) {
        let node = ObjectRef {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: self.node.clone(),
            ..ObjectRef::default()
        };
        match saved {
            Ok(SavedBundle { file, contents }) => {
                let path = file.clone();
                let bytes =
                    FILES.run(move || std::fs::metadata(path).map_or(0, |about| about.len())).await.unwrap_or(0);
                self.metrics.saved.with_label_values(&["success"]).inc();
                self.metrics.at.set(now.as_second());
                self.metrics.bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
                let revision = contents.revision;
                tracing::info!(file = %file.display(), revision, bytes, "saved a scheduled snapshot");
                let message = format!("saved {} at revision {revision}", file.display());
                self.events.event(&node, EventType::Normal, "SnapshotSaved", message);
            }
            Err(error) => {
                let error = format!("{error:#}");
                self.metrics.saved.with_label_values(&["failure"]).inc();
                tracing::error!(error, "saving a scheduled snapshot failed; the next one is saved as scheduled");
                self.events.event(&node, EventType::Warning, "SnapshotFailed", error);
            }
        }
    }
}

/// Waits until the clock shows a time, also if it is set meanwhile.
async fn wait_for(time: Timestamp, clock: &dyn Clock) {
    loop {
        let left = Duration::try_from(time.duration_since(clock.now())).unwrap_or_default();
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(SLEEP_MAX)).await;
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use jiff::SignedDuration;
    use parking_lot::Mutex;
    use tokio::time::Instant;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        schedule: ScheduleArgs,
    }

    fn plan(dir: &Path, words: &[&str]) -> Result<Option<SnapshotPlan>, String> {
        let line = Line::try_parse_from(["kelson"].iter().chain(words)).map_err(|error| error.to_string())?;
        SnapshotPlan::read(&line.schedule, dir).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn a_schedule_needs_a_seal() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let file = dir.join("passphrase");
        std::fs::write(&file, "correct horse\n").unwrap();
        let file = file.display().to_string();
        assert!(plan(dir, &[]).unwrap().is_none());
        assert!(plan(dir, &["--snapshot-retention", "3"]).unwrap().is_none(), "no schedule");
        let made = plan(dir, &["--snapshot-schedule-cron=0 */12 * * *", "--snapshot-passphrase-file", &file]);
        let made = made.unwrap().unwrap();
        assert_eq!((made.retention, made.dir, made.passphrase.is_some()), (5, dir.join("backups"), true));
        assert!(plan(dir, &["--snapshot-schedule-cron=@daily", "--snapshot-unsealed"]).unwrap().is_some());
        for (words, why) in [
            ("--snapshot-schedule-cron=0 0 * * *", "--snapshot-passphrase-file"),
            ("--snapshot-schedule-cron=often|--snapshot-unsealed", "--snapshot-schedule-cron"),
            ("--snapshot-schedule-cron=@daily|--snapshot-passphrase-file=/nonexistent", "/nonexistent"),
            ("--snapshot-schedule-cron=@daily|--snapshot-unsealed|--s3", "--s3-bucket"),
            ("--snapshot-retention=0", "--snapshot-retention"),
        ] {
            let error = plan(dir, &words.split('|').collect::<Vec<_>>()).err().unwrap();
            assert!(error.contains(why), "{words}: {error}");
        }
    }

    /// A clock that runs with tokio's, and can be set.
    struct SetClock(Mutex<(Instant, Timestamp)>);

    impl Clock for SetClock {
        fn now(&self) -> Timestamp {
            let (since, then) = *self.0.lock();
            then + SignedDuration::try_from(since.elapsed()).unwrap()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_set_moves_the_snapshot() {
        let start: Timestamp = "2026-11-28T00:00:00Z".parse().unwrap();
        let at = |hours: i64| start + SignedDuration::from_hours(hours);
        let clock = SetClock(Mutex::new((Instant::now(), start)));
        let begun = Instant::now();
        let set = async {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            *clock.0.lock() = (Instant::now(), at(10));
        };
        tokio::join!(wait_for(at(12), &clock), set);
        let waited = begun.elapsed();
        assert!((3 * 3600..3 * 3600 + 61).contains(&waited.as_secs()), "{waited:?}");
        wait_for(at(11), &clock).await;
        assert_eq!(begun.elapsed(), waited, "a time that is over is not waited for");
    }
}
