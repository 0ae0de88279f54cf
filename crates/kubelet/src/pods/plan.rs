//! The decision: from a pod's spec, what the runtime has of it, what probes said and which delays run, to the actions
//! that bring it further. Pure: no clock, no calls. Carrying actions out is the executor's work.
//! (upstream: `kuberuntime_manager.go` computePodActions)
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

/// Everything the decision is made from.
#[derive(Debug)]
pub struct Input<'a> {
    /// The pod as the API last gave it.
    pub pod: &'a Pod,
    /// What the runtime has.
    pub runtime: &'a RuntimePod,
    /// What probes said.
    pub probes: &'a ProbeView,
    /// Restart delays, by container name.
    pub backoff: &'a BackOff,
    /// Containers whose last start failed, and [`SANDBOX`], with the time before which it is not tried again.
    pub holds: &'a HashMap<String, Instant>,
    /// What the pod was granted changed, and its cgroup does not say so yet.
    pub cgroup_stale: bool,
    /// A resize that failed is not tried again before.
    pub resize_held: Option<Instant>,
    /// The time to decide for, by the steady clock, as all times here.
    pub now: Instant,
}

/// The key in [`Input::holds`] that stands for the pod as a whole.
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
    /// The runtime does not know its state.
    UnknownState,
    /// Its resources changed, and its resize policy asks for a restart.
    Resize,
}

/// One step for the executor, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Stop a sandbox and what is in it.
    StopSandbox {
        /// The runtime's ID of it.
        id: String,
    },
    /// Make a sandbox.
    CreateSandbox {
        /// Which attempt of this pod.
        attempt: u32,
    },
    /// Stop one container, gracefully.
    KillContainer {
        /// The runtime's ID of it.
        id: String,
        /// The container's name in the pod.
        name: String,
        /// Decides about the grace period.
        reason: KillReason,
        /// What the event says.
        message: String,
    },
    /// Create and start one container in the ready sandbox.
    StartContainer {
        /// The container's name in the pod.
        name: String,
        /// How many instances there were before.
        restart_count: i32,
        /// The end of the instance before, to count the delay from.
        restarted_after: Option<Instant>,
    },
    /// Remove one container, at once where it still runs, so that its pod begins anew.
    RemoveContainer {
        /// The runtime's ID of it.
        id: String,
        /// The container's name in the pod.
        name: String,
        /// Its end, where its rule led to the new start, to count the delay from.
        ended: Option<Instant>,
    },
    /// Hold the pod, and these running containers of it, to what the pod was granted.
    Resize {
        /// IDs and names.
        containers: Vec<(String, String)>,
    },
}

/// What to do now, and what to wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What is carried out, one after the other.
    pub actions: Vec<Action>,
    /// Containers that wait out their restart delay.
    pub crash_loops: BTreeMap<String, Duration>,
    /// When to decide again though nothing happened.
    pub wake_at: Option<Instant>,
    /// Nothing of this pod will ever run again.
    pub finished: bool,
    /// A container ended as a rule says that all others begin anew with it.
    pub restarting_all: bool,
    /// What runs is not held to what the pod was granted yet.
    pub resizing: bool,
    /// Running containers whose bounds must change while they run, IDs and names.
    resize: Vec<(String, String)>,
}

impl Plan {
    fn wake(&mut self, at: Instant) {
        self.wake_at = Some(self.wake_at.map_or(at, |t| t.min(at)));
    }
}

/// Decides. See the module's text.
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

/// Whether a container ended by whose rule the whole pod begins anew; plans the removal of its containers. The ones whose
/// rule it was go last and by themselves: as long as one is there, a kubelet that starts in between knows what was under way.
fn restart_all(input: &Input<'_>, plan: &mut Plan) -> bool {
    let (mut sources, mut others) = (Vec::new(), Vec::new());
    for m in pod::members(input.pod).filter(|m| m.role != Role::Ephemeral) {
        let of_member = || input.runtime.containers.iter().filter(|i| i.name == m.container.name);
        let is_source = |i: &Instance| ended(i) && pod::restarts_all_after(m.role, &m.container, i.exit_code);
        let source = of_member().next().is_some_and(|i| is_source(i));
        if source { &mut sources } else { &mut others }.extend(of_member());
    }
    plan.restarting_all = !sources.is_empty();
    // Those go first that began last.
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

/// After everything else: a resize that cannot be done must not keep the pod's other containers from starting.
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

/// What of a container's bounds is not as its spec asks: CPU, memory.
fn differences(pod: &Pod, c: &Container, i: &Instance) -> (bool, bool) {
    let wanted = Limits::of(pod, c);
    // Of what nobody knows it is believed that it is right: a resize would be tried for ever.
    let actual = i.limits.unwrap_or(wanted).beside(wanted);
    let cpu = (actual.cpu_shares, actual.cpu_quota) != (wanted.cpu_shares, wanted.cpu_quota);
    (cpu, actual.memory != wanted.memory)
}

/// Whether a container asks for other memory than when it was made. The kernel knows nothing of that, but its program may, which
/// a restart tells where the resize policy says so.
fn asks_other_memory(c: &Container, i: &Instance) -> bool {
    let made_with = i.annotations.get(labels::MEMORY_REQUEST).and_then(|text| text.parse::<i64>().ok());
    made_with.is_some_and(|made_with| made_with != memory_request(c))
}

/// Whether a change of these resources takes a restart, by the container's resize policy.
fn resize_restarts(c: &Container, (cpu, memory): (bool, bool)) -> bool {
    let asks = |resource: &str| {
        let mut policies = c.resize_policy.iter().flatten();
        policies.any(|p| p.resource_name == resource && p.restart_policy == "RestartContainer")
    };
    (cpu && asks("cpu")) || (memory && asks("memory"))
}

/// No sandbox that containers can run in: make one if anything is left to run.
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

    /// Brings init containers and sidecars forward; true when the ordinary containers may run.
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
            // An instance that ended in an earlier sandbox counts: a job that succeeded is not run again.
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

    /// Kills a running container that must not go on; true when it does.
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
        // 137 stands for what the kill will make of it.
        let again = pod::restarts_after(self.input.pod, role, c, 137);
        let message = if again { format!("{what}, will be restarted") } else { what };
        plan.actions.push(Action::KillContainer { id: i.id.clone(), name: c.name.clone(), reason, message });
        true
    }

    /// Starts a container that does not run, unless it has to wait.
    fn start(&self, plan: &mut Plan, c: &Container, last: Option<&Instance>) {
        let input = self.input;
        if let Some(i) = last.filter(|i| i.state == State::Unknown) {
            let message = format!("Container {} is in an unknown state, try killing it before restart", c.name);
            let reason = KillReason::UnknownState;
            plan.actions.push(Action::KillContainer { id: i.id.clone(), name: c.name.clone(), reason, message });
        }
        // What holds the pod as a whole holds each of its containers: volumes that cannot be had, for one.
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
        // The runtime has forgotten; the API may remember.
        let status = self.input.pod.status.as_ref();
        let told = status
            .into_iter()
            .flat_map(|s| [&s.container_statuses, &s.init_container_statuses])
            .flat_map(|l| l.iter().flatten())
            .find(|s| s.name == c.name);
        // One that was removed for a new start of the pod is counted already, and has no ID any more.
        let has_id = |s: &ContainerStatus| s.container_id.as_deref().is_some_and(|id| !id.is_empty());
        told.map_or(0, |s| s.restart_count + i32::from(has_id(s)))
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
