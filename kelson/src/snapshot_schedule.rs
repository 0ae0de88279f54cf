//! Snapshots that a server saves on a schedule, into a directory and a bucket of S3, where old ones are deleted. Of several
//! servers on one etcd, the one with the Lease saves them. What fails is tried again until the next time of the schedule.
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
use kelson_meta::{Backoff, Clock, CronSchedule, SystemClock};
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
/// The pauses before a snapshot that has failed is tried again.
const RETRIES: Backoff = Backoff::new(Duration::from_secs(60), Duration::from_secs(3600));
/// How long a server that stops waits for a snapshot that it is saving.
const END_MAX: Duration = Duration::from_secs(5);

/// What is saved when, and where to.
struct SnapshotPlan {
    schedule: CronSchedule,
    /// The time zone of the schedule.
    zone: TimeZone,
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
        let as_admin = UserInfo::new(user::API_SERVER, [user::MASTERS]);
        self.start_over(api.in_process(as_admin), identity, node, Arc::new(SystemClock), tasks)
    }

    /// Starts them over a connection to the API, with the time of a clock.
    fn start_over(
        self,
        transport: Arc<dyn Transport>,
        identity: Option<String>,
        node: &str,
        clock: Arc<dyn Clock>,
        tasks: &Tasks,
    ) -> Option<Part> {
        let plan = self.plan?;
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
            group.spawn("scheduled-snapshots", OnPanic::Contain, work.run(Arc::clone(&clock)));
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
            zone: TimeZone::system(),
            retention: args.snapshot_retention,
            dir: args.snapshot_dir.clone().unwrap_or_else(|| data_dir.join(DIR)),
            passphrase: passphrase.map(Arc::new),
            bucket: args.s3.bucket()?,
            data_dir: data_dir.to_owned(),
        }))
    }

    /// Returns the next time after `now`.
    fn next(&self, now: Timestamp) -> Option<Timestamp> {
        self.schedule.next(now, &self.zone)
    }

    /// Saves a snapshot unless it is `saved` already, stores it in the bucket, too, and deletes old ones.
    async fn save(&self, client: &Client, saved: &mut Option<SavedBundle>) -> anyhow::Result<()> {
        let bundle = match saved {
            Some(bundle) => bundle,
            None => {
                let dir = self.dir.clone();
                FILES.run(move || make_private_dir(&dir)).await?.with_context(|| self.dir.display().to_string())?;
                saved.insert(snapshot::save(client, &self.data_dir, &self.dir, self.passphrase.clone()).await?)
            }
        };
        let (dir, keep) = (self.dir.clone(), self.retention);
        FILES.run(move || snapshot_list::prune_dir(&dir, keep)).await??;
        if let Some(bucket) = &self.bucket {
            snapshot::upload(bucket, &bundle.file).await?;
            snapshot_list::prune_bucket(bucket, self.retention).await?;
        }
        Ok(())
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
            let Some(next) = self.plan.next(clock.now()) else {
                tracing::warn!("no time matches --snapshot-schedule-cron; no snapshots are saved");
                return;
            };
            wait_for(next, &*clock).await;
            self.save(&*clock).await;
        }
    }

    /// Saves the snapshot that is due. One that fails is tried again after growing pauses, until the next one is due.
    async fn save(&self, clock: &dyn Clock) {
        let (mut saved, mut failures) = (None, 0);
        while let Err(error) = self.plan.save(&self.client, &mut saved).await {
            let now = clock.now();
            let retry = now + RETRIES.delay(failures);
            let is_before_next = self.plan.next(now).is_none_or(|next| retry < next);
            self.report_failure(&format!("{error:#}"), is_before_next.then_some(retry));
            if !is_before_next {
                return;
            }
            wait_for(retry, clock).await;
            failures += 1;
        }
        if let Some(bundle) = saved {
            self.report(bundle, clock.now()).await;
        }
    }

    /// Returns the object of events.
    fn node(&self) -> ObjectRef {
        ObjectRef { api_version: "v1".into(), kind: "Node".into(), name: self.node.clone(), ..ObjectRef::default() }
    }

    async fn report(&self, SavedBundle { file, contents }: SavedBundle, now: Timestamp) {
        let path = file.clone();
        let bytes = FILES.run(move || std::fs::metadata(path).map_or(0, |about| about.len())).await.unwrap_or(0);
        self.metrics.saved.with_label_values(&["success"]).inc();
        self.metrics.at.set(now.as_second());
        self.metrics.bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        let revision = contents.revision;
        tracing::info!(file = %file.display(), revision, bytes, "saved a scheduled snapshot");
        let message = format!("saved {} at revision {revision}", file.display());
        self.events.event(&self.node(), EventType::Normal, "SnapshotSaved", message);
    }

    fn report_failure(&self, error: &str, retry: Option<Timestamp>) {
        self.metrics.saved.with_label_values(&["failure"]).inc();
        match retry {
            Some(at) => tracing::error!(error, %at, "saving a scheduled snapshot failed; retrying"),
            None => tracing::error!(error, "saving a scheduled snapshot failed; the next one is saved as scheduled"),
        }
        self.events.event(&self.node(), EventType::Warning, "SnapshotFailed", error);
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
mod tests;
