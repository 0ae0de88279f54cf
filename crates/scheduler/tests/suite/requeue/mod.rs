//! Which changes of a cluster make the scheduler try a waiting pod again, by the reason for which it waits. Upstream's
//! specification is the events and hints of each plugin (`EventsToRegister`, `QueueingHintFn`). Where a cell differs
//! from upstream, the event says why.
// Helpers of a test fail by panicking, as the test itself does.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod events;
mod waiting;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kelson_metrics::Registry;
use kelson_scheduler::{Config, Profile, Running, Scheduler};
use kelson_simulation::Api;

use self::events::EVENTS;
use self::waiting::{WAITING, Waiting};

/// Long enough for every pod to be tried and for the longest back-off; shorter than the five minutes after which a pod
/// is always tried.
const REST: Duration = Duration::from_secs(60);

/// The number of scheduling attempts by profile. Each pod has its own profile.
fn attempts(metrics: &Registry) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for line in metrics.text().lines().filter_map(|l| l.strip_prefix("scheduler_schedule_attempts_total{profile=\"")) {
        let (profile, rest) = line.split_once('"').unwrap();
        let number: f64 = rest.rsplit(' ').next().unwrap().parse().unwrap();
        *all.entry(profile.to_owned()).or_default() += number as u64;
    }
    all
}

fn start(api: &Api, metrics: &Registry) -> Running {
    let profile = |w: &Waiting| Profile { name: w.name.into(), ..Profile::default() };
    let profiles = WAITING.iter().map(profile).collect();
    let config = Config { profiles, seed: Some(1), metrics: Some(metrics.clone()), ..Config::default() };
    let client = api.client_as("system:kube-scheduler");
    Scheduler::start(config, client, Arc::new(api.clock), None, &kelson_tasks::Tasks::root("scheduler"))
}

/// Creates a cluster in which each pod waits for a different reason.
async fn cluster() -> (Api, Registry, Running) {
    let disabled = ["TaintNodesByCondition", "ServiceAccount"].map(str::to_owned);
    let api = Api::with(|config| config.admission.disable = disabled.into()).await;
    waiting::prepare(&api).await;
    let metrics = Registry::of_component();
    let running = start(&api, &metrics);
    tokio::time::sleep(REST).await;
    for waiting in WAITING {
        let pod = api.get("v1/pods", "n", waiting.name).await.unwrap();
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let said = conditions.iter().find(|c| c["type"] == "PodScheduled").and_then(|c| c["message"].as_str());
        let said = said.unwrap_or_default();
        assert!(said.contains(waiting.reason), "{}: {said}", waiting.name);
        // Exactly one reason: another one would make it wait for other changes as well.
        let reasons = said.split(" preemption:").next().unwrap_or_default().matches("node(s)").count();
        assert!(reasons <= 1, "{}: {said}", waiting.name);
    }
    (api, metrics, running)
}

/// Returns the names of the pods that are tried after an event.
async fn looked_at(event: &events::Event) -> Vec<&'static str> {
    let (api, metrics, running) = cluster().await;
    if let Some(before) = event.before {
        before(api.clone()).await;
        tokio::time::sleep(REST).await;
    }
    let before = attempts(&metrics);
    (event.happens)(api.clone()).await;
    tokio::time::sleep(REST).await;
    let after = attempts(&metrics);
    running.shutdown().await;
    let of = |all: &BTreeMap<String, u64>, name: &str| all.get(name).copied().unwrap_or_default();
    WAITING.iter().map(|w| w.name).filter(|name| of(&after, name) > of(&before, name)).collect()
}

#[tokio::test(start_paused = true)]
async fn every_event_wakes_the_pods_that_it_may_help_and_no_others() {
    let mut wrong = Vec::new();
    for event in EVENTS.into_iter().flatten() {
        let found = looked_at(event).await;
        let expected: Vec<&str> = event.wakes.split_whitespace().collect();
        for name in &expected {
            assert!(WAITING.iter().any(|w| w.name == *name), "{}: no pod waits as {name}", event.name);
        }
        let missed: Vec<&&str> = expected.iter().filter(|name| !found.contains(name)).collect();
        let needless: Vec<&&str> = found.iter().filter(|name| !expected.contains(name)).collect();
        if !missed.is_empty() || !needless.is_empty() {
            wrong.push(format!("{}: missed {missed:?}, needless {needless:?}", event.name));
        }
    }
    assert!(wrong.is_empty(), "{} events:\n{}", wrong.len(), wrong.join("\n"));
}
