//! Computes the actions for a pod from its spec, the state of the runtime, probe results and back-off delays. Pure: no clock and no calls.
//! The executor carries out the actions (upstream: `kuberuntime_manager.go` computePodActions).
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};
use tokio::time::Instant;

use super::backoff::BackOff;
use crate::cgroups::resources::{Limits, memory_request};
use crate::pod::{self, Role};
use crate::probes::view::ProbeView;
use crate::runtime::labels;
use crate::runtime::snapshot::{Instance, RuntimePod, Sandbox, State};

/// All input of the decision.
#[derive(Debug)]
pub struct Input<'a> {
    /// Newest state of the pod in the API.
    pub pod: &'a Pod,
    /// State of the pod in the runtime.
    pub runtime: &'a RuntimePod,
    /// Results of probes.
    pub probes: &'a ProbeView,
    /// Restart delays, by container name.
    pub backoff: &'a BackOff,
    /// Earliest time of the next try, for containers whose last start failed and for [`SANDBOX`].
    pub holds: &'a HashMap<String, Instant>,
    /// Whether the granted resources changed and the pod's cgroup is not updated yet.
    pub cgroup_stale: bool,
    /// Earliest time to retry a failed resize.
    pub resize_held: Option<Instant>,
    /// Current time of the monotonic clock, like all times here.
    pub now: Instant,
}

/// Key in [`Input::holds`] for the pod as a whole.
pub const SANDBOX: &str = "";

/// Why a container is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillReason {
    /// Its spec changed.
    DefinitionChanged,
    /// Its liveness probe failed.
    Liveness,
    /// Its startup probe failed.
    Startup,
    /// The runtime reports an unknown state.
    UnknownState,
    /// Its resources changed and its resize policy requires a restart.
    Resize,
}

/// One action of the executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Stops a sandbox and its containers.
    StopSandbox {
        /// The runtime's ID of the sandbox.
        id: String,
    },
    /// Creates a sandbox.
    CreateSandbox {
        /// Number of earlier sandboxes of this pod.
        attempt: u32,
    },
    /// Stops one container gracefully.
    KillContainer {
        /// The runtime's ID of the container.
        id: String,
        /// Name of the container in the pod.
        name: String,
        /// Determines the grace period.
        reason: KillReason,
        /// Message of the event.
        message: String,
    },
    /// Creates and starts one container in the ready sandbox.
    StartContainer {
        /// Name of the container in the pod.
        name: String,
        /// Number of earlier instances.
        restart_count: i32,
        /// When the previous instance ended; the delay counts from then.
        restarted_after: Option<Instant>,
    },
    /// Removes one container, killing it if it runs, to restart the whole pod.
    RemoveContainer {
        /// The runtime's ID of the container.
        id: String,
        /// Name of the container in the pod.
        name: String,
        /// When the container ended, if its rule caused the restart; the delay counts from then.
        ended: Option<Instant>,
    },
    /// Applies the granted resources to the pod's cgroup and to these running containers.
    Resize {
        /// IDs and names of the containers.
        containers: Vec<(String, String)>,
    },
}

/// The actions to execute now, and what the pod waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Actions, executed in order.
    pub actions: Vec<Action>,
    /// Remaining delay of containers in restart back-off, by name.
    pub crash_loops: BTreeMap<String, Duration>,
    /// When to compute the plan again without an event.
    pub wake_at: Option<Instant>,
    /// Whether no container of the pod will ever run again.
    pub finished: bool,
    /// Whether an exit code matched a rule that restarts all containers.
    pub restarting_all: bool,
    /// Whether the granted resources are not applied completely yet.
    pub resizing: bool,
    /// IDs and names of running containers whose limits must change.
    resize: Vec<(String, String)>,
}

impl Plan {
    fn wake(&mut self, at: Instant) {
        self.wake_at = Some(self.wake_at.map_or(at, |t| t.min(at)));
    }
}

