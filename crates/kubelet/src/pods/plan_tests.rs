//! Tables of inputs and the resulting plans.
use std::sync::{Arc, LazyLock};

use serde_json::json;

use super::*;

fn now() -> Instant {
    static NOW: LazyLock<Instant> = LazyLock::new(|| Instant::now() + Duration::from_secs(3600));
    *NOW
}

fn pod(spec: serde_json::Value) -> Pod {
    serde_json::from_value(json!({"metadata":{"name":"p","namespace":"n","uid":"u"},"spec":spec})).expect("pod")
}

fn two(policy: &str) -> Pod {
    pod(json!({"restartPolicy":policy,"containers":[{"name":"a","image":"x"},{"name":"b","image":"x"}]}))
}

fn with_inits() -> Pod {
    pod(json!({"initContainers":[{"name":"i1","image":"x"},
        {"name":"s","image":"x","restartPolicy":"Always","startupProbe":{"exec":{"command":["x"]}}},
        {"name":"i2","image":"x"}],"containers":[{"name":"a","image":"x"}]}))
}

fn sandbox(ready: bool) -> Sandbox {
    Sandbox { id: "s0".into(), attempt: 0, ready, created_at: 1, ips: vec!["10.0.0.1".into()] }
}

fn instance(name: &str, state: State, exit_code: i32) -> Arc<Instance> {
    let c: Container = serde_json::from_value(json!({"name":name,"image":"x"})).expect("container");
    Arc::new(Instance {
        id: format!("id-{name}"),
        name: name.into(),
        sandbox_id: "s0".into(),
        state,
        restart_count: 0,
        hash: pod::container_hash(&c),
        image: "x".into(),
        image_id: "x@1".into(),
        created_at: 1,
        started_at: 2,
        finished_at: if state == State::Exited { 3 } else { 0 },
        ended: (state == State::Exited).then(|| now() - Duration::from_secs(5)),
        exit_code,
        reason: String::new(),
        message: String::new(),
        log_path: String::new(),
        termination_file: String::new(),
        recursive_read_only: Vec::new(),
        user: None,
        annotations: Default::default(),
        limits: None,
    })
}

struct Case {
    pod: Pod,
    runtime: RuntimePod,
    probes: ProbeView,
    backoff: BackOff,
    holds: HashMap<String, Instant>,
    cgroup_stale: bool,
    resize_held: Option<Instant>,
}

fn case(pod: Pod, sandboxes: Vec<Sandbox>, containers: Vec<Arc<Instance>>) -> Case {
    let runtime = RuntimePod { sandboxes, containers, ..Default::default() };
    Case {
        pod,
        runtime,
        probes: ProbeView::default(),
        backoff: BackOff::default(),
        holds: HashMap::new(),
        cgroup_stale: false,
        resize_held: None,
    }
}

impl Case {
    fn plan(&self) -> Plan {
        compute(&Input {
            pod: &self.pod,
            runtime: &self.runtime,
            probes: &self.probes,
            backoff: &self.backoff,
            holds: &self.holds,
            cgroup_stale: self.cgroup_stale,
            resize_held: self.resize_held,
            now: now(),
        })
    }
    /// Short form of the actions: `+a` starts, `-a` kills, `sandbox0` creates, `stop:s0` stops, `~a` removes.
    fn words(&self) -> Vec<String> {
        let word = |a: &Action| match a {
            Action::StopSandbox { id } => format!("stop:{id}"),
            Action::CreateSandbox { attempt } => format!("sandbox{attempt}"),
            Action::KillContainer { name, .. } => format!("-{name}"),
            Action::StartContainer { name, .. } => format!("+{name}"),
            Action::RemoveContainer { name, .. } => format!("~{name}"),
            Action::Resize { containers } => {
                format!("resize:{}", containers.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(","))
            }
        };
        self.plan().actions.iter().map(word).collect()
    }
}

