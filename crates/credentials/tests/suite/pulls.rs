//! The pull manager with a runtime that is none: what is pulled when, with what, and what the pod's owner reads.
#![allow(clippy::unwrap_used)]
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kelson_credentials::config::Config;
use kelson_credentials::events::NoEvents;
use kelson_credentials::keyring::{CONFIG_JSON_KEY, DockerConfigFormat};
use kelson_credentials::plugin::{Coordinates, NoServiceAccounts, Options};
use kelson_credentials::{
    Candidate, EnsureError, EnsureRequest, Metrics, NodeConfig, PodIdentity, Present, ProcessExecutor, Providers,
    PullEffects, PullManager, PullOptions, PullPolicy, PullSecret,
};
use kelson_doubles::TokioClock;
use parking_lot::Mutex;
use tokio::time::sleep;
use zeroize::Zeroizing;

/// A registry that opens for one user, and a runtime with the images pulled so far.
#[derive(Default)]
struct Runtime {
    opens_for: Option<&'static str>,
    takes: Duration,
    images: Mutex<Vec<String>>,
    pulls: Mutex<Vec<String>>,
    events: Mutex<Vec<String>>,
    at_once: Mutex<(usize, usize)>,
    fails: Mutex<Option<&'static str>>,
    progress: Mutex<Option<u64>>,
}

#[async_trait]
impl PullEffects for Runtime {
    async fn status(&self, image: &str) -> Result<Option<Present>, String> {
        let there = self.images.lock().iter().any(|i| i == image);
        Ok(there.then(|| Present { reference: format!("id-{image}"), size: 7, ..Default::default() }))
    }
    async fn pull(&self, image: &str, auth: Option<&Candidate>) -> Result<String, String> {
        let user = auth.map_or("", |c| c.auth.username.as_str());
        self.pulls.lock().push(format!("{image} as {user:?}"));
        {
            let mut at_once = self.at_once.lock();
            at_once.0 += 1;
            at_once.1 = at_once.1.max(at_once.0);
        }
        sleep(self.takes).await;
        self.at_once.lock().0 -= 1;
        if let Some(e) = *self.fails.lock() {
            return Err(e.to_owned());
        }
        if self.opens_for.is_some_and(|u| u != user) {
            let shown = auth.map_or("", |c| c.auth.password.reveal());
            return Err(format!("401 unauthorized for {user:?} {shown}"));
        }
        self.images.lock().push(image.to_owned());
        Ok(format!("id-{image}"))
    }
    async fn progress(&self, _: &str) -> Option<u64> {
        *self.progress.lock()
    }
    fn event(&self, warning: bool, reason: &'static str, message: String) {
        self.events.lock().push(format!("{} {reason}: {message}", if warning { "Warning" } else { "Normal" }));
    }
}

fn manager(dir: &Path, node: &str, options: PullOptions) -> PullManager {
    let clock = Arc::new(TokioClock::starting_at("2026-01-01T00:00:00Z".parse().unwrap()));
    let metrics = Arc::new(Metrics::default());
    let providers = Providers::new(
        Config::default(),
        Options {
            executor: Arc::new(ProcessExecutor::new(dir)),
            accounts: Arc::new(NoServiceAccounts),
            clock: clock.clone(),
            events: Arc::new(NoEvents),
            metrics: metrics.clone(),
            processes_max: 8,
        },
    );
    let file = dir.join("config.json");
    std::fs::write(&file, node).unwrap();
    let node = Arc::new(NodeConfig::at(vec![(file, DockerConfigFormat::ConfigJson)]));
    PullManager::open(dir, options, node, Arc::new(providers), clock, metrics).unwrap()
}

fn pod(n: usize) -> PodIdentity {
    PodIdentity { namespace: "ns".into(), name: format!("pod-{n}"), uid: format!("uid-{n}"), ..Default::default() }
}

fn secret(name: &str, user: &str) -> PullSecret {
    let json = format!("{{\"auths\":{{\"r.io\":{{\"username\":{user:?},\"password\":\"hunter2-{user}\"}}}}}}");
    let data = BTreeMap::from([(CONFIG_JSON_KEY.to_owned(), Zeroizing::new(json.into_bytes()))]);
    let coordinates = Coordinates { namespace: "ns".into(), name: name.into(), uid: format!("uid-{name}") };
    PullSecret { coordinates, kind: "kubernetes.io/dockerconfigjson".into(), data }
}