/// Computes the plan; see the module's documentation.
pub fn compute(input: &Input<'_>) -> Plan {
    let mut plan = Plan::default();
    if restart_all(input, &mut plan) {
        return plan;
    }
    let usable = input.runtime.ready_sandbox().filter(|s| pod::host_network(input.pod) || !s.ips.is_empty());
    let Some(sandbox) = usable else {
        without_sandbox(input, &mut plan);
        return plan;
    };
    for old in input.runtime.sandboxes.iter().skip(1).filter(|s| s.ready) {
        plan.actions.push(Action::StopSandbox { id: old.id.clone() });
    }
    let step = PlanStep { input, sandbox };
    if step.inits(&mut plan) {
        step.apps(&mut plan);
        step.ephemeral(&mut plan);
    }
    resize(input, &mut plan);
    plan
}

/// Plans the removal of all containers if one ended with an exit code whose rule restarts the pod. Returns whether that is so. The
/// containers whose rule matched are removed last and alone: as long as one exists, a kubelet that restarts meanwhile knows that the
/// restart is in progress.
fn restart_all(input: &Input<'_>, plan: &mut Plan) -> bool {
    let (mut sources, mut others) = (Vec::new(), Vec::new());
    for m in pod::members(input.pod).filter(|m| m.role != Role::Ephemeral) {
        let of_member = || input.runtime.containers.iter().filter(|i| i.name == m.container.name);
        let is_source = |i: &Instance| ended(i) && pod::restarts_all_after(m.role, &m.container, i.exit_code);
        let source = of_member().next().is_some_and(|i| is_source(i));
        if source { &mut sources } else { &mut others }.extend(of_member());
    }
    plan.restarting_all = !sources.is_empty();
    // The container that started last is removed first.
    others.reverse();
    let go = if others.is_empty() { &sources } else { &others };
    for i in go {
        let newest = input.runtime.latest(&i.name).is_some_and(|l| l.id == i.id);
        let ended = i.ended.filter(|_| others.is_empty() && newest);
        if let Some((until, delay)) = ended.and_then(|at| input.backoff.waits(&i.name, at, input.now)) {
            plan.crash_loops.insert(i.name.clone(), delay);
            plan.wake(until);
            continue;
        }
        if plan.restarting_all {
            plan.actions.push(Action::RemoveContainer { id: i.id.clone(), name: i.name.clone(), ended });
        }
    }
    plan.restarting_all
}

/// Comes last: an impossible resize must not prevent the start of other containers.
fn resize(input: &Input<'_>, plan: &mut Plan) {
    let containers = std::mem::take(&mut plan.resize);
    if containers.is_empty() && !input.cgroup_stale {
        return;
    }
    plan.resizing = true;
    match input.resize_held.filter(|t| *t > input.now) {
        Some(until) => plan.wake(until),
        None => plan.actions.push(Action::Resize { containers }),
    }
}

/// Reports whether the CPU limits and the memory limits of a container differ from its spec.
fn differences(pod: &Pod, c: &Container, i: &Instance) -> (bool, bool) {
    let wanted = Limits::of(pod, c);
    // If the runtime does not report a limit, it is assumed to be right; otherwise the resize would repeat without end.
    let actual = i.limits.unwrap_or(wanted).beside(wanted);
    let cpu = (actual.cpu_shares, actual.cpu_quota) != (wanted.cpu_shares, wanted.cpu_quota);
    (cpu, actual.memory != wanted.memory)
}

/// Whether a container's memory request changed since it was created. The kernel does not use the request, but the program may; the resize
/// policy says whether it is restarted.
fn asks_other_memory(c: &Container, i: &Instance) -> bool {
    let made_with = i.annotations.get(labels::MEMORY_REQUEST).and_then(|text| text.parse::<i64>().ok());
    made_with.is_some_and(|made_with| made_with != memory_request(c))
}

/// Returns whether the container's resize policy requires a restart for a change of these resources.
fn resize_restarts(c: &Container, (cpu, memory): (bool, bool)) -> bool {
    let asks = |resource: &str| {
        let mut policies = c.resize_policy.iter().flatten();
        policies.any(|p| p.resource_name == resource && p.restart_policy == "RestartContainer")
    };
    (cpu && asks("cpu")) || (memory && asks("memory"))
}