#[test]
fn a_new_pod_gets_a_sandbox_then_its_containers() {
    assert_eq!(case(two("Always"), vec![], vec![]).words(), ["sandbox0"]);
    assert_eq!(case(two("Always"), vec![sandbox(true)], vec![]).words(), ["+a", "+b"]);
    let running = vec![instance("a", State::Running, 0), instance("b", State::Running, 0)];
    let plan = case(two("Always"), vec![sandbox(true)], running).plan();
    assert_eq!(plan, Plan::default());
}

#[test]
fn restart_policies() {
    for (policy, exit, words, finished) in [
        ("Always", 0, vec!["+a"], false),
        ("Always", 1, vec!["+a"], false),
        ("OnFailure", 0, vec![], false),
        ("OnFailure", 1, vec!["+a"], false),
        ("Never", 1, vec![], false),
    ] {
        let c = case(
            two(policy),
            vec![sandbox(true)],
            vec![instance("a", State::Exited, exit), instance("b", State::Running, 0)],
        );
        assert_eq!(c.words(), words, "{policy} {exit}");
        assert_eq!(c.plan().finished, finished);
    }
    let done = case(
        two("OnFailure"),
        vec![sandbox(true)],
        vec![instance("a", State::Exited, 0), instance("b", State::Exited, 0)],
    );
    assert!(done.plan().finished && done.words().is_empty());
}

#[test]
fn a_crashing_container_waits_in_back_off() {
    let mut c = case(
        two("Always"),
        vec![sandbox(true)],
        vec![instance("a", State::Exited, 1), instance("b", State::Running, 0)],
    );
    let ended = now() - Duration::from_secs(5);
    c.backoff.next("a", ended, ended);
    let plan = c.plan();
    assert!(plan.actions.is_empty());
    assert_eq!(plan.crash_loops["a"], Duration::from_secs(10));
    assert_eq!(plan.wake_at, Some(now() + Duration::from_secs(5)));
}

#[test]
fn restart_counts_continue() {
    let c = case(two("Always"), vec![sandbox(true)], vec![instance("a", State::Exited, 1)]);
    let Action::StartContainer { restart_count, restarted_after, .. } = &c.plan().actions[0] else { panic!("start") };
    assert_eq!((*restart_count, restarted_after.is_some()), (1, true));
}

#[test]
fn failed_probes_kill() {
    let mut c = case(
        two("Always"),
        vec![sandbox(true)],
        vec![instance("a", State::Running, 0), instance("b", State::Running, 0)],
    );
    c.probes.liveness_failed.insert("id-a".into());
    let Action::KillContainer { message, reason, .. } = &c.plan().actions[0] else { panic!("kill") };
    assert_eq!(message, "Container a failed liveness probe, will be restarted");
    assert_eq!(*reason, KillReason::Liveness);
}

#[test]
fn init_containers_run_one_after_the_other() {
    let sb = || vec![sandbox(true)];
    let ok = |n| instance(n, State::Exited, 0);
    assert_eq!(case(with_inits(), sb(), vec![]).words(), ["+i1"]);
    assert!(case(with_inits(), sb(), vec![instance("i1", State::Running, 0)]).words().is_empty());
    assert_eq!(case(with_inits(), sb(), vec![instance("i1", State::Exited, 1)]).words(), ["+i1"]);
    assert_eq!(case(with_inits(), sb(), vec![ok("i1")]).words(), ["+s"]);
    let mut c = case(with_inits(), sb(), vec![ok("i1"), instance("s", State::Running, 0)]);
    assert!(c.words().is_empty(), "the sidecar must have started first");
    c.probes.started.insert("id-s".into());
    assert_eq!(c.words(), ["+i2"]);
    c.runtime.containers.push(ok("i2"));
    assert_eq!(c.words(), ["+a"]);
    c.runtime.containers.push(instance("a", State::Running, 0));
    assert!(c.words().is_empty());
    let mut ended = case(with_inits(), sb(), vec![instance("s", State::Exited, 0), instance("a", State::Running, 0)]);
    assert_eq!(ended.words(), ["+s"], "a sidecar is restarted beside the running app");
    ended.runtime.containers.clear();
    ended.runtime.containers.push(instance("i1", State::Exited, 1));
    ended.pod.spec.as_mut().expect("spec").restart_policy = Some("Never".into());
    assert!(ended.plan().finished && ended.words().is_empty());
}

