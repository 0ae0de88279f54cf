//! The pod conditions that the kubelet owns (upstream: `pkg/kubelet/status/generate.go`).
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::config::shutdown::TERMINATED;
use crate::config::thresholds::{EVICTED, PREEMPTED, PREEMPTED_CONDITION};
use crate::pod::{self, Role};

/// The condition that the scheduler sets when it binds a pod. The kubelet has scheduled pods alone, and keeps its generation up to date.
pub const SCHEDULED: &str = "PodScheduled";

/// Types of conditions that the kubelet writes.
pub const OWNED: &[&str] = &[
    SCHEDULED,
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "DisruptionTarget",
    "PodResizePending",
    "PodResizeInProgress",
    "AllContainersRestarting",
];

fn condition(kind: &str, status: bool, reason: &str, message: String) -> PodCondition {
    PodCondition {
        type_: kind.to_owned(),
        status: if status { "True" } else { "False" }.to_owned(),
        reason: Some(reason.to_owned()).filter(|r| !r.is_empty()),
        message: Some(message).filter(|m| !m.is_empty()),
        ..PodCondition::default()
    }
}

fn list(words: &str, names: &[&str]) -> String {
    format!("containers with {words} status: [{}]", names.join(" "))
}

/// Computes all conditions, without transition times.
pub fn conditions(
    pod: &Pod,
    inits: &[ContainerStatus],
    apps: &[ContainerStatus],
    phase: &str,
    sandbox_ready: bool,
) -> Vec<PodCondition> {
    let containers = containers_ready(pod, inits, apps, phase);
    vec![
        condition("PodReadyToStartContainers", sandbox_ready, "", String::new()),
        initialized(pod, inits, apps, phase),
        ready(pod, &containers),
        containers,
        condition(SCHEDULED, true, "", String::new()),
    ]
}

/// Condition of a restart of all containers; `None` for a pod without a rule that could cause it.
pub fn restarting_all(pod: &Pod, phase: &str, now: bool) -> Option<PodCondition> {
    if !pod::may_restart_all(pod) {
        return None;
    }
    let kind = "AllContainersRestarting";
    Some(match phase {
        "Succeeded" => condition(kind, false, "PodCompleted", String::new()),
        "Failed" => condition(kind, false, "PodFailed", String::new()),
        _ if now => {
            condition(kind, true, "RestartAllContainersStarted", "container exited with restart policy rule".into())
        }
        _ => condition(kind, false, "", String::new()),
    })
}

fn initialized(pod: &Pod, inits: &[ContainerStatus], apps: &[ContainerStatus], phase: &str) -> PodCondition {
    let began = apps.iter().any(|s| {
        s.state.as_ref().is_some_and(|s| s.running.is_some() || s.terminated.is_some())
            || s.last_state.as_ref().is_some_and(|s| s.terminated.is_some())
    });
    let (mut unknown, mut incomplete) = (Vec::new(), Vec::new());
    let members: Vec<_> = pod::members(pod).filter(|m| matches!(m.role, Role::Init | Role::Sidecar)).collect();
    for m in &members {
        let name = m.container.name.as_str();
        match inits.iter().find(|s| s.name == name) {
            None => unknown.push(name),
            Some(s) => {
                let ok = match m.role {
                    Role::Sidecar => s.started == Some(true),
                    _ => s.ready,
                };
                if !ok && !began {
                    incomplete.push(name);
                }
            }
        }
    }
    if phase == "Succeeded" && unknown.is_empty() {
        return condition("Initialized", true, "PodCompleted", String::new());
    }
    let mut messages = Vec::new();
    if !unknown.is_empty() {
        messages.push(list("unknown", &unknown));
    }
    if !incomplete.is_empty() {
        messages.push(list("incomplete", &incomplete));
    }
    if messages.is_empty() {
        condition("Initialized", true, "", String::new())
    } else {
        condition("Initialized", false, "ContainersNotInitialized", messages.join(", "))
    }
}

fn containers_ready(pod: &Pod, inits: &[ContainerStatus], apps: &[ContainerStatus], phase: &str) -> PodCondition {
    match phase {
        "Succeeded" => return condition("ContainersReady", false, "PodCompleted", String::new()),
        "Failed" => return condition("ContainersReady", false, "PodFailed", String::new()),
        _ => {}
    }
    let (mut unknown, mut unready) = (Vec::new(), Vec::new());
    let members: Vec<_> = pod::members(pod).filter(|m| matches!(m.role, Role::App | Role::Sidecar)).collect();
    for m in &members {
        let name = m.container.name.as_str();
        match inits.iter().chain(apps).find(|s| s.name == name) {
            None => unknown.push(name),
            Some(s) if !s.ready => unready.push(name),
            Some(_) => {}
        }
    }
    let mut messages = Vec::new();
    if !unknown.is_empty() {
        messages.push(list("unknown", &unknown));
    }
    if !unready.is_empty() {
        messages.push(list("unready", &unready));
    }
    if messages.is_empty() {
        condition("ContainersReady", true, "", String::new())
    } else {
        condition("ContainersReady", false, "ContainersNotReady", messages.join(", "))
    }
}

