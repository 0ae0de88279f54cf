//! The end of a pod on the paused clock: what continues until its containers have ended, and the final status.

use std::time::Duration;

use crate::common::life::{begin, condition, live, pod};
use crate::common::world;
use kelson_kubelet::probes::Outcome;
use serde_json::json;

#[tokio::test(start_paused = true)]
async fn only_readiness_is_probed_while_a_deleted_pod_terminates() {
    let probe = |command: &str| json!({"exec": {"command": [command]}, "periodSeconds": 1, "failureThreshold": 1});
    let spec = json!({"terminationGracePeriodSeconds": 30, "containers": [{"name": "a", "image": "x:1",
        "readinessProbe": probe("ready"), "livenessProbe": probe("live")}]});
    let life = live(pod(spec.clone()));
    life.until(5, |w| condition(w, "Ready") == "True").await;
    life.world.runtime.slow.lock().insert("StopContainer", Duration::from_secs(20));
    let mut deleted = pod(spec);
    deleted["metadata"]["deletionTimestamp"] = json!("2027-01-01T00:00:00Z");
    deleted["metadata"]["deletionGracePeriodSeconds"] = json!(30);
    life.update(deleted);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(condition(&life.world, "Ready"), "True", "it serves until it says otherwise");
    for command in ["ready", "live"] {
        life.world.prober.0.lock().insert(command.to_owned(), Outcome::Failure("no".into()));
    }
    life.until(3, |w| condition(w, "Ready") == "False").await;
    assert_eq!(life.world.runtime.running(), ["a"], "the container has not ended yet");
    life.world.prober.0.lock().remove("ready");
    life.until(3, |w| condition(w, "Ready") == "True").await;
    life.until(30, |w| !w.api.deleted.lock().is_empty()).await;
    let events = life.world.api.events.lock().clone();
    let unhealthy: Vec<_> =
        events.iter().filter(|(reason, _)| reason == "Unhealthy").map(|(_, m)| m.as_str()).collect();
    assert!(!unhealthy.is_empty() && unhealthy.iter().all(|m| m.starts_with("Readiness")), "{unhealthy:?}");
}

#[tokio::test(start_paused = true)]
async fn deletion_does_not_interrupt_a_start() {
    for call in ["CreateContainer", "StartContainer"] {
        let world = world();
        world.runtime.slow.lock().insert(call, Duration::from_secs(4));
        let spec = json!({"terminationGracePeriodSeconds": 5, "containers": [{"name": "a", "image": "x:1"}]});
        let life = begin(world, pod(spec.clone()));
        tokio::time::sleep(Duration::from_secs(2)).await;
        let mut deleted = pod(spec);
        deleted["metadata"]["deletionTimestamp"] = json!("2027-01-01T00:00:00Z");
        deleted["metadata"]["deletionGracePeriodSeconds"] = json!(5);
        life.update(deleted);
        life.until(10, |w| !w.api.deleted.lock().is_empty()).await;
        let state = life.world.api.state()["state"]["terminated"].clone();
        let started = life.world.api.reasons().iter().any(|r| r == "Started");
        let (reason, expected) = match call {
            "StartContainer" => ("Error", true),
            // It was created but not started: nothing starts after the pod must end.
            _ => ("ContainerStatusUnknown", false),
        };
        assert_eq!((&state["reason"], &state["exitCode"], started), (&json!(reason), &json!(137), expected), "{call}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_that_never_started_terminates_with_its_pod() {
    let world = world();
    world.runtime.missing.lock().push("y:1".into());
    let spec = json!({"activeDeadlineSeconds": 3, "containers": [{"name": "a", "image": "y:1"}]});
    let life = begin(world, pod(spec));
    life.until(10, |w| w.api.phase() == "Failed").await;
    let status = life.world.api.status.lock().clone();
    assert_eq!(status["reason"], "DeadlineExceeded");
    let ended = json!({"terminated": {"reason": "ContainerStatusUnknown", "exitCode": 137,
        "message": "The container could not be located when the pod was terminated"}});
    assert_eq!(life.world.api.state()["state"], ended);
}
