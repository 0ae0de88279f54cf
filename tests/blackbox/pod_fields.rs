//! Fields of a pod besides images and commands: names and DNS, shared processes, readiness gates, restart rules,
//! pod-level resources and resizing, sysctls, runtime classes, gRPC probes.
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures::stream::{self, StreamExt as _};
use hyper::body::Frame;
use kelson_blackbox::grpc::{GrpcServer, ended, framed};
use kelson_blackbox::{Kubectl, Needs::Node, Outcome, Subject, Test, eventually, free_port};
use serde_json::Value;

use crate::pods::{IMAGE, log_of, ready, script};

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "pods::names_and_how_they_are_resolved", needs: Node, run: names },
        Test { name: "pods::processes_that_containers_share", needs: Node, run: shared_processes },
        Test { name: "pods::gates_of_readiness", needs: Node, run: gates },
        Test { name: "pods::rules_of_restarts", needs: Node, run: restart_rules },
        Test { name: "pods::resized_while_they_run", needs: Node, run: resized },
        Test { name: "pods::resources_of_the_whole_pod", needs: Node, run: whole_pod },
        Test { name: "pods::sysctls", needs: Node, run: sysctls },
        Test { name: "pods::classes_of_runtimes", needs: Node, run: classes },
        Test { name: "pods::environment_from_files", needs: Node, run: env_files },
        Test { name: "pods::probes_by_grpc", needs: Node, run: grpc_probes },
        Test { name: "pods::a_probe_has_a_separate_grace_period", needs: Node, run: probe_grace },
        Test { name: "pods::a_dead_sandbox_is_replaced", needs: Node, run: sandbox },
        Test { name: "pods::promised_isolation_is_given_or_the_pod_refused", needs: Node, run: promises },
    ]
}

const LIMIT: Duration = Duration::from_secs(60);

/// Waits until the log has these lines.
fn log_is(k: &Kubectl, pod: &str, wanted: &[&str]) -> Outcome {
    eventually("the log", LIMIT, || {
        let log = k.ok(&["logs", pod])?;
        ensure!(log.lines().eq(wanted.iter().copied()), "{log}");
        Ok(())
    })
}

fn names(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("f-names")?;
    k.ok(&["create", "service", "clusterip", "sub", "--clusterip=None", "--tcp=80"])?;
    let shown = "hostname; hostname -f; grep one.example /etc/hosts; cat /etc/resolv.conf; sleep 600";
    k.apply(&script(
        "named",
        shown,
        "  hostname: me
  subdomain: sub
  setHostnameAsFQDN: true
  hostAliases: [{ip: 192.0.2.7, hostnames: [one.example, two.example]}]
  dnsPolicy: None
  dnsConfig: {nameservers: [192.0.2.53], searches: [a.example, b.example], options: [{name: ndots, value: '3'}, {name: edns0}]}
",
    ))?;
    ready(&k, "named")?;
    let log = log_of(&k, "named", 6)?;
    let words: Vec<Vec<&str>> = log.lines().map(|l| l.split_whitespace().collect()).collect();
    let full = "me.sub.f-names.svc.cluster.local";
    ensure!(words.first() == Some(&vec![full]) && words.get(1) == Some(&vec![full]), "{log}");
    ensure!(words.get(2) == Some(&vec!["192.0.2.7", "one.example", "two.example"]), "{log}");
    for line in
        [&["nameserver", "192.0.2.53"][..], &["search", "a.example", "b.example"], &["options", "ndots:3", "edns0"]]
    {
        ensure!(words.iter().any(|w| w == line), "{line:?} in {log}");
    }
    // Its own name resolves to it, also in the pod's hosts file.
    let ip = k.ok(&["get", "pod", "named", "-o", "jsonpath={.status.podIP}"])?;
    let hosts = k.ok(&["exec", "named", "--", "cat", "/etc/hosts"])?;
    ensure!(hosts.lines().any(|l| l.split_whitespace().eq([ip.as_str(), full, "me"])), "{hosts}");
    k.apply(&script("nodes", "cat /etc/resolv.conf; sleep 600", "  dnsPolicy: Default\n"))?;
    k.apply(&script("clusters", "cat /etc/resolv.conf; sleep 600", ""))?;
    ready(&k, "nodes")?;
    ready(&k, "clusters")?;
    let (nodes, clusters) = (log_of(&k, "nodes", 1)?, log_of(&k, "clusters", 3)?);
    ensure!(clusters.contains("f-names.svc.cluster.local svc.cluster.local cluster.local"), "{clusters}");
    ensure!(clusters.contains("ndots:5") && !nodes.contains("cluster.local"), "{nodes}");
    Ok(())
}

