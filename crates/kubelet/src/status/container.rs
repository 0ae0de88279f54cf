//! Computes one container's status from its instances in the runtime (upstream: `kubelet_pods.go` convertToAPIContainerStatuses).
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    ContainerUser, LinuxContainerUser, Pod, VolumeMount, VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kelson_meta::Quantity;

use crate::cgroups::resources::{Limits, PERIOD, SHARES_MIN};
use crate::images::error::StartError;
use crate::pod::{self, Member, Role};
use crate::probes::view::ProbeView;
use crate::runtime::snapshot::{Instance, RuntimePod, State, timestamp};

/// Reason of a container that was removed to restart its pod.
pub const RESTARTING_ALL: &str = "RestartingAllContainers";
const RESTARTING_ALL_TEXT: &str = "The container is removed because RestartAllContainers in place";

/// Input for container states besides the runtime.
#[derive(Debug)]
pub struct StateInput<'a> {
    /// Results of the container's probes.
    pub probes: &'a ProbeView,
    /// Remaining restart delays, by container.
    pub crash_loops: &'a BTreeMap<String, Duration>,
    /// Why the last start failed, by container.
    pub start_errors: &'a BTreeMap<String, StartError>,
    /// Name of the runtime, the prefix of container IDs.
    pub runtime_name: &'a str,
    /// Whether no container of the pod will be started again.
    pub ending: bool,
    /// Whether all containers are being restarted, so that missing ones were removed for it.
    pub restarting_all: bool,
}

/// Computes the status of one container.
pub fn status(pod: &Pod, m: &Member<'_>, runtime: &RuntimePod, by: &StateInput<'_>) -> ContainerStatus {
    let c = &*m.container;
    let mut instances = runtime.containers.iter().filter(|i| i.name == c.name);
    let latest = instances.next();
    let before = instances.find(|i| i.state == State::Exited);
    let old = old_status(pod, m.role, &c.name);
    let mut out = ContainerStatus {
        name: c.name.clone(),
        image: c.image.clone().unwrap_or_default(),
        image_id: String::new(),
        started: Some(false),
        volume_mounts: mounts(c, latest),
        ..ContainerStatus::default()
    };
    let Some(i) = latest else {
        absent(pod, m, by, old, &mut out);
        out.last_state.get_or_insert_default();
        return out;
    };
    identity(i, by, &mut out);
    out.last_state = before.map(|b| state_of(terminated(b, by)));
    if out.last_state.is_none() {
        out.last_state = remembered(old, i.restart_count);
    }
    out.restart_count = i.restart_count;
    let current = match i.state {
        State::Running => {
            out.started = Some(by.probes.is_started(c, &i.id));
            out.ready = match m.role {
                Role::Ephemeral | Role::Init => false,
                Role::App | Role::Sidecar => by.probes.is_ready(c, &i.id),
            };
            let started_at = Some(Time(whole(i.started_at)));
            ContainerState { running: Some(ContainerStateRunning { started_at }), ..Default::default() }
        }
        State::Exited => {
            out.ready = m.role == Role::Init && i.exit_code == 0;
            state_of(terminated(i, by))
        }
        State::Created | State::Unknown => not_started(pod),
    };
    out.state = Some(current);
    hold(pod, m, i, by, &mut out);
    resources(pod, c, Some(i), &mut out);
    // The API returns an empty state as well; the status must equal what is read back, or it would be written twice.
    out.last_state.get_or_insert_default();
    out
}

/// Returns the mounts of the container's volumes (KEP-3857): as in the runtime, or before creation as in the spec.
fn mounts(c: &Container, latest: Option<&Arc<Instance>>) -> Option<Vec<VolumeMountStatus>> {
    let is_recursive = |m: &VolumeMount| match latest {
        Some(i) => i.recursive_read_only.contains(&m.mount_path),
        None => m.recursive_read_only.as_deref() == Some("Enabled"),
    };
    let one = |m: &VolumeMount| VolumeMountStatus {
        name: m.name.clone(),
        mount_path: m.mount_path.clone(),
        read_only: m.read_only.filter(|is| *is),
        recursive_read_only: (m.read_only == Some(true))
            .then(|| if is_recursive(m) { "Enabled" } else { "Disabled" }.to_owned()),
        ..Default::default()
    };
    let all: Vec<VolumeMountStatus> = c.volume_mounts.iter().flatten().map(one).collect();
    Some(all).filter(|all| !all.is_empty())
}