#[test]
fn a_dead_sandbox_is_recreated_unless_all_containers_are_done() {
    let running = || vec![instance("a", State::Running, 0), instance("b", State::Exited, 0)];
    assert_eq!(case(two("Always"), vec![sandbox(false)], running()).words(), ["stop:s0", "sandbox1"]);
    let done = || vec![instance("a", State::Exited, 0), instance("b", State::Exited, 0)];
    assert!(case(two("OnFailure"), vec![sandbox(false)], done()).plan().finished);
    assert_eq!(case(two("Always"), vec![sandbox(false)], done()).words(), ["sandbox1"]);
    let mut held = case(two("Always"), vec![], vec![]);
    held.holds.insert(SANDBOX.into(), now() + Duration::from_secs(3));
    let plan = held.plan();
    assert!(plan.actions.is_empty() && plan.wake_at == Some(now() + Duration::from_secs(3)));
}

#[test]
fn ephemeral_containers_start_once() {
    let p = pod(json!({"containers":[{"name":"a","image":"x"}],"ephemeralContainers":[{"name":"d","image":"x"}]}));
    let a = instance("a", State::Running, 0);
    assert_eq!(case(p.clone(), vec![sandbox(true)], vec![a.clone()]).words(), ["+d"]);
    assert!(case(p, vec![sandbox(true)], vec![a, instance("d", State::Exited, 1)]).words().is_empty());
}

/// A running container with a quota of half a CPU, 64 MiB, and the shares of a quarter CPU.
fn bounded(name: &str) -> Arc<Instance> {
    let mut i = (*instance(name, State::Running, 0)).clone();
    i.limits = Some(Limits { cpu_shares: 256, cpu_quota: 50_000, memory: 64 << 20 });
    Arc::new(i)
}

#[test]
fn running_containers_get_the_granted_resources() {
    let spec = |request: &str, limit: &str, memory: &str, policy: serde_json::Value| {
        pod(json!({"containers":[{"name":"a","image":"x","resizePolicy":policy,"resources":{
            "requests":{"cpu":request,"memory":"32Mi"},"limits":{"cpu":limit,"memory":memory}}}]}))
    };
    let restart = |resource: &str| json!([{"resourceName":resource,"restartPolicy":"RestartContainer"}]);
    for (request, limit, memory, policy, want) in [
        ("250m", "500m", "64Mi", json!([]), &[][..]),
        ("300m", "500m", "64Mi", json!([]), &["resize:a"]),
        ("250m", "1", "64Mi", json!([]), &["resize:a"]),
        ("250m", "500m", "65Mi", json!([]), &["resize:a"]),
        ("250m", "500m", "65Mi", restart("cpu"), &["resize:a"]),
        ("250m", "500m", "65Mi", restart("memory"), &["-a"]),
        ("250m", "600m", "64Mi", restart("cpu"), &["-a"]),
    ] {
        let c = case(spec(request, limit, memory, policy.clone()), vec![sandbox(true)], vec![bounded("a")]);
        assert_eq!(c.words(), want, "{request} {limit} {memory} {policy}");
        assert_eq!(c.plan().resizing, !want.is_empty());
    }
    // The kernel does not use the memory request; a program may, which the resize policy says.
    for (made_with, policy, want) in [
        (None, restart("memory"), &[][..]),
        (Some(32 << 20), restart("memory"), &[]),
        (Some(31 << 20), restart("memory"), &["-a"]),
        (Some(31 << 20), restart("cpu"), &[]),
    ] {
        let mut made = Arc::unwrap_or_clone(bounded("a"));
        made.annotations.extend(made_with.map(|bytes: i64| (labels::MEMORY_REQUEST.to_owned(), bytes.to_string())));
        let c = case(spec("250m", "500m", "64Mi", policy.clone()), vec![sandbox(true)], vec![Arc::new(made)]);
        assert_eq!(c.words(), want, "{made_with:?} {policy}");
    }
    // The pod's limits change even if no container's do, once there is a sandbox.
    let mut c = case(spec("250m", "500m", "64Mi", json!([])), vec![sandbox(true)], vec![bounded("a")]);
    c.cgroup_stale = true;
    assert_eq!(c.words(), ["resize:"]);
    c.runtime.containers.clear();
    c.runtime.sandboxes.clear();
    assert_eq!((c.words(), c.plan().resizing), (vec!["sandbox0".to_owned()], true));
    // A failed resize waits and does not prevent other actions.
    let mut c = case(spec("250m", "1", "64Mi", json!([])), vec![sandbox(true)], vec![bounded("a")]);
    let until = now() + Duration::from_secs(5);
    c.resize_held = Some(until);
    let plan = c.plan();
    assert_eq!((plan.actions.len(), plan.resizing, plan.wake_at), (0, true, Some(until)));
}

