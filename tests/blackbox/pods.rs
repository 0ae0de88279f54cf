//! Pods on a real node: environment, volumes, probes, restarts, resources, termination, image pull failures.
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::{Kubectl, Needs::Node, Needs::OwnServer, Outcome, Subject, Test, eventually};

/// A small image with a shell, made by `make images`; another cluster must have it loaded too.
pub const IMAGE: &str = "kelson.local/test/busybox:1";

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "pods::node_is_ready", needs: Node, run: node_is_ready },
        Test { name: "pods::environment_and_volumes", needs: Node, run: environment_and_volumes },
        Test { name: "pods::config_map_updates_reach_the_volume", needs: Node, run: volume_updates },
        Test { name: "pods::init_containers_and_exit_codes", needs: Node, run: init_and_exit },
        Test { name: "pods::crash_loop_backs_off", needs: Node, run: crash_loop },
        Test { name: "pods::probes", needs: Node, run: probes },
        Test { name: "pods::image_that_does_not_exist", needs: Node, run: missing_image },
        Test { name: "pods::missing_config_then_created", needs: Node, run: missing_config },
        Test { name: "pods::termination_and_pre_stop", needs: Node, run: termination },
        Test { name: "pods::resources_become_cgroups", needs: Node, run: resources },
        Test { name: "pods::service_account_token_works", needs: Node, run: service_account },
        Test { name: "pods::server_restart_leaves_containers_alone", needs: OwnServer, run: restart_adopts },
    ]
}

/// Waits until a pod is Ready.
pub fn ready(k: &Kubectl, pod: &str) -> Outcome {
    let waited = k.ok(&["wait", &format!("pod/{pod}"), "--for=condition=Ready", "--timeout=90s"]);
    waited.map(drop).with_context(|| {
        let events = k.run(&["events", "--for", &format!("pod/{pod}")]).map(|o| o.stdout).unwrap_or_default();
        format!("pod {pod} is not ready; its events:\n{events}")
    })
}

/// Returns a pod's log once it has so many lines. A container is ready before it writes the first one.
pub fn log_of(k: &Kubectl, pod: &str, lines: usize) -> anyhow::Result<String> {
    eventually(&format!("{lines} lines in the log of {pod}"), Duration::from_secs(60), || {
        let log = k.ok(&["logs", pod])?;
        ensure!(log.lines().count() >= lines, "{log:?}");
        Ok(log)
    })
}

/// Returns a pod manifest with one container `main` that runs a shell script; `more` is YAML below `spec`.
pub fn script(name: &str, script: &str, more: &str) -> String {
    let script = serde_json::Value::from(script);
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: {name}}}}}\nspec:\n  terminationGracePeriodSeconds: 1\n  containers:\n  - name: main\n    image: {IMAGE}\n    command: [sh, -c, {script}]\n{more}"
    )
}

fn node_is_ready(s: &Subject) -> Outcome {
    // kubectl only waits for existing objects.
    eventually("a node", Duration::from_secs(30), || {
        ensure!(!s.kubectl.ok(&["get", "nodes", "-o", "name"])?.is_empty(), "none yet");
        Ok(())
    })?;
    s.kubectl.ok(&["wait", "node", "--all", "--for=condition=Ready", "--timeout=60s"])?;
    let nodes = s.kubectl.ok(&["get", "nodes", "-o", "wide", "--no-headers"])?;
    ensure!(nodes.contains("v1.36") && nodes.contains("containerd://"), "{nodes}");
    let described = s.kubectl.ok(&["describe", "nodes"])?;
    ensure!(described.contains("KubeletReady") && described.contains("Allocated resources"), "{described}");
    Ok(())
}