/// Plans a new sandbox if no sandbox is ready and containers are left to run.
fn without_sandbox(input: &Input<'_>, plan: &mut Plan) {
    plan.resizing = input.cgroup_stale;
    if !left_to_run(input) {
        plan.finished = true;
        return;
    }
    let stale = input.runtime.sandboxes.iter().filter(|s| {
        s.ready || input.runtime.containers.iter().any(|c| c.sandbox_id == s.id && c.state == State::Running)
    });
    plan.actions.extend(stale.map(|s| Action::StopSandbox { id: s.id.clone() }));
    if let Some(until) = input.holds.get(SANDBOX).filter(|t| **t > input.now) {
        plan.wake(*until);
        return;
    }
    let attempt = input.runtime.sandboxes.first().map_or(0, |s| s.attempt + 1);
    plan.actions.push(Action::CreateSandbox { attempt });
}

fn left_to_run(input: &Input<'_>) -> bool {
    let pod = input.pod;
    if input.runtime.containers.is_empty() {
        return true;
    }
    let mut any = false;
    for m in pod::members(pod) {
        let latest = input.runtime.latest(&m.container.name);
        match (m.role, latest) {
            (Role::Init, Some(c)) if failed_for_good(pod, m.role, &m.container, c) => return false,
            (Role::App, None) => any = true,
            (Role::App, Some(c)) => any |= !ended(c) || pod::restarts_after(pod, m.role, &m.container, c.exit_code),
            _ => {}
        }
    }
    any
}

fn ended(c: &Instance) -> bool {
    c.state == State::Exited
}

fn failed_for_good(pod: &Pod, role: Role, spec: &Container, c: &Instance) -> bool {
    ended(c) && c.exit_code != 0 && !pod::restarts_after(pod, role, spec, c.exit_code)
}

struct PlanStep<'a> {
    input: &'a Input<'a>,
    sandbox: &'a Sandbox,
}