/// Sets the state of a container that waits for its restart: the reason of the wait, and the last termination state. A container whose
/// start failed and that is not restarted has terminated, because the API rejects a change to waiting.
fn hold(pod: &Pod, m: &Member<'_>, i: &Instance, by: &StateInput<'_>, out: &mut ContainerStatus) {
    let c = &*m.container;
    let is_over = i.state == State::Exited && !pod::restarts_after(pod, m.role, c, i.exit_code);
    if i.state == State::Running || is_over || by.ending {
        return;
    }
    let (reason, message) = if let Some(delay) = by.crash_loops.get(&c.name) {
        ("CrashLoopBackOff".to_owned(), crash_message(pod, &c.name, *delay))
    } else if let Some(e) = by.start_errors.get(&c.name) {
        (e.reason.as_str().to_owned(), e.message.clone())
    } else {
        return;
    };
    if let Some(ended) = out.state.take().filter(|s| s.terminated.is_some()) {
        out.last_state = Some(ended);
    }
    out.state = Some(waiting(&reason, message));
    out.ready = false;
}

/// Message of a restart back-off, in states and events.
pub fn crash_message(pod: &Pod, container: &str, delay: Duration) -> String {
    format!(
        "back-off {} restarting failed container={container} pod={}",
        kelson_codec::go_duration(delay),
        pod::format_pod(pod)
    )
}

/// State of a container that has not run yet, created or not. In a pod with init containers it is `PodInitializing`, which clients expect
/// until the pod is initialized.
fn not_started(pod: &Pod) -> ContainerState {
    let has_init = pod.spec.as_ref().is_some_and(|s| s.init_containers.as_ref().is_some_and(|i| !i.is_empty()));
    waiting(if has_init { "PodInitializing" } else { "ContainerCreating" }, String::new())
}

fn absent(pod: &Pod, m: &Member<'_>, by: &StateInput<'_>, old: Option<&ContainerStatus>, out: &mut ContainerStatus) {
    let c = &*m.container;
    let was = old.and_then(|o| o.state.as_ref());
    out.restart_count = old.map_or(0, |o| o.restart_count);
    if by.restarting_all && was.is_some_and(|s| s.waiting.is_none()) {
        out.restart_count += 1;
        out.state = Some(waiting(RESTARTING_ALL, RESTARTING_ALL_TEXT.to_owned()));
        out.last_state = Some(state_of(ContainerStateTerminated {
            reason: Some(RESTARTING_ALL.into()),
            message: Some(RESTARTING_ALL_TEXT.into()),
            exit_code: 137,
            ..Default::default()
        }));
        resources(pod, c, None, out);
        return;
    }
    if by.restarting_all {
        // It was shown as removed before, which stays until it is created again.
        out.state = was.cloned();
        out.last_state = old.and_then(|o| o.last_state.clone());
        resources(pod, c, None, out);
        return;
    }
    if let Some(o) = old.filter(|_| was.is_some_and(|s| s.terminated.is_some())) {
        // The runtime no longer has it; its termination state is kept.
        *out = o.clone();
        return;
    }
    if by.ending && was.is_some_and(|s| s.running.is_some()) {
        out.container_id = old.and_then(|o| o.container_id.clone());
        out.state = Some(not_located());
        return;
    }
    out.state = Some(match by.start_errors.get(&c.name) {
        Some(e) => waiting(e.reason.as_str(), e.message.clone()),
        None => not_started(pod),
    });
    out.last_state = old.and_then(|o| o.last_state.clone());
    resources(pod, c, None, out);
}

