//! A pod's life on the paused clock: a worker with an in-memory runtime and a fake API server.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::life::{begin, condition, live, pod};
use crate::common::{World, world, world_with};
use k8s_openapi::api::core::v1::Pod;
use kelson_kubelet::devices::client::DevicePluginClient;
use kelson_kubelet::devices::messages::{Device, PluginOptions};
use kelson_kubelet::node::runtime::{HandlerFeatures, RuntimeState};
use kelson_kubelet::pods::event::Eviction;
use kelson_kubelet::pods::resize::{Granted, ResizePending};
use kelson_kubelet::probes::Outcome;
use serde_json::{Value, json};

#[tokio::test(start_paused = true)]
async fn a_pod_fails_whose_devices_the_node_cannot_give() {
    let world = world();
    let (devices, gpu) = (&world.parts.devices, "example.com/gpu");
    let plugin = DevicePluginClient::new(&world.dir.path().join("plugin.sock")).expect("a client");
    devices.registered(gpu, plugin, PluginOptions::default()).expect("registered");
    let ill = Device { id: "a".into(), health: "Unhealthy".into(), topology: None };
    devices.listed(gpu, vec![ill]).await;
    let spec = json!({"containers": [{"name": "a", "image": "x:1", "resources": {"limits": {gpu: "1"}}}]});
    let life = begin(world, pod(spec));
    life.until(5, |w| w.api.phase() == "Failed").await;
    let status = life.world.api.status.lock().clone();
    assert_eq!(status["reason"], "UnexpectedAdmissionError");
    let why = "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices example.com/gpu, which \
               is unexpected";
    assert_eq!(status["message"], why);
    assert!(life.world.runtime.running().is_empty() && status["containerStatuses"].is_null(), "{status:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_starts_becomes_ready_crashes_and_is_deleted() {
    let spec = json!({"containers":[{"name":"a","image":"x:1"}],"terminationGracePeriodSeconds":5});
    let life = live(pod(spec.clone()));
    life.until(5, |w| w.api.phase() == "Running" && condition(w, "Ready") == "True").await;
    assert_eq!(life.world.api.status.lock()["podIP"], "10.0.0.7");
    assert_eq!(life.world.api.state()["containerID"], "fake://container-2");

    // The first restart is immediate, the second after ten seconds, the third after twenty.
    life.world.runtime.exit("a", 1);
    life.until(3, |w| w.api.state()["restartCount"] == 1 && !w.runtime.running().is_empty()).await;
    life.world.runtime.exit("a", 1);
    life.until(3, |w| w.api.state()["state"]["waiting"]["reason"] == "CrashLoopBackOff").await;
    let state = life.world.api.state();
    assert_eq!(state["state"]["waiting"]["message"], "back-off 10s restarting failed container=a pod=p_n(u)");
    assert_eq!(state["lastState"]["terminated"]["exitCode"], 1);
    let took = life.until(15, |w| !w.runtime.running().is_empty()).await;
    assert!((8..=11).contains(&took), "{took}");
    life.until(3, |w| w.api.state()["restartCount"] == 2).await;
    life.world.runtime.exit("a", 1);
    let took = life.until(30, |w| !w.runtime.running().is_empty()).await;
    assert!((18..=21).contains(&took), "{took}");

    let mut gone = pod(spec);
    gone["metadata"]["deletionTimestamp"] = json!("2027-01-01T00:00:00Z");
    gone["metadata"]["deletionGracePeriodSeconds"] = json!(5);
    life.update(gone);
    life.until(10, |w| !w.api.deleted.lock().is_empty()).await;
    let options = life.world.api.deleted.lock()[0].clone();
    assert_eq!((&options["gracePeriodSeconds"], &options["preconditions"]["uid"]), (&json!(0), &json!("u")));
    life.until(5, |w| w.runtime.counts() == (0, 0)).await;
    assert!(!life.world.dir.path().join("pods/u").exists());
    life.task.await.expect("the worker ended");
    let reasons = life.world.api.reasons();
    for reason in ["Pulled", "Created", "Started", "BackOff", "Killing"] {
        assert!(reasons.iter().any(|r| r == reason), "{reason} in {reasons:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_succeeds_and_its_sandbox_goes() {
    let life = live(pod(json!({"restartPolicy":"Never","containers":[{"name":"a","image":"x:1"}]})));
    life.until(5, |w| w.api.phase() == "Running").await;
    life.world.runtime.exit("a", 0);
    life.until(5, |w| w.api.phase() == "Succeeded").await;
    let state = life.world.api.state();
    assert_eq!((&state["state"]["terminated"]["reason"], &state["restartCount"]), (&json!("Completed"), &json!(0)));
    assert_eq!(life.world.runtime.counts(), (1, 1), "logs stay readable until the pod is deleted");
    life.inbox.gone();
    life.until(5, |w| w.runtime.counts() == (0, 0)).await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_image_backs_off_and_heals() {
    let world = world();
    world.runtime.missing.lock().push("y:1".into());
    let life = begin(world, pod(json!({"containers":[{"name":"a","image":"y:1"}]})));
    life.until(5, |w| w.api.state()["state"]["waiting"]["reason"] == "ErrImagePull").await;
    life.until(10, |w| w.api.state()["state"]["waiting"]["reason"] == "ImagePullBackOff").await;
    let message = life.world.api.state()["state"]["waiting"]["message"].clone();
    assert_eq!(
        message,
        "Back-off pulling image \"y:1\": ErrImagePull: rpc error: code = NotFound desc = no such image"
    );
    life.world.runtime.missing.lock().clear();
    life.until(40, |w| w.api.phase() == "Running").await;
}

#[tokio::test(start_paused = true)]
async fn changes_of_the_wall_clock_do_not_affect_delays() {
    let spec = json!({"containers":[{"name":"a","image":"x:1"}]});
    for jump in [-4000, 4000] {
        let life = live(pod(spec.clone()));
        for _ in 0..2 {
            life.until(5, |w| w.api.phase() == "Running" && !w.runtime.running().is_empty()).await;
            life.world.runtime.exit("a", 1);
            life.until(3, |w| w.runtime.running().is_empty()).await;
        }
        life.until(3, |w| w.api.state()["state"]["waiting"]["reason"] == "CrashLoopBackOff").await;
        life.world.clock.jump(jump);
        let took = life.until(15, |w| !w.runtime.running().is_empty()).await;
        assert!((8..=11).contains(&took), "a container that crashed: {took}");

        let fresh = world();
        fresh.runtime.missing.lock().push("x:1".into());
        let life = begin(fresh, pod(spec.clone()));
        life.until(10, |w| w.api.state()["state"]["waiting"]["reason"] == "ImagePullBackOff").await;
        life.world.runtime.missing.lock().clear();
        life.world.clock.jump(jump);
        let took = life.until(15, |w| w.api.phase() == "Running").await;
        assert!(took >= 5, "an image that did not come: {took}");

        let fresh = world();
        *fresh.runtime.refused.lock() = Some(0);
        let life = begin(fresh, pod(spec.clone()));
        // Attempts are after 0.5, 1.5, 3.5 and 7.5 seconds.
        tokio::time::sleep(Duration::from_secs(5)).await;
        life.world.runtime.refused.lock().take();
        life.world.clock.jump(jump);
        let took = life.until(15, |w| w.api.phase() == "Running").await;
        assert!((2..=3).contains(&took), "a sandbox that was not made: {took}");
    }
}

#[tokio::test(start_paused = true)]
async fn liveness_restarts_and_readiness_gates() {
    let probe = |command: &str| json!({"exec":{"command":[command]},"periodSeconds":1,"failureThreshold":2});
    let mut live = probe("live");
    live["terminationGracePeriodSeconds"] = json!(7);
    let spec = json!({"containers":[{"name":"a","image":"x:1","livenessProbe":live,"readinessProbe":probe("ready")}]});
    let world = world();
    world.prober.0.lock().insert("ready".into(), Outcome::Failure("not yet".into()));
    let life = begin(world, pod(spec));
    life.until(5, |w| w.api.phase() == "Running").await;
    assert_eq!(condition(&life.world, "Ready"), "False");
    life.world.prober.0.lock().clear();
    life.until(5, |w| condition(w, "Ready") == "True").await;
    life.world.prober.0.lock().insert("live".into(), Outcome::Failure("dead".into()));
    life.until(10, |w| w.api.state()["restartCount"] == 1).await;
    assert_eq!(*life.world.runtime.stops.lock(), [7], "the probe's own grace period");
    let events = life.world.api.events.lock().clone();
    let killing = events.iter().find(|(r, _)| r == "Killing").expect("killed");
    assert_eq!(killing.1, "Container a failed liveness probe, will be restarted");
}

#[tokio::test(start_paused = true)]
async fn a_second_worker_adopts_what_runs() {
    let spec = json!({"containers":[{"name":"a","image":"x:1"}]});
    let life = live(pod(spec.clone()));
    life.until(5, |w| w.api.phase() == "Running").await;
    // The kubelet stops: its tasks end, containers do not.
    drop(life.task);
    let World { tasks, parts, runtime, api, prober, clock, dir, gate } = life.world;
    let mut object = pod(spec);
    object["status"] = Value::Object(api.status.lock().clone());
    let again = begin(World { tasks, parts, runtime, api, prober, clock, dir, gate }, object);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(again.world.runtime.counts(), (1, 1));
    assert_eq!((again.world.api.state()["restartCount"].clone(), again.world.runtime.running().len()), (json!(0), 1));
}

#[tokio::test(start_paused = true)]
async fn a_pod_deleted_by_force_ends_at_once_and_a_manifest_in_its_time() {
    for (annotations, grace) in [(json!({}), 2), (json!({"kubernetes.io/config.source": "file"}), 600)] {
        let mut object = pod(json!({"containers":[{"name":"a","image":"x:1"}],"terminationGracePeriodSeconds":600}));
        object["metadata"]["annotations"] = annotations;
        let life = live(object);
        life.until(5, |w| !w.runtime.running().is_empty()).await;
        life.inbox.gone();
        life.until(5, |w| w.runtime.counts() == (0, 0)).await;
        assert_eq!(*life.world.runtime.stops.lock(), [grace]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_resized_while_it_runs() {
    let of = |cpu: &str| {
        let resources = json!({"requests":{"cpu":cpu},"limits":{"cpu":cpu}});
        let mut pod = pod(json!({"containers":[{"name":"a","image":"x:1","resources":resources}]}));
        pod["metadata"]["generation"] = json!(if cpu == "100m" { 1 } else { 2 });
        pod
    };
    let life = live(of("100m"));
    life.until(5, |w| w.api.phase() == "Running").await;
    // The node has too few resources: the pod continues with its old ones and reports this.
    let granted: Pod = serde_json::from_value(of("100m")).expect("pod");
    life.inbox.pod(Granted {
        pod: Arc::new(granted),
        deferred: Some(ResizePending { reason: "Deferred", message: "no room".into(), detail: "" }),
    });
    life.until(5, |w| condition(w, "PodResizePending") == "True").await;
    assert_eq!(life.world.runtime.resizes.lock().len(), 0);
    let mut wanted = of("1500m");
    wanted["status"] = life.world.api.status.lock().clone().into();
    life.update(wanted);
    life.until(5, |w| w.api.state()["resources"]["limits"]["cpu"] == "1500m").await;
    life.until(5, |w| condition(w, "PodResizeInProgress").is_empty() && condition(w, "PodResizePending").is_empty())
        .await;
    let resizes = std::mem::take(&mut *life.world.runtime.resizes.lock());
    let held: Vec<_> = resizes.iter().map(|(name, r)| (name.as_str(), r.cpu_quota, r.cpu_shares)).collect();
    assert_eq!(held, [("a", 150_000, 1536)], "once, although the runtime does not report limits");
    assert_eq!(life.world.runtime.counts(), (1, 1), "nothing was started again");
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(life.world.runtime.resizes.lock().len(), 0, "and not again later");
    assert_eq!(life.world.api.reasons().iter().filter(|r| *r == "ResizeCompleted").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_evicted_pod_has_reason_and_message() {
    let life = live(pod(json!({"containers":[{"name":"a","image":"x:1"}],"terminationGracePeriodSeconds":600})));
    life.until(5, |w| w.api.phase() == "Running").await;
    let message = "The node was low on resource: memory. ".to_owned();
    life.inbox.evict(Eviction { reason: "Evicted", message: message.clone(), grace: Duration::from_secs(1) });
    life.until(10, |w| w.api.phase() == "Failed").await;
    let status = life.world.api.status.lock().clone();
    assert_eq!((&status["reason"], &status["message"]), (&json!("Evicted"), &json!(message)));
    assert_eq!(condition(&life.world, "DisruptionTarget"), "True");
    assert_eq!(*life.world.runtime.stops.lock(), [2], "no container gets less, whatever the grace period");
    assert!(life.world.runtime.running().is_empty());
}

#[tokio::test(start_paused = true)]
async fn each_failed_sandbox_doubles_the_wait_for_the_next() {
    let world = world();
    *world.runtime.refused.lock() = Some(0);
    let life = begin(world, pod(json!({"containers":[{"name":"a","image":"x:1"}]})));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let tried = life.world.runtime.refused.lock().take().expect("counted");
    assert!((6..=8).contains(&tried), "half a second, doubling: {tried}");
    assert!(life.world.api.reasons().iter().any(|r| r == "FailedCreatePodSandBox"));
    life.until(60, |w| w.api.phase() == "Running").await;
}

#[tokio::test(start_paused = true)]
async fn no_container_is_created_before_the_network_gate_opens() {
    let world = world();
    world.gate.closed.store(true, Ordering::Relaxed);
    let life = begin(world, pod(json!({"containers":[{"name":"a","image":"x:1"}]})));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let status = life.world.api.status.lock()["containerStatuses"][0].clone();
    assert_eq!(status["state"]["waiting"]["reason"], "CreateContainerError", "{status}");
    assert_eq!(life.world.runtime.counts().1, 0, "{:?}", life.world.runtime.running());
    assert_eq!(life.world.gate.addresses.lock().len(), 1, "the gate learns the address of the sandbox");
    life.world.gate.closed.store(false, Ordering::Relaxed);
    life.until(120, |w| w.api.phase() == "Running").await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_follows_the_pods_labels() {
    let labelled = |value: &str| {
        let volume = json!({"name":"v","downwardAPI":{"items":[{"path":"at","fieldRef":{"fieldPath":"metadata.labels['at']"}}]}});
        let mut pod = pod(json!({"containers":[{"name":"a","image":"x:1"}],"volumes":[volume]}));
        pod["metadata"]["labels"] = json!({"at": value});
        pod
    };
    let life = live(labelled("one"));
    let file = life.world.parts.dirs.pod("u").join("volumes/kubernetes.io~downward-api/v/at");
    life.until(5, |w| w.api.phase() == "Running").await;
    assert_eq!(std::fs::read_to_string(&file).expect("rendered"), "one");
    life.update(labelled("two"));
    life.until(5, |_| std::fs::read_to_string(&file).is_ok_and(|text| text == "two")).await;
}

#[tokio::test(start_paused = true)]
async fn a_panicking_executor_is_restarted_with_back_off() {
    let world = world();
    world.runtime.panics.lock().insert("run_pod_sandbox", u32::MAX);
    let life = begin(world, pod(json!({"containers":[{"name":"a","image":"x:1"}]})));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let tried = life.world.runtime.calls.lock()["run_pod_sandbox"];
    assert!((6..=8).contains(&tried), "half a second, doubling: {tried}");
    life.world.runtime.panics.lock().clear();
    life.until(60, |w| w.api.phase() == "Running").await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_a_user_namespace_never_runs_without_it() {
    let life = live(pod(json!({"hostUsers":false,"containers":[{"name":"a","image":"x:1"}]})));
    life.until(5, |w| w.api.reasons().iter().any(|r| r == "FailedCreatePodSandBox")).await;
    let events = life.world.api.events.lock().clone();
    let why = events.iter().find(|(r, _)| r == "FailedCreatePodSandBox").expect("recorded");
    assert!(why.1.ends_with("does not support user namespaces"), "{}", why.1);
    assert!(life.world.runtime.made.lock().is_empty());

    let handlers = [(String::new(), HandlerFeatures { user_namespaces: true, ..Default::default() })].into();
    let able = RuntimeState { answered: true, handlers, ..Default::default() };
    let life = begin(world_with(able), pod(json!({"hostUsers":false,"containers":[{"name":"a","image":"x:1"}]})));
    life.until(5, |w| w.api.phase() == "Running").await;
    let made = life.world.runtime.made.lock()[0].clone();
    let context = made.linux.and_then(|l| l.security_context).expect("a security context");
    let users = context.namespace_options.and_then(|n| n.userns_options).expect("a user namespace");
    assert_eq!((users.uids[0].host_id, users.uids[0].container_id, users.uids[0].length), (65_536, 0, 65_536));
    assert!(life.world.parts.dirs.pod("u").join("userns").is_file(), "kept for a kubelet after this one");
}

#[tokio::test(start_paused = true)]
async fn a_huge_grace_period_is_bounded() {
    let spec = json!({"containers":[{"name":"a","image":"x:1"}],"terminationGracePeriodSeconds":i64::MAX,
        "activeDeadlineSeconds":i64::MAX});
    let life = live(pod(spec.clone()));
    life.until(5, |w| w.api.phase() == "Running").await;
    let mut gone = pod(spec);
    gone["metadata"]["deletionTimestamp"] = json!("2027-01-01T00:00:00Z");
    gone["metadata"]["deletionGracePeriodSeconds"] = json!(i64::MAX);
    life.update(gone);
    life.until(10, |w| w.runtime.counts() == (0, 0)).await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_rule_can_restart_all_containers() {
    let rules = json!([{"action":"RestartAllContainers","exitCodes":{"operator":"In","values":[42]}}]);
    let life = live(pod(json!({"restartPolicy":"Never","terminationGracePeriodSeconds":5,
        "initContainers":[{"name":"i","image":"x:1"}],
        "containers":[{"name":"a","image":"x:1","restartPolicy":"Never","restartPolicyRules":rules},
            {"name":"b","image":"x:1"}]})));
    life.until(5, |w| w.runtime.running().contains(&"i".to_owned())).await;
    life.world.runtime.exit("i", 0);
    life.until(5, |w| w.api.phase() == "Running" && w.runtime.running().len() == 2).await;
    assert_eq!(condition(&life.world, "AllContainersRestarting"), "False");
    life.world.runtime.exit("a", 42);
    // The init container runs again before the others.
    life.until(10, |w| w.runtime.running() == ["i"]).await;
    life.world.runtime.exit("i", 0);
    life.until(10, |w| w.runtime.running().len() == 2 && w.api.state()["state"]["running"].is_object()).await;
    let counts = |w: &World| -> Vec<Value> {
        let status = w.api.status.lock();
        let of = |list: &str| status[list].as_array().expect("a list").clone();
        let all = of("initContainerStatuses").into_iter().chain(of("containerStatuses"));
        all.map(|c| c["restartCount"].clone()).collect()
    };
    life.until(10, |w| counts(w) == [json!(1), json!(1), json!(1)]).await;
    assert_eq!(
        (life.world.api.phase(), condition(&life.world, "AllContainersRestarting")),
        ("Running".into(), "False".into())
    );
    // A container that ends with another exit code is not restarted.
    life.world.runtime.exit("a", 7);
    life.world.runtime.exit("b", 0);
    life.until(10, |w| w.api.phase() == "Failed").await;
}

#[tokio::test(start_paused = true)]
async fn every_container_reports_its_end_after_a_sidecars_rule_restarted_the_pod() {
    let rules = json!([{"action":"RestartAllContainers","exitCodes":{"operator":"In","values":[42]}}]);
    let life = live(pod(json!({"restartPolicy":"Never",
        "initContainers":[{"name":"i","image":"x:1"},
            {"name":"s","image":"x:1","restartPolicy":"Always","restartPolicyRules":rules}],
        "containers":[{"name":"a","image":"x:1"}]})));
    let ends = |w: &World| -> Vec<bool> {
        let status = w.api.status.lock();
        let of = |list: &str| status[list].as_array().cloned().unwrap_or_default();
        let all = of("initContainerStatuses").into_iter().chain(of("containerStatuses"));
        all.map(|c| c["lastState"]["terminated"].is_object() && c["state"]["waiting"].is_null()).collect()
    };
    life.until(5, |w| w.runtime.running().contains(&"i".to_owned())).await;
    life.world.runtime.exit("i", 0);
    life.until(20, |w| w.api.phase() == "Running" && w.runtime.running().len() == 2).await;
    life.world.runtime.exit("s", 42);
    tokio::time::sleep(Duration::from_secs(1)).await;
    life.until(60, |w| w.runtime.running().contains(&"i".to_owned())).await;
    life.world.runtime.exit("i", 0);
    life.until(30, |w| ends(w) == [true, true, true]).await;
}

#[tokio::test(start_paused = true)]
async fn the_image_of_a_volume_is_pulled_as_a_containers_is() {
    let world = world();
    world.runtime.missing.lock().push("data:1".into());
    let life = begin(
        world,
        pod(json!({"volumes":[{"name":"v","image":{"reference":"data:1","pullPolicy":"IfNotPresent"}}],
            "containers":[{"name":"a","image":"x:1","volumeMounts":[{"name":"v","mountPath":"/v"}]}]})),
    );
    life.until(20, |w| w.api.state()["state"]["waiting"]["reason"] == "ErrImagePull").await;
    assert!(life.world.runtime.running().is_empty(), "nothing starts without what it mounts");
    life.world.runtime.missing.lock().clear();
    life.until(60, |w| w.runtime.running() == ["a"]).await;
}
