//! Jobs against the API server in memory on a paused clock.
use kelson_meta::Clock as _;
use kelson_simulation::{Api, DISTURBANCES, at_every_request};
use serde_json::{Value, json};

use crate::cluster::{run, start};

const JOBS: &str = "batch/v1/jobs";
const PODS: &str = "v1/pods";
const CONTROLLERS: &[&str] = &["job-controller", "garbage-collector-controller"];

fn job(spec: Value) -> Value {
    let mut j =
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "pi", "namespace": "n"}, "spec": spec});
    j["spec"]["template"] = json!({"spec": {"restartPolicy": "Never",
        "containers": [{"name": "c", "image": "example.com/c:1"}]}});
    j
}

async fn status(api: &Api) -> Value {
    api.get(JOBS, "n", "pi").await.expect("the job")["status"].clone()
}

fn conditions(status: &Value) -> String {
    let all = status["conditions"].as_array().cloned().unwrap_or_default();
    let word = |c: &Value| format!("{}={} {}", c["type"], c["status"], c["reason"]).replace('"', "");
    all.iter().map(word).collect::<Vec<_>>().join(", ")
}

/// Names of the pods that have not ended and are not going.
async fn live(api: &Api) -> Vec<String> {
    let all = api.list(PODS).await;
    let runs = |p: &&Value| {
        p["metadata"]["deletionTimestamp"].is_null()
            && !matches!(p["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
    };
    all.iter().filter(runs).map(|p| p["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

async fn end(api: &Api, name: &str, phase: &str, code: i32) {
    let at = kelson_meta::format_seconds(api.clock.now());
    api.change(PODS, "n", name, |p| {
        p["status"]["phase"] = json!(phase);
        p["status"]["containerStatuses"] = json!([{"name": "c", "image": "i", "imageID": "i", "ready": false,
            "restartCount": 0, "state": {"terminated": {"exitCode": code, "finishedAt": at}}}]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_job_completes_with_exact_counts() {
    let (api, _running) = start(CONTROLLERS).await;
    api.create(JOBS, job(json!({"completions": 3, "parallelism": 2}))).await;
    api.settle().await;
    assert_eq!(live(&api).await.len(), 2);
    let s = status(&api).await;
    assert_eq!((&s["active"], &s["ready"], &s["terminating"]), (&json!(2), &json!(0), &json!(0)));
    let pods = api.list(PODS).await;
    assert_eq!(pods[0]["metadata"]["finalizers"], json!(["batch.kubernetes.io/job-tracking"]));
    assert_eq!(pods[0]["metadata"]["labels"]["job-name"], "pi");

    let first = live(&api).await;
    end(&api, &first[0], "Failed", 1).await;
    end(&api, &first[1], "Succeeded", 0).await;
    api.settle().await;
    let s = status(&api).await;
    assert_eq!((&s["succeeded"], &s["failed"], &s["uncountedTerminatedPods"]), (&json!(1), &json!(1), &json!({})));
    for _ in 0..2 {
        tokio::time::sleep(std::time::Duration::from_secs(15)).await;
        for name in live(&api).await {
            end(&api, &name, "Succeeded", 0).await;
        }
        api.settle().await;
    }
    let s = status(&api).await;
    assert_eq!((&s["succeeded"], &s["failed"], &s["active"]), (&json!(3), &json!(1), &Value::Null));
    assert_eq!(conditions(&s), "SuccessCriteriaMet=True CompletionsReached, Complete=True CompletionsReached");
    assert!(s["completionTime"].is_string());
    let pods = api.list(PODS).await;
    assert!(pods.iter().all(|p| p["metadata"]["finalizers"].is_null()), "every pod is let go");
    assert!(api.events().await.contains(&"Completed Job completed".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn failures_wait_longer_each_time_and_end_the_job() {
    let (api, _running) = start(CONTROLLERS).await;
    api.create(JOBS, job(json!({"backoffLimit": 2}))).await;
    api.settle().await;
    for wait in [10, 20] {
        end(&api, &live(&api).await[0], "Failed", 1).await;
        tokio::time::sleep(std::time::Duration::from_secs(wait - 2)).await;
        assert!(live(&api).await.is_empty(), "before {wait} s");
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        assert_eq!(live(&api).await.len(), 1, "after {wait} s");
    }
    end(&api, &live(&api).await[0], "Failed", 1).await;
    api.settle().await;
    let s = status(&api).await;
    assert_eq!(conditions(&s), "FailureTarget=True BackoffLimitExceeded, Failed=True BackoffLimitExceeded");
    assert_eq!(s["failed"], 3);
    assert!(
        api.events().await.contains(&"BackoffLimitExceeded Job has reached the specified backoff limit".to_owned())
    );
}

#[tokio::test(start_paused = true)]
async fn an_indexed_job_scales_and_counts_its_indexes() {
    let (api, _running) = start(CONTROLLERS).await;
    let spec = json!({"completionMode": "Indexed", "completions": 4, "parallelism": 4, "backoffLimitPerIndex": 0});
    api.create(JOBS, job(spec)).await;
    api.settle().await;
    let pods = api.list(PODS).await;
    let hosts: Vec<&str> = pods.iter().filter_map(|p| p["spec"]["hostname"].as_str()).collect();
    assert_eq!(hosts, ["pi-0", "pi-1", "pi-2", "pi-3"]);
    assert_eq!(pods[2]["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"], "2");
    let name = |i: usize| pods[i]["metadata"]["name"].as_str().unwrap().to_owned();
    end(&api, &name(0), "Succeeded", 0).await;
    end(&api, &name(1), "Failed", 1).await;
    api.settle().await;
    let s = status(&api).await;
    assert_eq!((&s["completedIndexes"], &s["failedIndexes"]), (&json!("0"), &json!("1")));
    // Scaled down: the pods of the indexes that are no more go.
    api.change(JOBS, "n", "pi", |j| {
        j["spec"]["completions"] = json!(3);
        j["spec"]["parallelism"] = json!(3);
    })
    .await;
    api.settle().await;
    assert_eq!(live(&api).await, [name(2)]);
    end(&api, &name(2), "Succeeded", 0).await;
    api.settle().await;
    let s = status(&api).await;
    assert_eq!((&s["completedIndexes"], &s["succeeded"]), (&json!("0,2"), &json!(2)));
    assert_eq!(conditions(&s), "FailureTarget=True FailedIndexes, Failed=True FailedIndexes");
}

#[tokio::test(start_paused = true)]
async fn suspended_jobs_have_no_pods() {
    let (api, _running) = start(CONTROLLERS).await;
    api.create(JOBS, job(json!({"activeDeadlineSeconds": 60}))).await;
    api.settle().await;
    api.change(JOBS, "n", "pi", |j| j["spec"]["suspend"] = json!(true)).await;
    api.settle().await;
    let s = status(&api).await;
    assert_eq!((conditions(&s).as_str(), &s["startTime"]), ("Suspended=True JobSuspended", &Value::Null));
    assert!(live(&api).await.is_empty());
    tokio::time::sleep(std::time::Duration::from_secs(120)).await;
    api.change(JOBS, "n", "pi", |j| j["spec"]["suspend"] = json!(false)).await;
    api.settle().await;
    assert_eq!(conditions(&status(&api).await), "Suspended=False JobResumed");
    assert_eq!(live(&api).await.len(), 1);
    tokio::time::sleep(std::time::Duration::from_secs(62)).await;
    let s = status(&api).await;
    assert!(conditions(&s).contains("FailureTarget=True DeadlineExceeded"), "{s}");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_job_leaves_no_pod_behind() {
    let (api, _running) = start(CONTROLLERS).await;
    api.create(JOBS, job(json!({"parallelism": 2}))).await;
    api.settle().await;
    assert_eq!(live(&api).await.len(), 2);
    api.delete(JOBS, "n", "pi", json!({"propagationPolicy": "Background"})).await;
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert_eq!(api.list(PODS).await, Vec::<Value>::new());
}

#[tokio::test(start_paused = true)]
async fn a_restart_at_any_moment_neither_loses_nor_doubles_a_pod() {
    for pause in (0..9).map(|n| std::time::Duration::from_millis(n * 25)) {
        let (api, running) = start(CONTROLLERS).await;
        api.create(JOBS, job(json!({"completions": 6, "parallelism": 3}))).await;
        api.settle().await;
        for name in live(&api).await {
            end(&api, &name, "Succeeded", 0).await;
        }
        tokio::time::sleep(pause).await;
        running.shutdown().await;
        let _running = run(&api, CONTROLLERS).await;
        api.settle().await;
        assert_eq!((status(&api).await["succeeded"].clone(), live(&api).await.len()), (json!(3), 3), "{pause:?}");
        for name in live(&api).await {
            end(&api, &name, "Succeeded", 0).await;
        }
        api.settle().await;
        let s = status(&api).await;
        assert_eq!(
            (&s["succeeded"], &s["failed"], api.list(PODS).await.len()),
            (&json!(6), &Value::Null, 6),
            "{pause:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn another_managers_job_is_left_alone() {
    let (api, _running) = start(CONTROLLERS).await;
    api.create(JOBS, job(json!({"managedBy": "example.com/other"}))).await;
    api.settle().await;
    assert_eq!((live(&api).await.len(), status(&api).await), (0, json!({})));
}

#[tokio::test(start_paused = true)]
async fn counts_are_exact_whichever_write_fails() {
    at_every_request(&DISTURBANCES, async |api: Api| {
        api.namespace("n").await;
        let _running = run(&api, CONTROLLERS).await;
        api.create(JOBS, job(json!({"completions": 2, "parallelism": 2}))).await;
        let mut failed = false;
        // Longer than what was expected of a write is waited for whose answer was lost (five minutes).
        for _ in 0..20 {
            tokio::time::sleep(std::time::Duration::from_secs(30)).await;
            for name in live(&api).await {
                let (phase, code) = if failed { ("Succeeded", 0) } else { ("Failed", 1) };
                end(&api, &name, phase, code).await;
                failed = true;
            }
        }
        let s = status(&api).await;
        assert_eq!((&s["succeeded"], &s["failed"], &s["active"]), (&json!(2), &json!(1), &Value::Null), "{s}");
        assert_eq!(conditions(&s), "SuccessCriteriaMet=True CompletionsReached, Complete=True CompletionsReached");
        let pods = api.list(PODS).await;
        assert_eq!(pods.len(), 3);
        assert!(pods.iter().all(|p| p["metadata"]["finalizers"].is_null()), "every pod is let go");
    })
    .await;
}
