//! Jobs and what makes them.
use std::time::Duration;

use futures::future::BoxFuture;
use kelson_simulation::{Api, Fate};
use rand::Rng as _;
use serde_json::{Value, json};

use crate::history::{Cast, History, Noise, condition_text, each, is_going, time};

const JOBS: &str = "batch/v1/jobs";
const CRONS: &str = "batch/v1/cronjobs";
const JOB: Noise = Noise::Touch(JOBS, "n", "j");

fn job(spec: Value) -> Value {
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "c"}]}});
    let mut job = json!({"metadata": {"name": "j", "namespace": "n"}, "spec": {"template": template}});
    for (key, value) in spec.as_object().unwrap() {
        job["spec"][key] = value.clone();
    }
    job
}

/// Kubelets run the pods.
fn run(api: Api, _: u64) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        api.play_pods(|_| Some(Fate::Ready)).await;
    })
}

/// The job asks for another number of pods at once.
fn resize(api: Api, number: u64) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        api.patch(JOBS, "n", "j", "", json!({"spec": {"parallelism": 1 + number % 3}})).await;
    })
}

#[test]
fn a_job_fails_at_its_deadline() {
    each(Cast::of(&["job-controller"]), async |history: &mut History| {
        let deadline = history.rng.random_range(5..300);
        history.api.create(JOBS, job(json!({"activeDeadlineSeconds": deadline}))).await;
        history.api.settle().await;
        let started = history.api.get(JOBS, "n", "j").await.unwrap()["status"]["startTime"].clone();
        let due = time(&started) + Duration::from_secs(deadline);
        let noises = [JOB, Noise::Restart, Noise::Fault, Noise::Do(run), Noise::Do(resize)];
        let failed = async |api: &Api| {
            let job = api.get(JOBS, "n", "j").await.unwrap();
            condition_text(&job, "FailureTarget") == "True DeadlineExceeded"
        };
        history.acts_at(due, &noises, failed, failed).await;
        let job = history.api.get(JOBS, "n", "j").await.unwrap();
        assert_eq!(job["status"]["startTime"], started);
    });
}

#[test]
fn a_job_that_is_resumed_has_its_deadline_again() {
    each(Cast::of(&["job-controller"]), async |history: &mut History| {
        let deadline = history.rng.random_range(5..100);
        history.api.create(JOBS, job(json!({"activeDeadlineSeconds": deadline}))).await;
        history.api.settle().await;
        history.api.patch(JOBS, "n", "j", "", json!({"spec": {"suspend": true}})).await;
        tokio::time::sleep(Duration::from_secs(history.rng.random_range(2..300))).await;
        history.api.patch(JOBS, "n", "j", "", json!({"spec": {"suspend": false}})).await;
        let due = time(&json!(history.seconds())) + Duration::from_secs(deadline);
        let failed = async |api: &Api| {
            let job = api.get(JOBS, "n", "j").await.unwrap();
            condition_text(&job, "FailureTarget") == "True DeadlineExceeded"
        };
        let noises = [JOB, Noise::Restart, Noise::Do(run), Noise::Do(resize)];
        history.acts_at(due, &noises, failed, failed).await;
    });
}

/// Changes an annotation of some pod, as others do.
fn touch_pod(api: Api, number: u64) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let pods = api.list("v1/pods").await;
        let Some(pod) = pods.get(usize::try_from(number).unwrap_or(0) % pods.len().max(1)) else { return };
        let patch = json!({"metadata": {"annotations": {"example.com/touched": number.to_string()}}});
        api.patch("v1/pods", "n", pod["metadata"]["name"].as_str().unwrap(), "", patch).await;
    })
}

/// Fails the pods of a job one after the other: each replacement comes 10, 20, 40 … seconds after the failure.
async fn backs_off(history: &mut History, spec: Value, noises: &[Noise]) {
    history.api.create(JOBS, job(spec)).await;
    history.api.settle().await;
    for failures in 1..6_u32 {
        tokio::time::sleep(Duration::from_secs(history.rng.random_range(1..20))).await;
        history.api.play_pods(|_| Some(Fate::Failed(1))).await;
        let due = time(&json!(history.seconds())) + Duration::from_secs(10 << (failures - 1));
        let pods = async |api: &Api| api.list("v1/pods").await.len() == failures as usize + 1;
        history.acts_at(due, noises, pods, pods).await;
    }
}

