//! Cron jobs against the API server in memory on a paused clock, which starts at 2026-01-01T00:00:00Z.
use std::time::Duration;

use kelson_simulation::{Api, DISTURBANCES, at_every_request};
use serde_json::{Value, json};

use crate::cluster::{run, start};

const CRONS: &str = "batch/v1/cronjobs";
const JOBS: &str = "batch/v1/jobs";

fn cron(spec: Value) -> Value {
    let mut c = json!({"metadata": {"name": "tick", "namespace": "n"}, "spec": {"schedule": "* * * * *",
        "jobTemplate": {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}, "spec": {"template": {"spec":
            {"restartPolicy": "Never", "containers": [{"name": "c", "image": "example.com/c:1"}]}}}}}});
    for (k, v) in spec.as_object().unwrap() {
        c["spec"][k] = v.clone();
    }
    c
}

async fn until(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

async fn names(api: &Api) -> Vec<String> {
    crate::cluster::names(api, JOBS).await
}

/// Ends a job as the job controller would.
async fn finish(api: &Api, name: &str, kind: &str) {
    api.change(JOBS, "n", name, |j| {
        let at = "2026-01-01T00:00:00Z";
        let interim = if kind == "Complete" { "SuccessCriteriaMet" } else { "FailureTarget" };
        let c = |t: &str| json!({"type": t, "status": "True", "lastTransitionTime": at, "lastProbeTime": at});
        j["status"] = json!({"conditions": [c(interim), c(kind)], "startTime": at});
        if kind == "Complete" {
            j["status"]["completionTime"] = json!(at);
        }
    })
    .await;
}

/// The minute 2026-01-01T00:00 since the epoch.
const MIDNIGHT: i64 = 1_767_225_600 / 60;

#[tokio::test(start_paused = true)]
async fn fires_each_minute_and_keeps_its_books() {
    let (api, _running) = start(&["cronjob-controller"]).await;
    api.create(CRONS, cron(json!({"timeZone": "Asia/Tokyo"}))).await;
    until(125).await;
    assert_eq!(names(&api).await, [format!("tick-{}", MIDNIGHT + 1), format!("tick-{}", MIDNIGHT + 2)]);
    let job = &api.list(JOBS).await[0];
    let meta = &job["metadata"];
    let expected = json!({"c": "d", "batch.kubernetes.io/cronjob-scheduled-timestamp": "2026-01-01T09:01:00+09:00"});
    assert_eq!((&meta["annotations"], &meta["labels"]["a"]), (&expected, &json!("b")));
    assert_eq!(meta["ownerReferences"][0]["kind"], "CronJob");
    let status = api.get(CRONS, "n", "tick").await.unwrap()["status"].clone();
    assert_eq!(
        (status["active"].as_array().unwrap().len(), &status["lastScheduleTime"]),
        (2, &json!("2026-01-01T00:02:00Z"))
    );

    finish(&api, &format!("tick-{}", MIDNIGHT + 1), "Complete").await;
    until(1).await;
    let status = api.get(CRONS, "n", "tick").await.unwrap()["status"].clone();
    assert_eq!(status["active"].as_array().unwrap().len(), 1);
    assert_eq!(status["lastSuccessfulTime"], "2026-01-01T00:00:00Z");
    let events = api.events().await;
    let saw = format!("SawCompletedJob Saw completed job: tick-{}, condition: Complete", MIDNIGHT + 1);
    assert!(events.contains(&saw), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn concurrency_is_as_asked() {
    for (policy, want) in [("Allow", vec![1, 2]), ("Forbid", vec![1]), ("Replace", vec![2])] {
        let (api, _running) = start(&["cronjob-controller"]).await;
        api.create(CRONS, cron(json!({"concurrencyPolicy": policy}))).await;
        until(125).await;
        let want: Vec<String> = want.into_iter().map(|n| format!("tick-{}", MIDNIGHT + n)).collect();
        assert_eq!(names(&api).await, want, "{policy}");
        let forbidden = api.events().await.iter().any(|e| e.starts_with("JobAlreadyActive"));
        assert_eq!(forbidden, policy == "Forbid");
    }
}

#[tokio::test(start_paused = true)]
async fn history_is_short() {
    let (api, _running) = start(&["cronjob-controller"]).await;
    let limits = json!({"successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 0});
    api.create(CRONS, cron(limits)).await;
    until(190).await;
    for (n, kind) in [(1, "Complete"), (2, "Failed"), (3, "Complete")] {
        finish(&api, &format!("tick-{}", MIDNIGHT + n), kind).await;
    }
    until(2).await;
    assert_eq!(names(&api).await, [format!("tick-{}", MIDNIGHT + 3)]);
}

#[tokio::test(start_paused = true)]
async fn suspended_and_late_runs_do_not_begin() {
    let (api, running) = start(&["cronjob-controller"]).await;
    api.create(CRONS, cron(json!({"suspend": true, "startingDeadlineSeconds": 20}))).await;
    until(90).await;
    assert_eq!(names(&api).await, Vec::<String>::new());
    running.shutdown().await;
    api.change(CRONS, "n", "tick", |c| c["spec"]["suspend"] = json!(false)).await;
    let _running = run(&api, &["cronjob-controller"]).await;
    until(10).await;
    assert_eq!(names(&api).await, Vec::<String>::new(), "the run of a minute past is too late");
    until(25).await;
    assert_eq!(names(&api).await, [format!("tick-{}", MIDNIGHT + 2)]);
}

#[tokio::test(start_paused = true)]
async fn ended_jobs_go_after_their_time() {
    let (api, _running) = start(&["ttl-after-finished-controller", "garbage-collector-controller"]).await;
    let template = cron(json!({}))["spec"]["jobTemplate"]["spec"]["template"].clone();
    let spec = json!({"ttlSecondsAfterFinished": 100, "template": template});
    api.create(JOBS, json!({"metadata": {"name": "done", "namespace": "n"}, "spec": spec})).await;
    finish(&api, "done", "Failed").await;
    until(95).await;
    assert_eq!(names(&api).await, ["done"]);
    until(15).await;
    assert_eq!(names(&api).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn each_minute_has_one_job_whichever_write_fails() {
    at_every_request(&DISTURBANCES, async |api: Api| {
        api.namespace("n").await;
        let _running = run(&api, &["cronjob-controller"]).await;
        api.create(CRONS, cron(json!({"concurrencyPolicy": "Allow", "successfulJobsHistoryLimit": 9}))).await;
        until(230).await;
        let mut want: Vec<_> = (1..=3).map(|n| format!("tick-{}", MIDNIGHT + n)).collect();
        want.sort();
        assert_eq!(names(&api).await, want);
        for name in &want {
            finish(&api, name, "Complete").await;
        }
        api.settle().await;
        until(5).await;
        let status = api.get(CRONS, "n", "tick").await.unwrap()["status"].clone();
        assert!(status["active"].is_null() && status["lastSuccessfulTime"].is_string(), "{status}");
    })
    .await;
}