/// State of a container without any information about its end.
pub fn not_located() -> ContainerState {
    state_of(ContainerStateTerminated {
        reason: Some("ContainerStatusUnknown".into()),
        message: Some("The container could not be located when the pod was terminated".into()),
        exit_code: 137,
        ..Default::default()
    })
}

fn identity(i: &Instance, by: &StateInput<'_>, out: &mut ContainerStatus) {
    out.container_id = Some(format!("{}://{}", by.runtime_name, i.id));
    out.user = i.user.as_ref().map(|u| ContainerUser {
        linux: Some(LinuxContainerUser {
            uid: u.uid,
            gid: u.gid,
            supplemental_groups: Some(u.supplemental_groups.clone()).filter(|g| !g.is_empty()),
        }),
    });
    if !i.image.is_empty() {
        out.image.clone_from(&i.image);
    }
    out.image_id.clone_from(&i.image_id);
}

/// Sets the allocated resources, and the current limits while the container runs. They differ while a resize is in progress.
fn resources(pod: &Pod, c: &Container, instance: Option<&Instance>, out: &mut ContainerStatus) {
    let granted = c.resources.as_ref().filter(|r| r.requests.is_some() || r.limits.is_some());
    let mut held = granted.cloned().unwrap_or_default();
    out.allocated_resources = granted.and_then(|r| r.requests.clone());
    if let Some(actual) = instance.filter(|i| i.state == State::Running).and_then(|i| i.limits) {
        let wanted = Limits::of(pod, c);
        let actual = actual.beside(wanted);
        let mut set = |limits: bool, name: &str, text: Option<String>| {
            let list = if limits { &mut held.limits } else { &mut held.requests };
            match text {
                Some(text) => drop(list.get_or_insert_default().insert(name.to_owned(), ApiQuantity(text))),
                None => drop(list.as_mut().and_then(|l| l.remove(name))),
            }
        };
        // If the limit equals the granted one, the quantity is written as in the spec.
        if actual.memory != wanted.memory {
            set(true, "memory", Some(actual.memory).filter(|m| *m > 0).map(|m| m.to_string()));
        }
        if actual.cpu_quota != wanted.cpu_quota {
            let milli = |quota: i64| Quantity::from_milli(quota.saturating_mul(1000) / PERIOD).to_string();
            set(true, "cpu", Some(actual.cpu_quota).filter(|q| *q > 0).map(milli));
        }
        if actual.cpu_shares != wanted.cpu_shares {
            let milli = |shares: i64| Quantity::from_milli(shares.saturating_mul(1000) / 1024).to_string();
            set(false, "cpu", Some(actual.cpu_shares).filter(|s| *s > SHARES_MIN).map(milli));
        }
        held.limits = held.limits.filter(|l| !l.is_empty());
        held.requests = held.requests.filter(|l| !l.is_empty());
    }
    out.resources = Some(held);
}

fn terminated(i: &Instance, by: &StateInput<'_>) -> ContainerStateTerminated {
    let text = |s: &String| Some(s.clone()).filter(|s| !s.is_empty());
    let reason = text(&i.reason).or_else(|| Some(if i.exit_code == 0 { "Completed" } else { "Error" }.to_owned()));
    ContainerStateTerminated {
        container_id: Some(format!("{}://{}", by.runtime_name, i.id)),
        exit_code: i.exit_code,
        reason,
        message: text(&i.message),
        started_at: Some(Time(whole(i.started_at))),
        finished_at: Some(Time(whole(i.finished_at))),
        signal: None,
    }
}

/// Cuts to whole seconds, like the API, so that an object that was read back compares equal.
fn whole(nanos: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_second(timestamp(nanos.max(0)).as_second()).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
}

fn state_of(t: ContainerStateTerminated) -> ContainerState {
    ContainerState { terminated: Some(t), ..Default::default() }
}

/// Creates a waiting state.
pub fn waiting(reason: &str, message: String) -> ContainerState {
    let message = Some(message).filter(|m| !m.is_empty());
    ContainerState {
        waiting: Some(ContainerStateWaiting { reason: Some(reason.to_owned()), message }),
        ..Default::default()
    }
}