#[test]
fn replacements_of_failed_pods_wait_twice_as_long_each_time() {
    each(Cast::of(&["job-controller"]), async |history: &mut History| {
        // What a job's failures were is not known after a restart, upstream neither.
        backs_off(history, json!({"backoffLimit": 10}), &[JOB, Noise::Fault, Noise::Do(touch_pod)]).await;
    });
}

#[test]
fn replacements_of_an_index_wait_over_restarts() {
    each(Cast::of(&["job-controller"]), async |history: &mut History| {
        let spec = json!({"completionMode": "Indexed", "completions": 1, "backoffLimitPerIndex": 10});
        backs_off(history, spec, &[JOB, Noise::Restart, Noise::Fault, Noise::Do(touch_pod)]).await;
    });
}

#[test]
fn failures_that_a_policy_ignores_are_waited_for_as_well() {
    each(Cast::of(&["job-controller"]), async |history: &mut History| {
        let rule = json!({"action": "Ignore", "onExitCodes": {"operator": "In", "values": [1]}});
        let spec = json!({"backoffLimit": 0, "podFailurePolicy": {"rules": [rule]}});
        backs_off(history, spec, &[JOB, Noise::Fault, Noise::Do(touch_pod)]).await;
    });
}

#[test]
fn a_finished_job_goes_when_its_time_to_live_is_over() {
    each(Cast::of(&["ttl-after-finished-controller"]), async |history: &mut History| {
        let ttl = history.rng.random_range(1..400);
        history.api.create(JOBS, job(json!({"ttlSecondsAfterFinished": ttl}))).await;
        tokio::time::sleep(Duration::from_secs(history.rng.random_range(1..50))).await;
        let at = history.seconds();
        let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": at});
        let conditions = [condition("SuccessCriteriaMet"), condition("Complete")];
        let status = json!({"startTime": at, "completionTime": at, "conditions": conditions});
        history.api.patch(JOBS, "n", "j", "status", json!({"status": status})).await;
        let mut due = time(&json!(at)) + Duration::from_secs(ttl);
        if history.rng.random_bool(0.5) {
            // A user gives it more time.
            let more = history.rng.random_range(1..200);
            history.api.patch(JOBS, "n", "j", "", json!({"spec": {"ttlSecondsAfterFinished": ttl + more}})).await;
            due += Duration::from_secs(more);
        }
        let going = async |api: &Api| is_going(api, JOBS, "n", "j").await;
        history.acts_at(due, &[JOB, Noise::Restart, Noise::Fault], going, going).await;
    });
}

fn cron(deadline: u64) -> Value {
    let template = job(json!({}))["spec"].clone();
    json!({"metadata": {"name": "tick", "namespace": "n"}, "spec": {"schedule": "*/10 * * * *",
        "startingDeadlineSeconds": deadline, "jobTemplate": {"spec": template}}})
}

#[test]
fn a_cron_job_runs_at_its_times_once() {
    each(Cast::of(&["cronjob-controller"]), async |history: &mut History| {
        history.api.create(CRONS, cron(30)).await;
        let noises = [Noise::Touch(CRONS, "n", "tick"), Noise::Restart, Noise::Fault];
        let midnight = time(&json!("2026-01-01T00:00:00Z"));
        for run in 1..4_usize {
            let due = midnight + Duration::from_secs(600 * run as u64);
            let jobs = async |api: &Api| api.list(JOBS).await.len() == run;
            history.acts_at(due, &noises, jobs, jobs).await;
        }
    });
}

#[test]
fn a_missed_run_is_made_up_for_until_its_starting_deadline() {
    each(Cast::of(&["cronjob-controller"]), async |history: &mut History| {
        history.api.create(CRONS, cron(100)).await;
        history.api.settle().await;
        history.stop().await;
        let late = history.rng.random_range(1..200);
        let due = time(&json!("2026-01-01T00:10:00Z"));
        let start = due + Duration::from_secs(late);
        tokio::time::sleep(Duration::try_from(start.duration_since(history.now())).unwrap()).await;
        history.start().await;
        let noises = [Noise::Touch(CRONS, "n", "tick"), Noise::Restart];
        let made = usize::from(late <= 100);
        if made == 1 {
            let jobs = async |api: &Api| api.list(JOBS).await.len() == 1;
            history.acts_at(history.now(), &noises, jobs, jobs).await;
        }
        let next = due + Duration::from_secs(600);
        let jobs = async |api: &Api| api.list(JOBS).await.len() == made + 1;
        history.acts_at(next, &noises, jobs, jobs).await;
    });
}