#[test]
fn a_restart_rule_restarts_all_containers() {
    let rules = json!([{"action":"RestartAllContainers","exitCodes":{"operator":"In","values":[42]}}]);
    let p = pod(json!({"restartPolicy":"Never",
        "initContainers":[{"name":"i","image":"x"},{"name":"s","image":"x","restartPolicy":"Always"}],
        "containers":[{"name":"a","image":"x","restartPolicy":"Never","restartPolicyRules":rules},{"name":"b","image":"x"}],
        "ephemeralContainers":[{"name":"d","image":"x"}]}));
    let all = |code| {
        vec![
            instance("a", State::Exited, code),
            instance("b", State::Running, 0),
            instance("d", State::Running, 0),
            instance("s", State::Running, 0),
            instance("i", State::Exited, 0),
        ]
    };
    let mut c = case(p.clone(), vec![sandbox(true)], all(1));
    c.probes.started.insert("id-s".into());
    assert!(c.words().is_empty() && !c.plan().restarting_all, "another code");
    let mut c = case(p, vec![sandbox(true)], all(42));
    assert_eq!(c.words(), ["~b", "~s", "~i"], "the container that caused it is removed last");
    assert!(c.plan().restarting_all && !c.plan().finished);
    c.runtime.containers.retain(|i| ["a", "d"].contains(&i.name.as_str()));
    let ended = now() - Duration::from_secs(5);
    let remove = Action::RemoveContainer { id: "id-a".into(), name: "a".into(), ended: Some(ended) };
    assert_eq!(c.plan().actions, [remove]);
    // Repeated restarts of the pod are delayed like those of a container.
    c.backoff.next("a", ended, ended);
    let plan = c.plan();
    assert_eq!((plan.actions.len(), plan.restarting_all, plan.crash_loops["a"]), (0, true, Duration::from_secs(10)));
    c.backoff.reset("a");
    c.runtime.containers.retain(|i| i.name == "d");
    assert_eq!((c.words(), c.plan().restarting_all), (vec!["+i".to_owned()], false));
    // The same applies without a sandbox.
    c.runtime.sandboxes.clear();
    c.runtime.containers = all(42);
    assert_eq!(c.words(), ["~b", "~s", "~i"]);
}

#[test]
fn a_removed_container_is_counted_once() {
    let p = two("Always");
    let count = |status: serde_json::Value| {
        let mut p = p.clone();
        p.status = serde_json::from_value(json!({"containerStatuses":[status]})).expect("a status");
        let c = case(p, vec![sandbox(true)], vec![instance("b", State::Running, 0)]);
        let Action::StartContainer { restart_count, .. } = c.plan().actions[0] else { panic!("a start") };
        restart_count
    };
    let with = |id: &str| json!({"name":"a","image":"x","imageID":"","ready":false,"restartCount":3,"containerID":id,"state":{"waiting":{}}});
    assert_eq!((count(with("fake://1")), count(with(""))), (4, 3));
}