/// Returns the container's status in the API.
pub fn old_status<'a>(pod: &'a Pod, role: Role, name: &str) -> Option<&'a ContainerStatus> {
    let s = pod.status.as_ref()?;
    let list = match role {
        Role::Init | Role::Sidecar => &s.init_container_statuses,
        Role::App => &s.container_statuses,
        Role::Ephemeral => &s.ephemeral_container_statuses,
    };
    list.iter().flatten().find(|c| c.name == name)
}

/// Returns the previous instance's end from the API, if the runtime no longer has it.
fn remembered(old: Option<&ContainerStatus>, restart_count: i32) -> Option<ContainerState> {
    let old = old?;
    let state = if old.restart_count < restart_count { old.state.as_ref() } else { old.last_state.as_ref() };
    state.filter(|s| s.terminated.is_some()).cloned()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::images::error::StartReason;

    fn instance(name: &str, state: State, exit_code: i32) -> Arc<Instance> {
        Arc::new(Instance {
            ended: None,
            id: format!("id-{name}"),
            name: name.into(),
            sandbox_id: "s".into(),
            state,
            restart_count: 0,
            hash: String::new(),
            image: "i".into(),
            image_id: "i@sha256:0".into(),
            created_at: 1,
            started_at: 0,
            finished_at: 0,
            exit_code,
            reason: String::new(),
            message: String::new(),
            log_path: String::new(),
            termination_file: String::new(),
            recursive_read_only: Vec::new(),
            annotations: BTreeMap::new(),
            user: None,
            limits: None,
        })
    }

    /// Returns the statuses of a pod's containers, in order.
    fn statuses(spec: &serde_json::Value, instances: Vec<Arc<Instance>>) -> Vec<ContainerStatus> {
        let pod: Pod = serde_json::from_value(json!({"spec": spec})).expect("pod");
        let runtime = RuntimePod { containers: instances, ..RuntimePod::default() };
        let by = StateInput {
            probes: &ProbeView::default(),
            crash_loops: &BTreeMap::new(),
            start_errors: &BTreeMap::new(),
            runtime_name: "containerd",
            ending: false,
            restarting_all: false,
        };
        pod::members(&pod).map(|m| status(&pod, &m, &runtime, &by)).collect()
    }

    /// Returns the reason of each container's waiting state, or `-` if it does not wait.
    fn waits(spec: &serde_json::Value, instances: Vec<Arc<Instance>>) -> Vec<String> {
        let waiting = |s: ContainerStatus| s.state.and_then(|s| s.waiting);
        let reason = |s| waiting(s).map_or("-".to_owned(), |w| w.reason.unwrap_or_default());
        statuses(spec, instances).into_iter().map(reason).collect()
    }

    #[test]
    fn the_user_of_a_container_is_shown_as_the_runtime_reports_it() {
        let mut reported = Arc::unwrap_or_clone(instance("a", State::Running, 0));
        let user = |groups: &[i64]| kelson_cri::proto::LinuxContainerUser {
            uid: 1234,
            gid: 1235,
            supplemental_groups: groups.to_vec(),
        };
        for (of_runtime, expected) in [
            (None, json!(null)),
            (Some(user(&[44, 1235])), json!({"linux": {"uid": 1234, "gid": 1235, "supplementalGroups": [44, 1235]}})),
            (Some(user(&[])), json!({"linux": {"uid": 1234, "gid": 1235}})),
        ] {
            reported.user = of_runtime;
            let shown = statuses(&json!({"containers": [{"name": "a"}]}), vec![Arc::new(reported.clone())]);
            assert_eq!(json!(shown[0].user), expected);
        }
    }

    #[test]
    fn the_status_has_allocated_and_current_resources() {
        let resources = json!({"requests":{"cpu":"0.5","memory":"32Mi"},"limits":{"cpu":"1000m","memory":"64Mi"}});
        let spec = json!({"containers":[{"name":"a","resources":resources}]});
        let pod: Pod = serde_json::from_value(json!({"spec": spec})).expect("pod");
        let by = StateInput {
            probes: &ProbeView::default(),
            crash_loops: &BTreeMap::new(),
            start_errors: &BTreeMap::new(),
            runtime_name: "containerd",
            ending: false,
            restarting_all: false,
        };
        let shown = |limits: Option<Limits>| {
            let mut i = (*instance("a", State::Running, 0)).clone();
            i.limits = limits;
            let runtime = RuntimePod { containers: vec![Arc::new(i)], ..RuntimePod::default() };
            let m = pod::members(&pod).next().expect("a container");
            let status = status(&pod, &m, &runtime, &by);
            let status = serde_json::to_value(status).expect("json");
            assert_eq!(status["allocatedResources"], resources["requests"]);
            status["resources"].clone()
        };
        let same = Limits { cpu_shares: 512, cpu_quota: 100_000, memory: 64 << 20 };
        assert_eq!(shown(None), resources);
        assert_eq!(shown(Some(same)), resources, "in the words of the spec");
        let other = Limits { cpu_shares: 1024, cpu_quota: 150_000, memory: 1 << 20 };
        let want = json!({"requests":{"cpu":"1","memory":"32Mi"},"limits":{"cpu":"1500m","memory":"1048576"}});
        assert_eq!(shown(Some(other)), want);
        let none = Limits { cpu_shares: SHARES_MIN, ..Limits::default() };
        assert_eq!(shown(Some(none)), json!({"requests":{"memory":"32Mi"}}), "no bounds");
    }

    #[test]
    fn a_failed_start_is_final_if_the_policy_does_not_restart() {
        let errors = BTreeMap::from([("a".to_owned(), StartError::new(StartReason::Run, "no such file"))]);
        let shown = |policy: &str, exit_code: i32| {
            let rules = json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]);
            let a = json!({"name": "a", "restartPolicy": policy, "restartPolicyRules": rules});
            let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [a]}})).expect("pod");
            let containers = vec![instance("a", State::Exited, exit_code)];
            let runtime = RuntimePod { containers, ..RuntimePod::default() };
            let by = StateInput {
                probes: &ProbeView::default(),
                crash_loops: &BTreeMap::new(),
                start_errors: &errors,
                runtime_name: "containerd",
                ending: false,
                restarting_all: false,
            };
            let m = pod::members(&pod).next().expect("a container");
            let state = status(&pod, &m, &runtime, &by).state.expect("a state");
            (state.waiting.and_then(|w| w.reason), state.terminated.map(|t| t.exit_code))
        };
        let waits = (Some("RunContainerError".to_owned()), None);
        assert_eq!(shown("Never", 1), waits, "the rule starts it again");
        assert_eq!(shown("Never", 128), (None, Some(128)));
        assert_eq!(shown("Always", 128), waits);
    }

    #[test]
    fn containers_that_have_not_run_show_the_waiting_reason() {
        let plain = json!({"containers":[{"name":"a"},{"name":"b"}]});
        assert_eq!(waits(&plain, vec![]), ["ContainerCreating", "ContainerCreating"]);
        assert_eq!(waits(&plain, vec![instance("a", State::Created, 0)]), ["ContainerCreating", "ContainerCreating"]);
        let with_init = json!({"initContainers":[{"name":"i"},{"name":"j"}],"containers":[{"name":"a"}]});
        assert_eq!(waits(&with_init, vec![]), ["PodInitializing"; 3]);
        // A created container has not run yet, which clients that wait for the initialization see.
        let made = vec![instance("i", State::Created, 0)];
        assert_eq!(waits(&with_init, made), ["PodInitializing"; 3]);
        let second = vec![instance("j", State::Created, 0), instance("i", State::Exited, 0)];
        assert_eq!(waits(&with_init, second), ["-", "PodInitializing", "PodInitializing"]);
        let app =
            vec![instance("a", State::Created, 0), instance("i", State::Exited, 0), instance("j", State::Exited, 0)];
        assert_eq!(waits(&with_init, app), ["-", "-", "PodInitializing"]);
    }
}
