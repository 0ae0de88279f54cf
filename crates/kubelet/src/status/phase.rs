//! Computes a pod's phase from its containers' states (upstream: `kubelet_pods.go` getPhase).
use k8s_openapi::api::core::v1::{Container, ContainerState, ContainerStatus, Pod};

use super::container::RESTARTING_ALL;
use crate::pod::{self, Role};

fn of<'a>(list: &'a [ContainerStatus], name: &str) -> Option<&'a ContainerStatus> {
    list.iter().find(|s| s.name == name)
}

fn exit(state: Option<&ContainerState>) -> Option<i32> {
    state.and_then(|s| s.terminated.as_ref()).map(|t| t.exit_code)
}

/// Numbers of containers by state.
#[derive(Default)]
struct Tally {
    init_pending: bool,
    init_failed: bool,
    /// Whether an init container failed and is not restarted.
    init_lost: bool,
    sidecars: u32,
    unknown: u32,
    running: u32,
    waiting: u32,
    stopped: u32,
    succeeded: u32,
    restartable: u32,
}

impl Tally {
    fn init(&mut self, pod: &Pod, c: &Container, s: Option<&ContainerStatus>) {
        let state = s.and_then(|s| s.state.as_ref());
        let holds = state.is_some_and(|s| s.waiting.is_some());
        let last = s.and_then(|s| s.last_state.as_ref()).filter(|_| holds);
        let ended = [state, last].into_iter().flatten().find_map(|s| s.terminated.as_ref());
        match ended {
            Some(t) if t.exit_code == 0 && !holds => {}
            // It was removed to restart the whole pod, so its end does not count.
            Some(t) if t.reason.as_deref() == Some(RESTARTING_ALL) => self.init_pending = true,
            Some(t) if t.exit_code != 0 => {
                self.init_failed = true;
                self.init_lost |= !pod::restarts_after(pod, Role::Init, c, t.exit_code);
            }
            _ => self.init_pending = true,
        }
    }

    /// A running sidecar keeps the pod running even if all other containers ended; an ended one does not count.
    fn sidecar(&mut self, s: Option<&ContainerStatus>, over: bool) {
        let state = s.and_then(|s| s.state.as_ref());
        let up = !over && state.is_some_and(|s| s.running.is_some());
        self.sidecars += u32::from(up);
        let ended = exit(state).is_some() || exit(s.and_then(|s| s.last_state.as_ref())).is_some();
        self.init_pending |= !over && if up { s.and_then(|s| s.started) != Some(true) } else { !ended };
    }

    fn app(&mut self, pod: &Pod, c: &Container, s: Option<&ContainerStatus>) {
        let state = s.and_then(|s| s.state.as_ref());
        if state.is_some_and(|s| s.running.is_some()) {
            self.running += 1;
        } else if let Some(code) = exit(state) {
            self.stopped += 1;
            self.succeeded += u32::from(code == 0);
            self.restartable += u32::from(pod::restarts_after(pod, Role::App, c, code));
        } else if !state.is_some_and(|s| s.waiting.is_some()) {
            self.unknown += 1;
        } else if exit(s.and_then(|s| s.last_state.as_ref())).is_some() {
            self.stopped += 1;
            self.restartable += 1;
        } else {
            self.waiting += 1;
        }
    }
}

