//! Tests of scheduled snapshots.
use std::collections::BTreeMap;
use std::fs;

use clap::Parser as _;
use http::{Method, StatusCode};
use jiff::SignedDuration;
use kelson_client::{Request, Response, TransportError, full_body};
use kelson_s3::{BucketOptions, S3Keys};
use kelson_store::{Body, Key, RecordMeta, Resource, Store, StoreOptions, Write};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

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

/// The API of two servers: a Lease, events, and snapshots that were made before.
struct Api {
    dir: PathBuf,
    made: Mutex<Vec<PathBuf>>,
    is_failing: Mutex<bool>,
    lease: Mutex<Option<Value>>,
    reasons: Mutex<Vec<String>>,
}

/// The connection of the server with this data directory.
struct Connection(Arc<Api>, PathBuf);

impl Api {
    /// Makes so many snapshots of a store that changes.
    async fn with_snapshots(dir: &Path, count: usize) -> Arc<Self> {
        let store = Store::open_dir(&dir.join("store"), StoreOptions::default()).unwrap();
        let mut made = Vec::new();
        for n in 0..count {
            let body = Body::locate(r#"{"metadata":{"name":"a","resourceVersion":""}}"#).unwrap();
            let key = Key::new(Resource::parse("pods"), "default", &format!("p{n}"));
            store.commit(Write::create(key, body, RecordMeta::with_uid("u"))).await.unwrap();
            let to = dir.join(format!("made-{n}"));
            store.save(&to).unwrap();
            made.push(to);
        }
        store.close().await;
        made.reverse();
        let (is_failing, lease, reasons) = (Mutex::new(false), Mutex::new(None), Mutex::new(Vec::new()));
        Arc::new(Self { dir: dir.to_owned(), made: Mutex::new(made), is_failing, lease, reasons })
    }

    fn lease(&self, method: &Method, body: &[u8]) -> (u16, Value) {
        let mut lease = self.lease.lock();
        if *method == Method::GET {
            return lease
                .clone()
                .map_or((404, json!({"kind": "Status", "code": 404, "reason": "NotFound"})), |lease| (200, lease));
        }
        let mut body: Value = serde_json::from_slice(body).unwrap();
        let version = |lease: &Value| lease["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse::<u64>().ok());
        let before = lease.as_ref().and_then(version).unwrap_or(0);
        if version(&body).unwrap_or(0) != before {
            return (409, json!({"kind": "Status", "code": 409, "reason": "Conflict"}));
        }
        body["metadata"]["resourceVersion"] = json!((before + 1).to_string());
        *lease = Some(body.clone());
        (200, body)
    }

    /// Gives a server one of the snapshots.
    fn snapshot(&self, data_dir: &Path) -> (u16, Value) {
        if *self.is_failing.lock() {
            return (
                500,
                json!({"kind": "Status", "code": 500, "reason": "InternalError", "message": "the disk is full"}),
            );
        }
        let made = self.made.lock().pop().expect("a snapshot");
        let to = data_dir.join("snapshots").join(made.file_name().unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::rename(made, &to).unwrap();
        (201, json!({"path": to}))
    }

    /// Starts a server with a data directory that has keys.
    fn server(self: &Arc<Self>, name: &str, bucket: S3Bucket, clock: &Arc<SetClock>, tasks: &Tasks) -> Server {
        let data_dir = self.dir.join(name);
        kelson_pki::ClusterPki::open(&kelson_pki::PkiOptions::new(data_dir.join("pki")), Timestamp::now()).unwrap();
        let words = ["kelson", "--snapshot-schedule-cron=0 * * * *", "--snapshot-unsealed", "--snapshot-retention=2"];
        let mut snapshots =
            ScheduledSnapshots::read(&Line::try_parse_from(words).unwrap().schedule, &data_dir).unwrap();
        let plan = Arc::get_mut(snapshots.plan.as_mut().unwrap()).unwrap();
        (plan.zone, plan.bucket) = (TimeZone::UTC, Some(bucket));
        let saved = snapshots.metrics.saved.clone();
        let transport = Arc::new(Connection(Arc::clone(self), data_dir.clone()));
        let part = snapshots.start_over(transport, Some(name.to_owned()), name, clock.clone(), tasks);
        Server { dir: data_dir.join(DIR), saved, part: part.unwrap() }
    }
}

fn respond(status: u16, body: String) -> BoxFuture<Result<Response, TransportError>> {
    let mut response = Response::new(full_body(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    Box::pin(async { Ok(response) })
}

impl Transport for Connection {
    fn send(&self, request: Request) -> BoxFuture<Result<Response, TransportError>> {
        let Self(api, data_dir) = self;
        let (status, answer) = match request.uri().path() {
            "/kelson/snapshots" => api.snapshot(data_dir),
            path if path.contains("/events") => {
                let event: Value = serde_json::from_slice(request.body()).unwrap();
                api.reasons.lock().extend(event["reason"].as_str().map(str::to_owned));
                (201, event)
            }
            _ => api.lease(request.method(), request.body()),
        };
        respond(status, answer.to_string())
    }
}

/// The names and sizes of the files in a bucket; `None` while its server does not answer.
#[derive(Default)]
struct Files(Mutex<BTreeMap<String, usize>>, Mutex<bool>);

impl Files {
    fn bucket(self: &Arc<Self>) -> S3Bucket {
        let keys = S3Keys::from_file("aws_access_key_id=ID\naws_secret_access_key=hush").unwrap();
        let (endpoint, bucket) = ("http://127.0.0.1:9000".to_owned(), "backups".to_owned());
        let options = BucketOptions { endpoint, bucket, region: "us-east-1".to_owned(), ..BucketOptions::default() };
        S3Bucket::over(&options, keys, self.clone()).unwrap()
    }

    fn names(&self) -> Vec<String> {
        self.0.lock().keys().cloned().collect()
    }
}

impl Transport for Files {
    fn send(&self, request: Request) -> BoxFuture<Result<Response, TransportError>> {
        if *self.1.lock() {
            return Box::pin(async { Err(TransportError::new("connection refused")) });
        }
        let (mut files, name) = (self.0.lock(), request.uri().path().trim_start_matches("/backups").to_owned());
        let name = name.trim_start_matches('/');
        match *request.method() {
            Method::PUT => {
                files.insert(name.to_owned(), request.body().len());
            }
            Method::DELETE => {
                files.remove(name);
            }
            _ => {
                let row = |(name, size): (&String, &usize)| {
                    let (etag, at) = ("&quot;tag&quot;", "2026-11-28T00:00:00.000Z");
                    format!(
                        "<Contents><ETag>{etag}</ETag><Key>{name}</Key><LastModified>{at}</LastModified><Size>{size}</Size></Contents>"
                    )
                };
                let rows: String = files.iter().map(row).collect();
                return respond(200, format!("<ListBucketResult><MaxKeys>1000</MaxKeys>{rows}</ListBucketResult>"));
            }
        }
        respond(200, String::new())
    }
}

/// A server with scheduled snapshots.
struct Server {
    dir: PathBuf,
    saved: IntCounterVec,
    part: Part,
}

impl Server {
    fn names(&self) -> Vec<String> {
        let names = snapshot_list::of_dir(&self.dir).map(|files| files.into_iter().map(|file| file.name));
        names.map_or_else(|_| Vec::new(), |names| names.rev().collect())
    }

    /// Returns the numbers of snapshots that were saved, and that failed.
    fn counts(&self) -> [u64; 2] {
        ["success", "failure"].map(|result| self.saved.with_label_values(&[result]).get())
    }
}

#[tokio::test]
async fn one_of_two_servers_saves_every_hour_and_tries_again_what_fails() {
    const MINUTE: Duration = Duration::from_secs(60);
    kelson_tasks::block_inline_on_this_thread();
    let scratch = tempfile::tempdir().unwrap();
    let (tasks, api) = (Tasks::root("test"), Api::with_snapshots(scratch.path(), 5).await);
    tokio::time::pause();
    let clock = Arc::new(SetClock(Mutex::new((Instant::now(), "2026-11-28T00:30:00Z".parse().unwrap()))));
    let files = Arc::new(Files::default());
    let one = api.server("one", files.bucket(), &clock, &tasks);
    sleep(MINUTE).await;
    let other = api.server("other", files.bucket(), &clock, &tasks);
    sleep(30 * MINUTE).await;
    assert_eq!((one.counts(), other.counts()), ([1, 0], [0, 0]), "01:01, by the one with the Lease");
    assert_eq!((one.names().len(), files.names()), (1, one.names()));

    *api.is_failing.lock() = true;
    sleep(61 * MINUTE).await;
    assert_eq!(one.counts(), [1, 2], "02:02: at the hour and a minute later");
    *api.is_failing.lock() = false;
    sleep(5 * MINUTE).await;
    assert_eq!(one.counts(), [2, 2], "02:07: saved before its next time");
    *api.is_failing.lock() = true;
    sleep(112 * MINUTE).await;
    assert_eq!(one.counts(), [2, 8], "03:59: after 1, 3, 7, 15, and 31 minutes, and not after 63");
    *api.is_failing.lock() = false;
    sleep(2 * MINUTE).await;
    assert_eq!(one.counts(), [3, 8], "04:01: as scheduled");
    let kept = one.names();
    assert_eq!((kept.len(), files.names()), (2, kept), "retention");
    for reason in ["SnapshotSaved", "SnapshotFailed"] {
        assert!(api.reasons.lock().iter().any(|seen| seen == reason), "{:?}", api.reasons.lock());
    }

    let before = one.names();
    one.part.shutdown().await;
    *files.1.lock() = true;
    sleep(61 * MINUTE).await;
    assert_eq!(other.counts(), [0, 2], "05:02: the bucket does not answer");
    let saved = other.names();
    assert_eq!((saved.len(), files.names()), (1, before.clone()), "it is saved once");
    *files.1.lock() = false;
    sleep(5 * MINUTE).await;
    assert_eq!((other.counts(), other.names()), ([1, 2], saved.clone()));
    assert_eq!(files.names(), [before[1].clone(), saved[0].clone()], "and stored in the bucket later");
    other.part.shutdown().await;
    tasks.shutdown(END_MAX).await;
}