fn environment_and_volumes(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-env")?;
    k.ok(&["create", "configmap", "conf", "--from-literal=color=blue", "--from-literal=file.txt=hello"])?;
    k.ok(&["create", "secret", "generic", "sec", "--from-literal=password=hunter2"])?;
    k.apply(&script(
        "envs",
        "echo $GREETING; echo $COLOR; echo $PW; echo $POD $NS $IP; cat /conf/file.txt; echo; cat /sec/password; echo; cat /info/labels; echo; ls /cache; stat -c %a /sec/..data/password; sleep 600",
        "    env:
    - {name: COLOR, valueFrom: {configMapKeyRef: {name: conf, key: color}}}
    - {name: PW, valueFrom: {secretKeyRef: {name: sec, key: password}}}
    - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: NS, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: GREETING, value: 'color is $(COLOR), $$(COLOR), $(UNKNOWN)'}
    volumeMounts:
    - {name: conf, mountPath: /conf}
    - {name: sec, mountPath: /sec, readOnly: true}
    - {name: info, mountPath: /info}
    - {name: cache, mountPath: /cache}
  volumes:
  - {name: conf, configMap: {name: conf}}
  - {name: sec, secret: {secretName: sec, defaultMode: 0400}}
  - {name: info, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
  - {name: cache, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
",
    ))?;
    ready(&k, "envs")?;
    let ip = k.ok(&["get", "pod", "envs", "-o", "jsonpath={.status.podIP}"])?;
    let log = eventually("the whole log", Duration::from_secs(60), || {
        let log = k.ok(&["logs", "envs"])?;
        ensure!(log.lines().count() >= 8, "{log}");
        Ok(log)
    })?;
    let lines: Vec<&str> = log.lines().collect();
    let address = format!("envs p-env {ip}");
    let want =
        ["color is blue, $(COLOR), $(UNKNOWN)", "blue", "hunter2", &address, "hello", "hunter2", "app=\"envs\"", "400"];
    ensure!(lines == want, "{lines:?}");
    Ok(())
}

fn volume_updates(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-volupd")?;
    k.ok(&["create", "configmap", "conf", "--from-literal=v=1"])?;
    k.apply(&script(
        "reader",
        "sleep 600",
        "    volumeMounts: [{name: c, mountPath: /c}]\n  volumes: [{name: c, configMap: {name: conf}}]\n",
    ))?;
    ready(&k, "reader")?;
    k.ok(&["patch", "cm", "conf", "-p", r#"{"data":{"v":"2"}}"#])?;
    eventually("the new value", Duration::from_secs(90), || {
        ensure!(k.ok(&["exec", "reader", "--", "cat", "/c/v"])? == "2", "old");
        Ok(())
    })
}

fn init_and_exit(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-init")?;
    k.apply(&script(
        "steps",
        "cat /w/one; exit 3",
        &format!(
            "    volumeMounts: [{{name: w, mountPath: /w}}]
  restartPolicy: Never
  initContainers:
  - {{name: one, image: {IMAGE}, command: [sh, -c, 'echo made > /w/one'], volumeMounts: [{{name: w, mountPath: /w}}]}}
  volumes: [{{name: w, emptyDir: {{}}}}]
"
        ),
    ))?;
    k.ok(&["wait", "pod/steps", "--for=jsonpath={.status.phase}=Failed", "--timeout=60s"])?;
    ensure!(k.ok(&["logs", "steps"])? == "made\n", "log of an ended container");
    let p = k.json(&["get", "pod", "steps"])?;
    let state = &p["status"]["containerStatuses"][0]["state"]["terminated"];
    ensure!(state["exitCode"] == 3 && state["reason"] == "Error", "{state}");
    let init = &p["status"]["initContainerStatuses"][0]["state"]["terminated"];
    ensure!(init["exitCode"] == 0 && init["reason"] == "Completed", "{init}");
    let row = k.ok(&["get", "pod", "steps", "--no-headers"])?;
    ensure!(row.split_whitespace().nth(2) == Some("Error"), "{row}");
    Ok(())
}

fn crash_loop(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-crash")?;
    k.apply(&script("crash", "echo attempt; exit 1", ""))?;
    eventually("CrashLoopBackOff", Duration::from_secs(60), || {
        let p = k.json(&["get", "pod", "crash"])?;
        let c = &p["status"]["containerStatuses"][0];
        ensure!(c["state"]["waiting"]["reason"] == "CrashLoopBackOff", "{}", c["state"]);
        ensure!(c["restartCount"].as_i64() >= Some(1), "{}", c["restartCount"]);
        let message = c["state"]["waiting"]["message"].as_str().unwrap_or_default();
        ensure!(message.contains("restarting failed container=main pod=crash_p-crash("), "{message}");
        Ok(())
    })?;
    ensure!(k.ok(&["logs", "crash", "--previous"])? == "attempt\n", "previous log");
    let events = k.ok(&["events", "--for", "pod/crash"])?;
    ensure!(
        events.contains("BackOff")
            && events.contains("Back-off restarting failed container main in pod crash_p-crash("),
        "{events}"
    );
    Ok(())
}

fn probes(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-probes")?;
    k.apply(&script(
        "probed",
        "touch /tmp/alive; httpd -p 8080 -h /tmp; touch /tmp/index.html; sleep 600",
        "    startupProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, failureThreshold: 30}
    readinessProbe: {httpGet: {path: /index.html, port: 8080}, periodSeconds: 1, failureThreshold: 1}
    livenessProbe: {exec: {command: [cat, /tmp/alive]}, periodSeconds: 1, failureThreshold: 1}
",
    ))?;
    ready(&k, "probed")?;
    k.ok(&["exec", "probed", "--", "rm", "/tmp/index.html"])?;
    k.ok(&["wait", "pod/probed", "--for=condition=Ready=false", "--timeout=30s"])?;
    k.ok(&["exec", "probed", "--", "touch", "/tmp/index.html"])?;
    ready(&k, "probed")?;
    k.ok(&["exec", "probed", "--", "rm", "/tmp/alive"])?;
    eventually("a restart by the liveness probe", Duration::from_secs(60), || {
        let count = k.ok(&["get", "pod", "probed", "-o", "jsonpath={.status.containerStatuses[0].restartCount}"])?;
        ensure!(count == "1", "restarts: {count}");
        Ok(())
    })?;
    let events = k.ok(&["events", "--for", "pod/probed"])?;
    for want in [
        "Liveness probe failed: cat: can't open '/tmp/alive'",
        "Readiness probe failed: HTTP probe failed with statuscode: 404",
        "Container main failed liveness probe, will be restarted",
    ] {
        ensure!(events.contains(want), "{want} missing in\n{events}");
    }
    ready(&k, "probed")
}

fn missing_image(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-noimage")?;
    k.apply("apiVersion: v1\nkind: Pod\nmetadata: {name: none}\nspec: {containers: [{name: a, image: '127.0.0.1:1/none:1'}]}\n")?;
    let mut seen = std::collections::BTreeSet::new();
    eventually("ErrImagePull, then ImagePullBackOff", Duration::from_secs(90), || {
        let reason =
            k.ok(&["get", "pod", "none", "-o", "jsonpath={.status.containerStatuses[0].state.waiting.reason}"])?;
        seen.insert(reason);
        ensure!(seen.contains("ErrImagePull") && seen.contains("ImagePullBackOff"), "{seen:?}");
        Ok(())
    })?;
    let events = k.ok(&["events", "--for", "pod/none"])?;
    ensure!(
        events.contains("Failed to pull image \"127.0.0.1:1/none:1\"") && events.contains("Pulling image"),
        "{events}"
    );
    k.apply(&format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: never}}\nspec: {{containers: [{{name: a, image: '{IMAGE}-x', imagePullPolicy: Never}}]}}\n"))?;
    eventually("ErrImageNeverPull", Duration::from_secs(30), || {
        let reason =
            k.ok(&["get", "pod", "never", "-o", "jsonpath={.status.containerStatuses[0].state.waiting.reason}"])?;
        ensure!(reason == "ErrImageNeverPull", "{reason}");
        Ok(())
    })
}

fn missing_config(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-noconf")?;
    k.apply(&script(
        "wants",
        "echo $X; sleep 600",
        "    env: [{name: X, valueFrom: {configMapKeyRef: {name: later, key: x}}}]\n",
    ))?;
    eventually("CreateContainerConfigError", Duration::from_secs(30), || {
        let w = k.ok(&["get", "pod", "wants", "-o", "jsonpath={.status.containerStatuses[0].state.waiting}"])?;
        ensure!(w.contains("CreateContainerConfigError") && w.contains("configmap \\\"later\\\" not found"), "{w}");
        Ok(())
    })?;
    k.ok(&["create", "configmap", "later", "--from-literal=x=now"])?;
    ready(&k, "wants")
}

fn termination(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-term")?;
    let manifest = script(
        "ends",
        "trap 'echo got TERM; sleep 1; exit 0' TERM; echo up; while :; do sleep 0.2; done",
        "    lifecycle: {preStop: {exec: {command: [sh, -c, 'echo stopping > /proc/1/fd/1']}}}\n",
    )
    .replace("terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 20");
    k.apply(&manifest)?;
    ready(&k, "ends")?;
    let child = k.spawn(&["logs", "-f", "ends"])?;
    let started = std::time::Instant::now();
    k.ok(&["delete", "pod", "ends", "--timeout=60s"])?;
    let took = started.elapsed();
    ensure!(
        took > Duration::from_millis(900) && took < Duration::from_secs(15),
        "graceful, but not to the end of the grace: {took:?}"
    );
    let log = child.wait_with_output()?;
    let log = String::from_utf8_lossy(&log.stdout);
    ensure!(log.lines().eq(["up", "stopping", "got TERM"]), "{log}");
    k.apply(&script("stubborn", "trap '' TERM; while :; do sleep 1; done", "").replace("Seconds: 1", "Seconds: 60"))?;
    ready(&k, "stubborn")?;
    let started = std::time::Instant::now();
    k.ok(&["delete", "pod", "stubborn", "--force", "--grace-period=0"])?;
    ensure!(started.elapsed() < Duration::from_secs(20), "force: {:?}", started.elapsed());
    Ok(())
}

fn resources(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-cgroup")?;
    k.apply(&script(
        "limited",
        "sleep 600",
        "    resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 500m, memory: 64Mi}}\n",
    ))?;
    ready(&k, "limited")?;
    let read = "cat /sys/fs/cgroup/memory.max 2>/dev/null || cat /sys/fs/cgroup/memory/memory.limit_in_bytes";
    ensure!(k.ok(&["exec", "limited", "--", "sh", "-c", read])?.trim() == "67108864", "memory limit");
    let read = "cat /sys/fs/cgroup/cpu.max 2>/dev/null || cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us";
    ensure!(k.ok(&["exec", "limited", "--", "sh", "-c", read])?.starts_with("50000"), "cpu limit");
    ensure!(k.ok(&["get", "pod", "limited", "-o", "jsonpath={.status.qosClass}"])? == "Burstable", "qos");
    Ok(())
}

fn service_account(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-token")?;
    k.apply(&script("caller", "sleep 600", ""))?;
    ready(&k, "caller")?;
    let dir = "/var/run/secrets/kubernetes.io/serviceaccount";
    ensure!(k.ok(&["exec", "caller", "--", "cat", &format!("{dir}/namespace")])? == "p-token", "namespace file");
    let token = k.ok(&["exec", "caller", "--", "cat", &format!("{dir}/token")])?;
    let payload = token.split('.').nth(1).context("a JWT")?;
    ensure!(payload.len() > 100, "bound claims");
    let review =
        format!(r#"{{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{{"token":"{token}"}}}}"#);
    let out = s.kubectl.with_input(&["create", "-o", "json", "-f", "-"], review.as_bytes())?;
    let review: serde_json::Value = serde_json::from_str(&out.stdout).with_context(|| out.stderr.clone())?;
    ensure!(review["status"]["authenticated"] == true, "{}", review["status"]);
    ensure!(review["status"]["user"]["username"] == "system:serviceaccount:p-token:default", "{}", review["status"]);
    let pod = &review["status"]["user"]["extra"]["authentication.kubernetes.io/pod-name"][0];
    ensure!(pod == "caller", "{pod}");
    Ok(())
}

fn restart_adopts(s: &Subject) -> Outcome {
    let server = s.server.as_ref().context("own server")?;
    if s.lacks(Node).is_some() {
        return Err(anyhow::anyhow!("needs a node"));
    }
    let k = s.kubectl.fresh_namespace("p-adopt")?;
    k.apply(&script("stays", "echo $$ started; sleep 6000", ""))?;
    ready(&k, "stays")?;
    let identity = [
        "get",
        "pod",
        "stays",
        "-o",
        "jsonpath={.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount} {.status.podIP}",
    ];
    let before = k.ok(&identity)?;
    let took = server.terminate()?;
    ensure!(took < Duration::from_secs(10), "SIGTERM took {took:?}");
    server.launch()?;
    for round in ["after SIGTERM", "after kill -9"] {
        ready(&k, "stays")?;
        eventually("exec works again", Duration::from_secs(60), || k.ok(&["exec", "stays", "--", "true"]))?;
        ensure!(k.ok(&identity)? == before, "{round}: {} was {before}", k.ok(&identity)?);
        if round == "after SIGTERM" {
            server.kill()?;
            server.launch()?;
        }
    }
    Ok(())
}
