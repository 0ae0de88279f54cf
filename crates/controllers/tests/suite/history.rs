//! Random histories for controllers that wait: what a controller does at a certain time it must do at that time and once,
//! whatever happens before. A seed decides each history, so that a failure can be repeated.
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use kelson_client::Client;
use kelson_controllers::{Config, Controllers, Running};
use kelson_meta::Clock as _;
use kelson_simulation::{Api, run_seeded};
use kelson_tasks::Tasks;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

/// Histories of each test.
const SEEDS: u64 = 4;
/// The same of tests that wait for days: the server's own timers make them long.
const SEEDS_OF_DAYS: u64 = 2;
/// Shortest time between two looks.
const LOOK_MIN: Duration = Duration::from_millis(500);
/// Looks in the whole time that a test waits.
const LOOKS: u32 = 300;
/// The time that a controller may take in addition to one sync: one second that times on the wire leave out, and its
/// pauses.
const LATE_MAX: Duration = Duration::from_secs(3);
/// The same where writes fail: upstream's job controller retries after one second, then after two.
const LATE_WITH_FAULTS_MAX: Duration = Duration::from_secs(7);

/// Something that a test does to the cluster, with a random number to vary it.
pub type TestAction = fn(Api, u64) -> BoxFuture<'static, ()>;

/// The events that may happen while a controller waits. None of them changes the time at which it must act.
#[derive(Clone, Copy)]
pub enum Noise {
    /// An annotation of this object changes: resource, namespace, name. An object that is gone is left alone.
    Touch(&'static str, &'static str, &'static str),
    /// The controllers end and start again.
    Restart,
    /// The next write of a controller meets a conflict or does not arrive.
    Fault,
    /// Something else that a test does.
    Do(TestAction),
}

/// The components that run in a history.
#[derive(Clone, Copy)]
pub struct Cast {
    /// Names of controllers.
    pub controllers: &'static [&'static str],
    /// Settings of the controllers, but for their names.
    pub config: fn() -> Config,
    /// A client of a controller.
    pub client: fn(&Api, &str) -> Client,
    /// Happens at least every ten seconds.
    pub beat: Option<TestAction>,
}

impl Cast {
    /// These controllers with upstream's defaults.
    pub const fn of(controllers: &'static [&'static str]) -> Self {
        Self { controllers, config: Config::default, client: |api, user| api.client_as(user), beat: None }
    }
}

/// One history: an API server with the namespace `n`, and controllers.
pub struct History {
    pub api: Api,
    pub rng: StdRng,
    cast: Cast,
    running: Option<Running>,
    /// The log of events for a failing test.
    log: Vec<String>,
    seed: u64,
}

/// Runs a test on as many histories as there are seeds.
pub fn each(cast: Cast, test: impl AsyncFn(&mut History) + Copy + Send + 'static) {
    run(SEEDS, cast, test);
}

/// As [`each`], for a test that waits for days.
pub fn each_of_days(cast: Cast, test: impl AsyncFn(&mut History) + Copy + Send + 'static) {
    run(SEEDS_OF_DAYS, cast, test);
}

fn run(seeds: u64, cast: Cast, test: impl AsyncFn(&mut History) + Copy + Send + 'static) {
    for seed in 0..seeds {
        run_seeded(seed, move || async move {
            let api = Api::start().await;
            api.namespace("n").await;
            let rng = StdRng::seed_from_u64(seed);
            let mut history = History { api, rng, cast, running: None, log: Vec::new(), seed };
            history.start().await;
            test(&mut history).await;
            history.stop().await;
        });
    }
}

impl History {
    /// Starts the controllers.
    pub async fn start(&mut self) {
        let (api, client) = (self.api.clone(), self.cast.client);
        let controllers = self.cast.controllers.iter().map(|name| (*name).to_owned()).collect();
        let config = Config { controllers, ..(self.cast.config)() };
        let factory = Box::new(move |user: &str| client(&api, user));
        let running = Controllers::start(config, factory, Arc::new(self.api.clock), Tasks::root("controllers"));
        running.synced().await;
        self.running = Some(running);
    }