fn ready(pod: &Pod, containers: &PodCondition) -> PodCondition {
    if containers.status != "True" {
        return PodCondition { type_: "Ready".into(), ..containers.clone() };
    }
    let known = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    let mut faults = Vec::new();
    for gate in pod.spec.iter().flat_map(|s| s.readiness_gates.iter().flatten()) {
        let kind = &gate.condition_type;
        match known.into_iter().flatten().find(|c| c.type_ == *kind) {
            None => faults.push(format!("corresponding condition of pod readiness gate {kind:?} does not exist.")),
            Some(c) if c.status != "True" => {
                faults.push(format!("the status of pod readiness gate {kind:?} is not \"True\", but {}", c.status));
            }
            Some(_) => {}
        }
    }
    if faults.is_empty() {
        condition("Ready", true, "", String::new())
    } else {
        condition("Ready", false, "ReadinessGatesNotReady", faults.join(", "))
    }
}

/// Conditions about an in-place resize (KEP-1287); empty if there is none.
pub fn resize(pending: Option<(&'static str, &str)>, in_progress: Option<&str>) -> Vec<PodCondition> {
    let pending = pending.map(|(reason, why)| condition("PodResizePending", true, reason, why.to_owned()));
    let running = in_progress.map(|error| {
        let reason = if error.is_empty() { "" } else { "Error" };
        condition("PodResizeInProgress", true, reason, error.to_owned())
    });
    pending.into_iter().chain(running).collect()
}

/// Returns the condition `DisruptionTarget` if `reason` is one by which the kubelet ends pods early.
pub fn disrupted(reason: &str, message: &str) -> Option<PodCondition> {
    let message = match reason {
        EVICTED | TERMINATED => message,
        PREEMPTED => PREEMPTED_CONDITION,
        _ => return None,
    };
    Some(condition("DisruptionTarget", true, "TerminationByKubelet", message.to_owned()))
}

/// Sets the transition time of each condition: the old one if the status did not change.
pub fn keep_times(new: &mut [PodCondition], old: &[PodCondition], now: jiff::Timestamp, generation: Option<i64>) {
    let now = jiff::Timestamp::from_second(now.as_second()).unwrap_or(now);
    for c in new {
        let before = old.iter().find(|o| o.type_ == c.type_ && o.status == c.status);
        c.last_transition_time = before.and_then(|o| o.last_transition_time.clone()).or(Some(Time(now)));
        c.observed_generation = generation;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_of_the_kubelet_is_scheduled_in_its_newest_generation() {
        let pod: Pod = serde_json::from_value(json!({"spec":{"containers":[{"name":"a"}]}})).expect("pod");
        let bound = json!({"type": "PodScheduled", "status": "True", "observedGeneration": 1,
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let old: PodCondition = serde_json::from_value(bound).expect("condition");
        let mut new = conditions(&pod, &[], &[], "Pending", false);
        keep_times(&mut new, std::slice::from_ref(&old), jiff::Timestamp::UNIX_EPOCH, Some(2));
        let scheduled = new.iter().find(|c| c.type_ == SCHEDULED).expect("condition");
        let expected = PodCondition { observed_generation: Some(2), ..old };
        assert_eq!(*scheduled, expected);
    }

    #[test]
    fn unready_and_gates() {
        let pod: Pod = serde_json::from_value(json!({"spec":{"containers":[{"name":"a"},{"name":"b"}],
            "initContainers":[{"name":"i"}],"readinessGates":[{"conditionType":"x/y"}]}}))
        .expect("pod");
        let status = |name: &str, ready: bool| -> ContainerStatus {
            serde_json::from_value(json!({"name":name,"image":"","imageID":"","ready":ready,"restartCount":0}))
                .expect("s")
        };
        let get = |inits: &[ContainerStatus], apps: &[ContainerStatus], phase: &str, kind: &str| {
            let all = conditions(&pod, inits, apps, phase, true);
            let c = all.into_iter().find(|c| c.type_ == kind).expect("condition");
            (c.status, c.reason.unwrap_or_default(), c.message.unwrap_or_default())
        };
        let s = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
        let apps = [status("a", false), status("b", true)];
        assert_eq!(
            get(&[status("i", false)], &apps, "Pending", "Initialized"),
            s("False", "ContainersNotInitialized", "containers with incomplete status: [i]")
        );
        assert_eq!(
            get(&[status("i", true)], &apps, "Running", "ContainersReady"),
            s("False", "ContainersNotReady", "containers with unready status: [a]")
        );
        assert_eq!(get(&[status("i", true)], &apps, "Succeeded", "Ready"), s("False", "PodCompleted", ""));
        let apps = [status("a", true), status("b", true)];
        assert_eq!(
            get(&[status("i", true)], &apps, "Running", "Ready"),
            s(
                "False",
                "ReadinessGatesNotReady",
                "corresponding condition of pod readiness gate \"x/y\" does not exist."
            )
        );
    }
}