/// Returns `Pending`, `Running`, `Succeeded` or `Failed`. `over`: all containers have been stopped and will not start again.
pub fn phase(pod: &Pod, inits: &[ContainerStatus], apps: &[ContainerStatus], over: bool) -> &'static str {
    let mut t = Tally::default();
    for m in pod::members(pod) {
        let c = &*m.container;
        match m.role {
            Role::Init => t.init(pod, c, of(inits, &c.name)),
            Role::Sidecar => t.sidecar(of(inits, &c.name), over),
            Role::App => t.app(pod, c, of(apps, &c.name)),
            Role::Ephemeral => {}
        }
    }
    let apps_began = t.running + t.stopped > 0;
    if t.init_lost {
        return "Failed";
    }
    match () {
        () if (t.init_pending && !apps_began) || t.init_failed => "Pending",
        () if t.waiting > 0 => "Pending",
        () if t.running + t.sidecars > 0 && t.unknown == 0 => "Running",
        () if t.stopped > 0 && t.unknown == 0 => match () {
            () if !over && t.restartable > 0 => "Running",
            () if t.stopped == t.succeeded => "Succeeded",
            () => "Failed",
        },
        () => "Pending",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn statuses(prefix: &str, states: &[Value]) -> Vec<ContainerStatus> {
        let one = |(i, s): (usize, &Value)| {
            let mut v = json!({"name":format!("{prefix}{i}"),"image":"","imageID":"","ready":false,"restartCount":0});
            v["state"] = s["state"].clone();
            v["lastState"] = s["lastState"].clone();
            serde_json::from_value(v).expect("status")
        };
        states.iter().enumerate().map(one).collect()
    }

    fn check(policy: &str, inits: &[Value], apps: &[Value], over: bool) -> &'static str {
        let names = |p: &str, n: usize| (0..n).map(|i| json!({"name":format!("{p}{i}")})).collect::<Vec<_>>();
        let p: Pod = serde_json::from_value(json!({"spec":{"restartPolicy":policy,
            "initContainers":names("i", inits.len()),"containers":names("a", apps.len())}}))
        .expect("pod");
        phase(&p, &statuses("i", inits), &statuses("a", apps), over)
    }

    #[test]
    fn table() {
        let run = json!({"state":{"running":{}}});
        let wait = json!({"state":{"waiting":{"reason":"ContainerCreating"}}});
        let ok = json!({"state":{"terminated":{"exitCode":0}}});
        let bad = json!({"state":{"terminated":{"exitCode":1}}});
        let crash =
            json!({"state":{"waiting":{"reason":"CrashLoopBackOff"}},"lastState":{"terminated":{"exitCode":1}}});
        let r = std::slice::from_ref;
        for (policy, inits, apps, over, want) in [
            ("Always", &[][..], r(&wait), false, "Pending"),
            ("Always", &[], r(&run), false, "Running"),
            ("Always", &[], &[run.clone(), wait.clone()], false, "Pending"),
            ("Always", &[], &[run.clone(), crash.clone()], false, "Running"),
            ("Always", &[], r(&ok), false, "Running"),
            ("Always", &[], r(&bad), true, "Failed"),
            ("Always", &[], r(&ok), true, "Succeeded"),
            ("Never", &[], r(&ok), false, "Succeeded"),
            ("Never", &[], &[ok.clone(), bad.clone()], false, "Failed"),
            ("Never", &[], &[bad.clone(), run.clone()], false, "Running"),
            ("OnFailure", &[], r(&bad), false, "Running"),
            ("OnFailure", &[], r(&ok), false, "Succeeded"),
            ("OnFailure", &[], r(&crash), false, "Running"),
            ("Always", r(&run), r(&wait), false, "Pending"),
            ("Always", r(&bad), r(&wait), false, "Pending"),
            ("Never", r(&bad), r(&wait), false, "Failed"),
            ("Always", r(&crash), r(&wait), false, "Pending"),
            ("Always", r(&ok), r(&run), false, "Running"),
        ] {
            assert_eq!(check(policy, inits, apps, over), want, "{policy} {inits:?} {apps:?} {over}");
        }
    }

    #[test]
    fn sidecars() {
        let up = |started: bool| json!({"state":{"running":{}},"started":started});
        let wait = json!({"state":{"waiting":{"reason":"PodInitializing"}}});
        let ended = json!({"state":{"terminated":{"exitCode":137}}});
        let ok = json!({"state":{"terminated":{"exitCode":0}}});
        let again =
            json!({"state":{"waiting":{"reason":"CrashLoopBackOff"}},"lastState":{"terminated":{"exitCode":1}}});
        for (side, app, over, want) in [
            (wait.clone(), wait.clone(), false, "Pending"),
            (up(false), wait.clone(), false, "Pending"),
            (up(true), wait.clone(), false, "Pending"),
            (up(true), json!({"state":{"running":{}}}), false, "Running"),
            (again.clone(), json!({"state":{"running":{}}}), false, "Running"),
            // The ordinary containers succeeded, but the pod is running until its sidecar has stopped.
            (up(true), ok.clone(), false, "Running"),
            (ended.clone(), ok.clone(), false, "Succeeded"),
            (ended.clone(), ok.clone(), true, "Succeeded"),
            (again, ok, false, "Succeeded"),
        ] {
            let p: Pod = serde_json::from_value(json!({"spec":{"restartPolicy":"Never",
                "initContainers":[{"name":"i0","restartPolicy":"Always"}],"containers":[{"name":"a0"}]}}))
            .expect("pod");
            let mut inits = statuses("i", std::slice::from_ref(&side));
            inits[0].started = side["started"].as_bool();
            let got = phase(&p, &inits, &statuses("a", std::slice::from_ref(&app)), over);
            assert_eq!(got, want, "{side} {app} {over}");
        }
    }
}