    /// Ends the controllers.
    pub async fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.shutdown().await;
        }
    }

    /// The time of the cluster, which is paused.
    pub fn now(&self) -> Timestamp {
        self.api.clock.now()
    }

    /// The time as the API writes it.
    pub fn seconds(&self) -> String {
        kelson_meta::format_seconds(self.now())
    }

    /// Counts the controllers' writes with this method and a path with this ending.
    pub fn writes(&self, method: &str, end: &str) -> usize {
        let of = |w: &String| w.starts_with(method) && w.ends_with(end);
        self.api.writes().into_iter().filter(of).count()
    }

    async fn happen(&mut self, noise: Noise) {
        match noise {
            Noise::Touch(resource, namespace, name) => {
                if self.api.get(resource, namespace, name).await.is_some() {
                    let value = self.rng.random::<u32>().to_string();
                    let patch = json!({"metadata": {"annotations": {"example.com/touched": value}}});
                    self.api.patch(resource, namespace, name, "", patch).await;
                }
                self.note(format!("{resource} {name} changes"));
            }
            Noise::Restart => {
                self.stop().await;
                self.start().await;
                self.note("the controllers start again".to_owned());
            }
            // One at a time: a retry that fails as well waits longer.
            Noise::Fault if self.api.faults.planned() => {}
            Noise::Fault => {
                let failure = kelson_simulation::DISTURBANCES[usize::from(self.rng.random_bool(0.5)) * 2];
                self.api.faults.fail_write(1, failure);
                self.note(format!("{failure:?} at the next write"));
            }
            Noise::Do(deed) => {
                let number = self.rng.random();
                deed(self.api.clone(), number).await;
                self.note(format!("the test's own deed, {number}"));
            }
        }
    }

    fn note(&mut self, what: String) {
        let line = format!("{} {what}", self.now());
        self.log.push(line);
    }

    /// Lets random things happen until the controller has acted, at most for `limit`; gives the time before and after the look
    /// that found that it has.
    async fn watch(
        &mut self,
        noises: &[Noise],
        limit: Duration,
        acted: &impl AsyncFn(&Api) -> bool,
    ) -> Option<(Timestamp, Timestamp)> {
        let end = self.now() + limit;
        let look = (limit / LOOKS).max(LOOK_MIN);
        let mut next = self.pause(limit);
        let mut beat = self.now();
        let mut before = self.now();
        loop {
            if acted(&self.api).await {
                return Some((before, self.now()));
            }
            if self.now() >= end {
                return None;
            }
            before = self.now();
            if let Some(deed) = self.cast.beat.filter(|_| beat <= before) {
                deed(self.api.clone(), 0).await;
                beat = before + Duration::from_secs(9);
            }
            if next <= before && !noises.is_empty() {
                let noise = noises[self.rng.random_range(0..noises.len())];
                self.happen(noise).await;
                next = self.pause(limit);
            }
            tokio::time::sleep(look).await;
        }
    }

    /// When something happens next: often enough for a dozen things in all, sometimes two at once.
    fn pause(&mut self, limit: Duration) -> Timestamp {
        let most = u64::try_from(limit.as_millis() / 8).unwrap_or(u64::MAX);
        self.now() + Duration::from_millis(self.rng.random_range(0..=most))
    }

    /// Demands that the controller acts at `due` and neither before nor later, whatever happens; and afterwards, for half the time
    /// again, that `stays` holds.
    pub async fn acts_at(
        &mut self,
        due: Timestamp,
        noises: &[Noise],
        acted: impl AsyncFn(&Api) -> bool,
        stays: impl AsyncFn(&Api) -> bool,
    ) {
        self.acts_between(due, due, noises, acted, stays).await;
    }

    /// As [`acts_at`](Self::acts_at), where upstream's documentation leaves some time open.
    pub async fn acts_between(
        &mut self,
        due: Timestamp,
        latest: Timestamp,
        noises: &[Noise],
        acted: impl AsyncFn(&Api) -> bool,
        stays: impl AsyncFn(&Api) -> bool,
    ) {
        let left = Duration::try_from(latest.duration_since(self.now())).unwrap_or_default();
        let limit = left + left / 4 + 4 * LATE_MAX;
        let seen = self.watch(noises, limit, &acted).await;
        let seed = self.seed;
        let Some((before, after)) = seen else {
            panic!("seed {seed}: nothing was done by {}, due at {due}\n{}", self.now(), self.log.join("\n"))
        };
        assert!(after >= due, "seed {seed}: done by {after}, due at {due}\n{}", self.log.join("\n"));
        let late = before.duration_since(latest);
        let is_faulty = noises.iter().any(|noise| matches!(noise, Noise::Fault));
        let late_max = if is_faulty { LATE_WITH_FAULTS_MAX } else { LATE_MAX };
        assert!(
            late < jiff::SignedDuration::try_from(late_max).unwrap(),
            "seed {seed}: done after {before}, due at {latest}\n{}",
            self.log.join("\n")
        );
        let again = self.watch(noises, limit / 2, &async |api: &Api| !stays(api).await).await;
        assert!(again.is_none(), "seed {seed}: done at {after}, and not so at {again:?}\n{}", self.log.join("\n"));
    }
}

/// Whether an object has a deletion time, or is gone.
pub async fn is_going(api: &Api, resource: &str, namespace: &str, name: &str) -> bool {
    let object = api.get(resource, namespace, name).await;
    object.is_none_or(|o| !o["metadata"]["deletionTimestamp"].is_null())
}

/// The condition of this type.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == kind)
}

/// Status and reason of the condition of this type, `STATUS REASON`.
pub fn condition_text(object: &Value, kind: &str) -> String {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    condition(object, kind).map(|c| format!("{} {}", text(&c["status"]), text(&c["reason"]))).unwrap_or_default()
}

/// A time that an object has.
pub fn time(value: &Value) -> Timestamp {
    value.as_str().and_then(|t| t.parse().ok()).unwrap_or_else(|| panic!("no time: {value}"))
}