impl PlanStep<'_> {
    fn here(&self, name: &str) -> Option<&Instance> {
        self.input.runtime.latest_in(&self.sandbox.id, name).map(|c| &**c)
    }

    /// Plans init containers and sidecars. Returns `true` when ordinary containers may run.
    fn inits(&self, plan: &mut Plan) -> bool {
        let pod = self.input.pod;
        let apps_began = pod::members(pod).any(|m| m.role == Role::App && self.here(&m.container.name).is_some());
        for m in pod::members(pod).take_while(|m| matches!(m.role, Role::Init | Role::Sidecar)) {
            let c = &*m.container;
            let instance = self.here(&c.name);
            if m.role == Role::Init && apps_began {
                continue;
            }
            match (m.role, instance) {
                (_, Some(i)) if i.state == State::Running => {
                    let killed = self.check_running(plan, m.role, c, i);
                    let done = m.role == Role::Sidecar && !killed && self.input.probes.is_started(c, &i.id);
                    if !done && !apps_began {
                        return false;
                    }
                }
                (Role::Init, Some(i)) if ended(i) && i.exit_code == 0 => {}
                (_, Some(i)) if failed_for_good(pod, m.role, c, i) => {
                    plan.finished = true;
                    return false;
                }
                (_, instance) => {
                    self.start(plan, c, instance);
                    if !apps_began {
                        return false;
                    }
                }
            }
        }
        true
    }

    fn apps(&self, plan: &mut Plan) {
        let pod = self.input.pod;
        let mut alive = false;
        for m in pod::members(pod).filter(|m| m.role == Role::App) {
            let c = &*m.container;
            // An instance that ended in an earlier sandbox counts: a container that succeeded is not run again.
            let instance = self.input.runtime.latest(&c.name).map(|i| &**i);
            match instance {
                Some(i) if i.state == State::Running && i.sandbox_id == self.sandbox.id => {
                    alive = true;
                    self.check_running(plan, m.role, c, i);
                }
                Some(i) if ended(i) && !pod::restarts_after(pod, m.role, c, i.exit_code) => {}
                other => {
                    alive = true;
                    self.start(plan, c, other);
                }
            }
        }
        plan.finished = !alive;
    }

    fn ephemeral(&self, plan: &mut Plan) {
        for m in pod::members(self.input.pod).filter(|m| m.role == Role::Ephemeral) {
            if self.input.runtime.latest(&m.container.name).is_none() {
                self.start(plan, &m.container, None);
            }
        }
    }

    /// Plans the kill of a running container that must not continue. Returns `true` if it continues.
    fn check_running(&self, plan: &mut Plan, role: Role, c: &Container, i: &Instance) -> bool {
        let probes = self.input.probes;
        let reason = if !i.hash.is_empty() && i.hash != pod::container_hash(c) && role != Role::Init {
            KillReason::DefinitionChanged
        } else if probes.liveness_failed.contains(&i.id) {
            KillReason::Liveness
        } else if probes.startup_failed.contains(&i.id) {
            KillReason::Startup
        } else {
            let (cpu, memory) = differences(self.input.pod, c, i);
            let takes_restart = role != Role::Init && resize_restarts(c, (false, true)) && asks_other_memory(c, i);
            let changed = (cpu, memory || takes_restart);
            if changed == (false, false) {
                return false;
            }
            plan.resizing = true;
            if role == Role::Init || !resize_restarts(c, changed) {
                plan.resize.push((i.id.clone(), c.name.clone()));
                return false;
            }
            KillReason::Resize
        };
        let what = match reason {
            KillReason::DefinitionChanged => format!("Container {} definition changed", c.name),
            KillReason::Liveness => format!("Container {} failed liveness probe", c.name),
            KillReason::Startup => format!("Container {} failed startup probe", c.name),
            KillReason::UnknownState => format!("Container {} is in an unknown state", c.name),
            KillReason::Resize => format!("Container {} resize requires restart", c.name),
        };
        // 137 is the exit code of a killed container.
        let again = pod::restarts_after(self.input.pod, role, c, 137);
        let message = if again { format!("{what}, will be restarted") } else { what };
        plan.actions.push(Action::KillContainer { id: i.id.clone(), name: c.name.clone(), reason, message });
        true
    }

    /// Plans the start of a container, unless it must wait.
    fn start(&self, plan: &mut Plan, c: &Container, last: Option<&Instance>) {
        let input = self.input;
        if let Some(i) = last.filter(|i| i.state == State::Unknown) {
            let message = format!("Container {} is in an unknown state, try killing it before restart", c.name);
            let reason = KillReason::UnknownState;
            plan.actions.push(Action::KillContainer { id: i.id.clone(), name: c.name.clone(), reason, message });
        }
        // What delays the pod as a whole, such as missing volumes, delays each of its containers.
        let holds = [c.name.as_str(), SANDBOX].into_iter().filter_map(|key| input.holds.get(key));
        if let Some(until) = holds.copied().filter(|t| *t > input.now).max() {
            plan.wake(until);
            return;
        }
        let over = last.and_then(|i| i.ended);
        if let Some((until, delay)) = over.and_then(|at| input.backoff.waits(&c.name, at, input.now)) {
            plan.crash_loops.insert(c.name.clone(), delay);
            plan.wake(until);
            return;
        }
        let restart_count = self.restart_count(c);
        plan.actions.push(Action::StartContainer { name: c.name.clone(), restart_count, restarted_after: over });
    }

    fn restart_count(&self, c: &Container) -> i32 {
        let known = self.input.runtime.containers.iter().filter(|i| i.name == c.name).map(|i| i.restart_count).max();
        if let Some(n) = known {
            return n + 1;
        }
        // The runtime has no instance any more; the status in the API may have the count.
        let status = self.input.pod.status.as_ref();
        let reported = status
            .into_iter()
            .flat_map(|s| [&s.container_statuses, &s.init_container_statuses])
            .flat_map(|l| l.iter().flatten())
            .find(|s| s.name == c.name);
        // A container that was removed to restart the pod is already counted and has no ID.
        let has_id = |s: &ContainerStatus| s.container_id.as_deref().is_some_and(|id| !id.is_empty());
        reported.map_or(0, |s| s.restart_count + i32::from(has_id(s)))
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