fn shared_processes(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("f-share")?;
    let other =
        format!("  - {{name: other, image: {IMAGE}, command: [sleep, '7654']}}\n  shareProcessNamespace: true\n");
    k.apply(&script("all", "sleep 600", &other))?;
    ready(&k, "all")?;
    let list = k.ok(&["exec", "all", "-c", "main", "--", "ps", "-o", "args"])?;
    ensure!(list.contains("sleep 7654") && list.contains("sleep 600"), "{list}");
    let first = k.ok(&["exec", "all", "-c", "main", "--", "cat", "/proc/1/comm"])?;
    ensure!(first.trim() == "pause", "the sandbox's process is the first: {first}");
    Ok(())
}

fn gates(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("f-gate")?;
    k.apply(&script("gated", "sleep 600", "  readinessGates: [{conditionType: example.com/open}]\n"))?;
    k.ok(&["wait", "pod/gated", "--for=condition=ContainersReady", "--timeout=60s"])?;
    let ready_now = || -> anyhow::Result<Value> {
        let p = k.json(&["get", "pod", "gated"])?;
        let all = p["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|c| c["type"] == "Ready").context("a condition")
    };
    let closed = ready_now()?;
    ensure!(closed["status"] == "False" && closed["reason"] == "ReadinessGatesNotReady", "{closed}");
    let open = |status: &str| {
        let patch = format!(r#"{{"status":{{"conditions":[{{"type":"example.com/open","status":"{status}"}}]}}}}"#);
        k.ok(&["patch", "pod", "gated", "--subresource=status", "-p", &patch])
    };
    open("True")?;
    ready(&k, "gated")?;
    open("False")?;
    k.ok(&["wait", "pod/gated", "--for=condition=Ready=false", "--timeout=60s"])?;
    Ok(())
}

fn restart_rules(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("f-rules")?;
    let rule = |codes: &str, action: &str| {
        format!(
            "    restartPolicy: Never\n    restartPolicyRules: [{{action: {action}, exitCodes: {{operator: In, values: [{codes}]}}}}]\n"
        )
    };
    let never = "  restartPolicy: Never\n";
    let volume = "    volumeMounts: [{name: v, mountPath: /v}]\n";
    let volumes = "  volumes: [{name: v, emptyDir: {}}]\n";
    // Exits with the rule's code once, then with another.
    let twice = "test -e /v/again && exit 7; touch /v/again; exit 42";
    k.apply(&script("one", twice, &format!("{}{volume}{never}{volumes}", rule("42", "Restart"))))?;
    k.ok(&["wait", "pod/one", "--for=jsonpath={.status.phase}=Failed", "--timeout=90s"])?;
    let c = k.json(&["get", "pod", "one"])?["status"]["containerStatuses"][0].clone();
    ensure!(c["restartCount"] == 1 && c["state"]["terminated"]["exitCode"] == 7, "{c}");
    // The whole pod restarts from its first init container.
    let first = format!(
        "  initContainers: [{{name: first, image: {IMAGE}, command: [sh, -c, 'echo x >> /v/runs'], volumeMounts: [{{name: v, mountPath: /v}}]}}]\n"
    );
    let twice = "test $(wc -l < /v/runs) = 2 && exit 0; exit 42";
    let all = format!("{}{volume}{never}{first}{volumes}", rule("42", "RestartAllContainers"));
    k.apply(&script("all", twice, &all))?;
    k.ok(&["wait", "pod/all", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=90s"])?;
    Ok(())
}

fn resized(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("f-resize")?;
    k.apply(&script(
        "grows",
        "sleep 6000",
        "    resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}
    resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]
",
    ))?;
    ready(&k, "grows")?;
    let quota = "cat /sys/fs/cgroup/cpu.max 2>/dev/null || cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us";
    let memory = "cat /sys/fs/cgroup/memory.max 2>/dev/null || cat /sys/fs/cgroup/memory/memory.limit_in_bytes";
    let asks = |what: &str, amount: &str| {
        let patch = format!(
            r#"{{"spec":{{"containers":[{{"name":"main","resources":{{"limits":{{"{what}":"{amount}"}}}}}}]}}}}"#
        );
        k.ok(&["patch", "pod", "grows", "--subresource=resize", "-p", &patch])
    };
    let comes = |read: &str, wanted: &str, restarts: i64| {
        eventually(&format!("{wanted} after {restarts} restarts"), LIMIT, || {
            let now = k.ok(&["exec", "grows", "--", "sh", "-c", read])?;
            ensure!(now.starts_with(wanted), "{now}");
            let c = k.json(&["get", "pod", "grows"])?["status"]["containerStatuses"][0].clone();
            ensure!(c["restartCount"] == restarts, "{c}");
            Ok(c)
        })
    };
    asks("cpu", "300m")?;
    comes(quota, "30000", 0)?;
    asks("memory", "96Mi")?;
    comes(memory, "100663296", 1)?;
    eventually("the status", LIMIT, || {
        let c = k.json(&["get", "pod", "grows"])?["status"]["containerStatuses"][0]["resources"].clone();
        ensure!(c["limits"]["cpu"] == "300m" && c["limits"]["memory"] == "96Mi", "{c}");
        Ok(())
    })?;
    // More than the node has is rejected immediately, and changes nothing.
    let patch =
        r#"{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"1000"},"limits":{"cpu":"1000"}}}]}}"#;
    let refused = k.fails(&["patch", "pod", "grows", "--subresource=resize", "-p", patch])?;
    ensure!(refused.stderr.contains("didn't have enough allocatable resources: cpu"), "{}", refused.stderr);
    comes(quota, "30000", 1).map(drop)
}

fn whole_pod(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("f-whole")?;
    let other = format!(
        "  - {{name: other, image: {IMAGE}, command: [sleep, '600'], resources: {{limits: {{memory: 16Mi}}}}}}
  resources: {{requests: {{cpu: 100m, memory: 48Mi}}, limits: {{cpu: 400m, memory: 64Mi}}}}
"
    );
    k.apply(&script("both", "sleep 600", &other))?;
    ready(&k, "both")?;
    ensure!(k.ok(&["get", "pod", "both", "-o", "jsonpath={.status.qosClass}"])? == "Burstable", "class");
    // A container without a limit is killed at the pod's limit.
    let eats = "head -c 200m /dev/zero | tail > /dev/null; echo $?";
    let out = k.run(&["exec", "both", "-c", "main", "--", "sh", "-c", eats])?;
    ensure!(out.stdout.trim() != "0", "more than the pod may have: {out:?}");
    let limit = k.ok(&["get", "pod", "both", "-o", "jsonpath={.spec.resources.limits.memory}"])?;
    ensure!(limit == "64Mi", "{limit}");
    // It sees the pod's limit as its own, and a new one when the pod is resized as a whole.
    let sees = |wanted: &str| {
        eventually(&format!("{wanted} bytes"), LIMIT, || {
            let read = "cat /sys/fs/cgroup/memory.max 2>/dev/null || cat /sys/fs/cgroup/memory/memory.limit_in_bytes";
            let now = k.ok(&["exec", "both", "-c", "main", "--", "sh", "-c", read])?;
            ensure!(now.trim() == wanted, "{now}");
            Ok(())
        })
    };
    sees("67108864")?;
    let patch = r#"{"spec":{"resources":{"requests":{"memory":"64Mi"},"limits":{"memory":"96Mi"}}}}"#;
    k.ok(&["patch", "pod", "both", "--subresource=resize", "-p", patch])?;
    sees("100663296")?;
    eventually("the pod's status", LIMIT, || {
        let status = k.json(&["get", "pod", "both"])?["status"].clone();
        let (has, granted) = (&status["resources"], &status["allocatedResources"]);
        ensure!(has["limits"]["memory"] == "96Mi" && has["limits"]["cpu"] == "400m", "{has}");
        ensure!(granted["memory"] == "64Mi" && granted["cpu"] == "100m", "{granted}");
        Ok(())
    })
}

fn sysctls(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("f-sysctl")?;
    let with =
        |name: &str, value: &str| format!("  securityContext: {{sysctls: [{{name: {name}, value: '{value}'}}]}}\n");
    k.apply(&script(
        "safe",
        "cat /proc/sys/net/ipv4/ip_unprivileged_port_start; sleep 600",
        &with("net.ipv4.ip_unprivileged_port_start", "80"),
    ))?;
    k.apply(&script("unsafe", "sleep 600", &with("kernel.msgmax", "65536")))?;
    ready(&k, "safe")?;
    log_is(&k, "safe", &["80"])?;
    eventually("a refusal", LIMIT, || {
        let status = k.json(&["get", "pod", "unsafe"])?["status"].clone();
        ensure!(status["phase"] == "Failed" && status["reason"] == "SysctlForbidden", "{status}");
        Ok(())
    })
}

fn classes(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("f-class")?;
    let class = |name: &str, handler: &str| {
        format!(
            "---\napiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {{name: {name}}}\nhandler: {handler}\noverhead: {{podFixed: {{memory: 16Mi, cpu: 50m}}}}\n"
        )
    };
    s.kubectl.apply(&format!("{}{}", class("f-class-known", "runc"), class("f-class-unknown", "nothing-like-it")))?;
    let limits = "    resources: {limits: {cpu: 100m, memory: 32Mi}}\n";
    k.apply(&script("known", "sleep 600", &format!("{limits}  runtimeClassName: f-class-known\n")))?;
    k.apply(&script("unknown", "sleep 600", &format!("{limits}  runtimeClassName: f-class-unknown\n")))?;
    ready(&k, "known")?;
    let overhead = k.ok(&["get", "pod", "known", "-o", "jsonpath={.spec.overhead.memory}"])?;
    ensure!(overhead == "16Mi", "{overhead}");
    eventually("the runtime's refusal", LIMIT, || {
        let events = k.ok(&["events", "--for", "pod/unknown"])?;
        ensure!(events.contains("FailedCreatePodSandBox") && events.contains("nothing-like-it"), "{events}");
        Ok(())
    })?;
    k.ok(&["delete", "runtimeclass", "f-class-known", "f-class-unknown"])?;
    Ok(())
}

fn env_files(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("f-envfile")?;
    let writes = format!(
        "  initContainers: [{{name: writes, image: {IMAGE}, command: [sh, -c, \"printf \\\"A='one'\\\\n# of no matter\\\\nB='two words'\\\\n\\\" > /v/env\"], volumeMounts: [{{name: v, mountPath: /v}}]}}]\n"
    );
    k.apply(&script(
        "reads",
        "echo $A; echo $B; echo \"-$C-\"; sleep 600",
        &format!(
            "    env:
    - {{name: A, valueFrom: {{fileKeyRef: {{volumeName: v, path: env, key: A}}}}}}
    - {{name: B, valueFrom: {{fileKeyRef: {{volumeName: v, path: env, key: B}}}}}}
    - {{name: C, valueFrom: {{fileKeyRef: {{volumeName: v, path: env, key: C, optional: true}}}}}}
{writes}  volumes: [{{name: v, emptyDir: {{}}}}]
"
        ),
    ))?;
    ready(&k, "reads")?;
    log_is(&k, "reads", &["one", "two words", "--"])
}

/// `SERVING` and `NOT_SERVING` in gRPC's health protocol.
const SERVING: [&[u8]; 2] = [&[0x08, 0x02], &[0x08, 0x01]];

fn grpc_probes(s: &Subject) -> Outcome {
    use std::sync::atomic::{AtomicBool, Ordering};
    let k = s.kubectl.fresh_namespace("f-grpc")?;
    let port = free_port()?;
    let well = std::sync::Arc::new(AtomicBool::new(true));
    let now = std::sync::Arc::clone(&well);
    // On this machine, whose address a pod with host network has.
    let _server = GrpcServer::at_port(port, move |path, message| {
        let known = path == "/grpc.health.v1.Health/Check" && message == b"\x0a\x04deep";
        let serving = SERVING[usize::from(known && now.load(Ordering::SeqCst))];
        stream::iter([Frame::data(framed(serving)), ended("0")]).boxed()
    })?;
    k.apply(&script(
        "asked",
        "sleep 600",
        &format!("    readinessProbe: {{grpc: {{port: {port}, service: deep}}, periodSeconds: 1, failureThreshold: 1}}\n  hostNetwork: true\n"),
    ))?;
    ready(&k, "asked")?;
    well.store(false, Ordering::SeqCst);
    k.ok(&["wait", "pod/asked", "--for=condition=Ready=false", "--timeout=60s"])?;
    let events = k.ok(&["events", "--for", "pod/asked"])?;
    ensure!(events.contains("service unhealthy (responded with \"NOT_SERVING\")"), "{events}");
    well.store(true, Ordering::SeqCst);
    ready(&k, "asked")
}

fn probe_grace(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("f-grace")?;
    let stubborn = script(
        "stubborn",
        "trap '' TERM; while :; do sleep 1; done",
        "    livenessProbe: {exec: {command: ['false']}, periodSeconds: 1, failureThreshold: 1, terminationGracePeriodSeconds: 1}\n",
    )
    .replace("terminationGracePeriodSeconds: 1\n  containers", "terminationGracePeriodSeconds: 3000\n  containers");
    let started = Instant::now();
    k.apply(&stubborn)?;
    eventually("a restart", Duration::from_secs(90), || {
        let c = k.json(&["get", "pod", "stubborn"])?["status"]["containerStatuses"][0].clone();
        ensure!(c["restartCount"].as_i64() >= Some(1), "after {:?}: {c}", started.elapsed());
        Ok(())
    })?;
    k.ok(&["delete", "pod", "stubborn", "--force", "--grace-period=0"])?;
    Ok(())
}

fn sandbox(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("f-sandbox")?;
    k.apply(&script("falls", "sleep 6000", ""))?;
    let sees = "  hostPID: true\n";
    k.apply(&script("kills", "sleep 6000", &format!("    securityContext: {{privileged: true}}\n{sees}")))?;
    ready(&k, "falls")?;
    ready(&k, "kills")?;
    let p = k.json(&["get", "pod", "falls"])?;
    let uid = p["metadata"]["uid"].as_str().context("a UID")?;
    // Of the processes of that pod, the one that holds its namespaces. Slices of systemd contain the UID with
    // underscores.
    let finds = format!(
        "for p in /proc/[0-9]*; do grep -qE '{uid}|{}' $p/cgroup 2>/dev/null && [ \"$(cat $p/comm)\" = pause ] && kill -9 ${{p#/proc/}} && echo killed; done; true",
        uid.replace('-', "_")
    );
    let out = k.ok(&["exec", "kills", "--", "sh", "-c", &finds])?;
    ensure!(out.trim() == "killed", "{out}");
    eventually("its container runs in a new sandbox", Duration::from_secs(90), || {
        let c = k.json(&["get", "pod", "falls"])?["status"]["containerStatuses"][0].clone();
        ensure!(c["restartCount"] == 1 && c["ready"] == true, "{c}");
        Ok(())
    })?;
    let events = k.ok(&["events", "--for", "pod/falls"])?;
    ensure!(events.contains("SandboxChanged"), "{events}");
    // Its network works, too.
    let ip = k.ok(&["get", "pod", "falls", "-o", "jsonpath={.status.podIP}"])?;
    ensure!(k.ok(&["exec", "falls", "--", "hostname", "-i"])?.contains(&ip), "{ip}");
    Ok(())
}

/// Fields that a runtime or a kernel does not support are rejected with a message, and never silently ignored.
fn promises(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("f-promise")?;
    let rows = [
        // Name, part of the spec, and a command whose output shows that it has an effect.
        ("users", "  hostUsers: false\n", "awk '$1 == 0 && $2 > 0 {print \"given\"}' /proc/self/uid_map"),
        (
            "groups",
            "  securityContext: {supplementalGroups: [4000], supplementalGroupsPolicy: Strict}\n",
            "grep -qE '^Groups:.*4000' /proc/self/status && echo given",
        ),
        (
            "armour",
            "  securityContext: {appArmorProfile: {type: RuntimeDefault}}\n",
            "grep -q enforce /proc/self/attr/current && echo given",
        ),
    ];
    for (name, spec, shows) in rows {
        k.apply(&script(name, &format!("{shows}; sleep 600"), spec))?;
    }
    k.apply(&script(
        "deep",
        "touch /v/x 2>/dev/null || echo given; sleep 600",
        "    volumeMounts: [{name: v, mountPath: /v, readOnly: true, recursiveReadOnly: Enabled}]\n  volumes: [{name: v, emptyDir: {}}]\n",
    ))?;
    let image = format!(
        "    volumeMounts: [{{name: v, mountPath: /v}}]\n  volumes: [{{name: v, image: {{reference: '{IMAGE}'}}}}]\n"
    );
    k.apply(&script("image", "test -e /v/bin/sh && echo given; sleep 600", &image))?;
    for name in ["users", "groups", "armour", "deep", "image"] {
        let what = eventually("given or refused", Duration::from_secs(90), || {
            if k.run(&["logs", name])?.stdout.trim() == "given" {
                return Ok("given".to_owned());
            }
            let p = k.json(&["get", "pod", name])?;
            let c = &p["status"]["containerStatuses"][0];
            ensure!(c["started"] != true, "{name} runs without it");
            let events = k.ok(&["events", "--for", &format!("pod/{name}"), "--types=Warning"])?;
            let said = format!("{} {} {events}", p["status"]["reason"], c["state"]["waiting"]);
            let reasons = ["Failed", "NotSupported", "AppArmor", "Error"];
            ensure!(reasons.iter().any(|word| said.contains(word)), "{name}: {said}");
            Ok("refused".to_owned())
        })?;
        println!("     {name}: {what}");
    }
    Ok(())
}