async fn ensure(
    m: &PullManager,
    r: &Runtime,
    n: usize,
    image: &str,
    policy: PullPolicy,
    secrets: &[PullSecret],
) -> Result<Present, EnsureError> {
    m.ensure(&EnsureRequest { pod: &pod(n), image, policy, secrets }, r).await
}

#[tokio::test(start_paused = true)]
async fn pulled_with_the_first_credentials_that_open() {
    let dir = tempfile::tempdir().unwrap();
    let node = "{\"auths\":{\"r.io\":{\"username\":\"node\",\"password\":\"x\"},\"r.io/team\":{\"username\":\"team\",\"password\":\"x\"}}}";
    let m = manager(dir.path(), node, PullOptions::default());
    let r = Runtime { opens_for: Some("mine"), takes: Duration::from_millis(1500), ..Default::default() };
    let secrets = [secret("s", "mine")];
    let got = ensure(&m, &r, 0, "r.io/team/app", PullPolicy::Always, &secrets).await.unwrap();
    assert_eq!((got.reference.as_str(), got.size), ("id-r.io/team/app:latest", 7));
    assert_eq!(*r.pulls.lock(), ["r.io/team/app:latest as \"team\"", "r.io/team/app:latest as \"mine\""]);
    assert_eq!(
        *r.events.lock(),
        [
            "Normal Pulling: Pulling image \"r.io/team/app\"",
            "Normal Pulled: Successfully pulled image \"r.io/team/app\" in 3s (3s including waiting). Image size: 7 bytes."
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn another_tenants_image_needs_credentials_again() {
    let dir = tempfile::tempdir().unwrap();
    let m = manager(dir.path(), "{}", PullOptions::default());
    let r = Runtime { opens_for: Some("mine"), ..Default::default() };
    let mine = [secret("s", "mine")];
    ensure(&m, &r, 0, "r.io/app:1", PullPolicy::IfNotPresent, &mine).await.unwrap();
    for (n, policy, secrets, want) in [
        (1, PullPolicy::IfNotPresent, &[][..], Err("ErrImagePull")),
        (2, PullPolicy::IfNotPresent, &[secret("t", "thief")][..], Err("ErrImagePull")),
        (3, PullPolicy::Never, &[][..], Err("ErrImageNeverPull")),
        (4, PullPolicy::Never, &mine[..], Ok(())),
        (5, PullPolicy::IfNotPresent, &mine[..], Ok(())),
    ] {
        let got = ensure(&m, &r, n, "r.io/app:1", policy, secrets).await;
        assert_eq!(got.map(drop).map_err(|e| e.reason), want, "{n}");
    }
    assert_eq!(r.pulls.lock().len(), 3);
    let last = r.events.lock().last().cloned();
    assert_eq!(
        last.as_deref(),
        Some("Normal Pulled: Container image \"r.io/app:1\" already present on machine and can be accessed by the pod")
    );
    // Absent and forbidden must not be distinguishable.
    let absent = ensure(&m, &r, 3, "r.io/absent:1", PullPolicy::Never, &[]).await.unwrap_err();
    let hidden = ensure(&m, &r, 3, "r.io/app:1", PullPolicy::Never, &[]).await.unwrap_err();
    assert_eq!(absent.message.replace("absent", "app"), hidden.message);
}

#[tokio::test(start_paused = true)]
async fn errors_name_sources_and_no_credential() {
    let dir = tempfile::tempdir().unwrap();
    let m = manager(
        dir.path(),
        "{\"auths\":{\"r.io\":{\"username\":\"node\",\"password\":\"hunter2-node\"}}}",
        PullOptions::default(),
    );
    let r = Runtime { opens_for: Some("else"), ..Default::default() };
    let e = ensure(&m, &r, 0, "r.io/app:1", PullPolicy::IfNotPresent, &[secret("s", "mine")]).await.unwrap_err();
    assert_eq!(e.reason, "ErrImagePull");
    assert_eq!(
        e.message,
        "[401 unauthorized for \"mine\" [redacted], 401 unauthorized for \"node\" [redacted]] (credentials tried: image pull secret \"s\", docker configuration of the node)"
    );
    // The next try is a back-off that repeats the cause.
    let b = ensure(&m, &r, 0, "r.io/app:1", PullPolicy::IfNotPresent, &[]).await.unwrap_err();
    assert_eq!((b.reason, b.message), ("ImagePullBackOff", format!("Back-off pulling image \"r.io/app:1\": {e}")));
    assert_eq!(r.events.lock().last().unwrap(), "Normal BackOff: Back-off pulling image \"r.io/app:1\"");
    assert!(m.retry_at("uid-0", "r.io/app:1").is_some() && m.retry_at("uid-1", "r.io/app:1").is_none());
    sleep(Duration::from_secs(10)).await;
    *r.fails.lock() = Some("RegistryUnavailable: dial tcp: refused");
    let e = ensure(&m, &r, 0, "r.io/app:1", PullPolicy::IfNotPresent, &[]).await.unwrap_err();
    assert_eq!(e.reason, "RegistryUnavailable");
    assert!(
        e.message
            .starts_with("image pull failed for r.io/app:1 because the registry is unavailable: dial tcp: refused")
    );
    assert_eq!(m.records().counts(), (0, 0));
    assert!(!format!("{:?}", r.events.lock()).contains("hunter2"));
    let bad = ensure(&m, &r, 0, "Not Ok", PullPolicy::Always, &[]).await.unwrap_err();
    assert_eq!(bad.reason, "InvalidImageName");
}

#[tokio::test(start_paused = true)]
async fn one_after_the_other_or_some_at_once() {
    for (serialize, parallel_max, want) in [(true, None, 1), (false, Some(3), 3), (false, None, 6)] {
        let dir = tempfile::tempdir().unwrap();
        let options = PullOptions { serialize, parallel_max, ..Default::default() };
        let m = manager(dir.path(), "{}", options);
        let r = Runtime { takes: Duration::from_secs(1), ..Default::default() };
        let images: Vec<String> = (0..6).map(|i| format!("r.io/{i}:1")).collect();
        let pulls = images.iter().map(|i| ensure(&m, &r, 0, i, PullPolicy::Always, &[]));
        for p in futures::future::join_all(pulls).await {
            p.unwrap();
        }
        assert_eq!(r.at_once.lock().1, want);
    }
}

#[tokio::test(start_paused = true)]
async fn too_many_pulls_a_second() {
    let dir = tempfile::tempdir().unwrap();
    let m = manager(dir.path(), "{}", PullOptions { qps: 1.0, burst: 2, serialize: false, ..Default::default() });
    let r = Runtime::default();
    for n in 0..2 {
        ensure(&m, &r, n, "r.io/a:1", PullPolicy::Always, &[]).await.unwrap();
    }
    let e = ensure(&m, &r, 3, "r.io/a:1", PullPolicy::Always, &[]).await.unwrap_err();
    assert_eq!((e.reason, e.message.as_str()), ("ErrImagePull", "pull QPS exceeded"));
}

#[tokio::test(start_paused = true)]
async fn a_pull_without_progress_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let m = manager(dir.path(), "{}", PullOptions::default());
    let r = Runtime { takes: Duration::from_secs(10_000), progress: Mutex::new(Some(5)), ..Default::default() };
    let e = ensure(&m, &r, 0, "r.io/a:1", PullPolicy::Always, &[]).await.unwrap_err();
    assert_eq!(e.message, "image pull progress deadline exceeded: no progress for 1m0s");
    // Where the runtime says nothing of progress, a long pull is a long pull.
    *r.progress.lock() = None;
    assert!(ensure(&m, &r, 1, "r.io/a:1", PullPolicy::Always, &[]).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_pull_that_is_dropped_leaves_no_intent() {
    // What is left to the lane is done at once.
    kelson_tasks::block_inline_on_this_thread();
    let dir = tempfile::tempdir().unwrap();
    let m = manager(dir.path(), "{}", PullOptions::default());
    let r = Runtime { takes: Duration::from_secs(10_000), ..Default::default() };
    let began =
        tokio::time::timeout(Duration::from_secs(1), ensure(&m, &r, 0, "r.io/a:1", PullPolicy::Always, &[])).await;
    assert!(began.is_err());
    assert_eq!(m.records().counts(), (0, 0));
}
