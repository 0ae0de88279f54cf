//! Jobs and cron jobs on a real node: exact counts, indexes, failures, schedules.
use std::time::Duration;

use anyhow::ensure;
use kelson_blackbox::{Needs::Node, Outcome, Subject, Test, eventually};
use serde_json::json;

use crate::pods::IMAGE;

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "workloads::job_completes_with_exact_counts", needs: Node, run: completes },
        Test { name: "workloads::indexed_job_gives_each_pod_its_index", needs: Node, run: indexed },
        Test { name: "workloads::failed_job_says_why", needs: Node, run: fails },
        Test { name: "workloads::cron_job_fires", needs: Node, run: fires },
    ]
}

/// Returns a job whose pods run `script`; `spec` is added to its spec.
fn job(name: &str, spec: &str, script: &str) -> String {
    format!(
        "apiVersion: batch/v1
kind: Job
metadata: {{name: {name}}}
spec:
  {spec}
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers:
      - {{name: main, image: {IMAGE}, command: [sh, -c, '{script}']}}
"
    )
}

fn completes(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("w-job")?;
    k.apply(&job("count", "completions: 5\n  parallelism: 3", "true"))?;
    k.ok(&["wait", "job/count", "--for=condition=Complete", "--timeout=120s"])?;
    let status = k.json(&["get", "job", "count"])?["status"].clone();
    ensure!(status["succeeded"] == 5 && status["failed"].is_null() && status["active"].is_null(), "{status}");
    ensure!(status["uncountedTerminatedPods"] == json!({}), "{status}");
    let pods = k.json(&["get", "pods", "-l", "job-name=count"])?;
    let pods = pods["items"].as_array().cloned().unwrap_or_default();
    ensure!(pods.len() == 5, "{} pods", pods.len());
    ensure!(pods.iter().all(|p| p["metadata"]["finalizers"].is_null()), "a pod was not let go");
    ensure!(k.ok(&["get", "job", "count", "--no-headers"])?.contains("5/5"), "the table shows it");
    k.ok(&["delete", "job", "count", "--timeout=60s"])?;
    eventually("no pod is left", Duration::from_secs(60), || {
        ensure!(k.ok(&["get", "pods", "-o", "name"])?.is_empty(), "pods are left");
        Ok(())
    })
}

fn indexed(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("w-indexed")?;
    let spec = "completionMode: Indexed\n  completions: 3\n  parallelism: 3";
    k.apply(&job("each", spec, "echo $JOB_COMPLETION_INDEX on $(hostname)"))?;
    k.ok(&["wait", "job/each", "--for=condition=Complete", "--timeout=120s"])?;
    ensure!(k.ok(&["get", "job", "each", "-o", "jsonpath={.status.completedIndexes}"])? == "0-2", "indexes");
    let label = "batch.kubernetes.io/job-completion-index";
    for i in 0..3 {
        let said = k.ok(&["logs", "-l", &format!("{label}={i}")])?;
        ensure!(said.trim() == format!("{i} on each-{i}"), "{said}");
    }
    Ok(())
}

fn fails(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("w-failed")?;
    k.apply(&job("never", "backoffLimit: 0", "exit 3"))?;
    k.ok(&["wait", "job/never", "--for=condition=Failed", "--timeout=120s"])?;
    let failed = k.ok(&["get", "job", "never", "-o", "jsonpath={.status.conditions[?(@.type==\"Failed\")].reason}"])?;
    ensure!(failed == "BackoffLimitExceeded", "{failed}");
    let policy = "podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {operator: In, values: [3]}}]}";
    k.apply(&job("rule", policy, "exit 3"))?;
    k.ok(&["wait", "job/rule", "--for=condition=Failed", "--timeout=120s"])?;
    let message =
        k.ok(&["get", "job", "rule", "-o", "jsonpath={.status.conditions[?(@.type==\"Failed\")].message}"])?;
    ensure!(message.ends_with("failed with exit code 3 matching FailJob rule at index 0"), "{message}");
    Ok(())
}

fn fires(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("w-cron")?;
    k.ok(&["create", "cronjob", "tick", &format!("--image={IMAGE}"), "--schedule=* * * * *", "--", "true"])?;
    k.ok(&["create", "job", "now", "--from=cronjob/tick"])?;
    k.ok(&["wait", "job/now", "--for=condition=Complete", "--timeout=120s"])?;
    eventually("the minute's job succeeded", Duration::from_secs(150), || {
        let status = k.json(&["get", "cronjob", "tick"])?["status"].clone();
        ensure!(status["lastSuccessfulTime"].is_string() && status["lastScheduleTime"].is_string(), "{status}");
        Ok(())
    })
}
