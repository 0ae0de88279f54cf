//! The life of a pod's containers: sidecars, hooks, deadlines, forced deletion, ephemeral containers, termination,
//! static pods.
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use kelson_blackbox::{Kubectl, Needs::Node, Needs::OwnServer, Outcome, Subject, Test, eventually};

use crate::pods::{IMAGE, ready, script};

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "pods::sidecars_start_in_order_and_end_last", needs: Node, run: sidecars },
        Test { name: "pods::a_job_ends_its_sidecars", needs: Node, run: job_with_sidecar },
        Test { name: "pods::hooks", needs: Node, run: hooks },
        Test { name: "pods::a_failed_post_start_restarts", needs: Node, run: failed_post_start },
        Test { name: "pods::active_deadline", needs: Node, run: deadline },
        Test { name: "pods::forced_deletion_kills_at_once", needs: Node, run: forced },
        Test { name: "pods::ephemeral_containers", needs: Node, run: ephemeral },
        Test { name: "pods::termination_messages_and_oom", needs: Node, run: endings },
        Test { name: "pods::empty_dir_over_its_limit_is_evicted", needs: Node, run: evicted },
        Test { name: "pods::critical_pods_make_room", needs: Node, run: critical },
        Test { name: "pods::static_pods_and_their_mirrors", needs: OwnServer, run: static_pods },
    ]
}

/// Waits until a log has these lines, in any order within `sorted`.
fn log_is(k: &Kubectl, args: &[&str], want: &[&str]) -> Outcome {
    eventually("the log", Duration::from_secs(30), || {
        let mut all = vec!["logs"];
        all.extend(args);
        let log = k.ok(&all)?;
        ensure!(log.lines().eq(want.iter().copied()), "{log}");
        Ok(())
    })
}

fn sidecars(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-sidecar")?;
    // All containers write to one file, which the last one prints.
    let reported = |name: &str, then: &str| {
        format!(
            "echo {name} up >> /w/log; trap 'echo {name} down >> /w/log; {then} exit 0' TERM; while :; do sleep 0.1; done"
        )
    };
    let side = |name: &str, script: &str, more: &str| {
        let script = serde_json::Value::from(script);
        format!(
            "  - {{name: {name}, image: {IMAGE}, command: [sh, -c, {script}], volumeMounts: [{{name: w, mountPath: /w}}]{more}}}\n"
        )
    };
    let always = ", restartPolicy: Always";
    let probed = ", restartPolicy: Always, startupProbe: {exec: {command: [test, -f, /tmp/ok]}, periodSeconds: 1, failureThreshold: 60}";
    let manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: all}}\nspec:\n  terminationGracePeriodSeconds: 20\n  initContainers:\n{}{}{}{}  containers:\n{}  volumes: [{{name: w, emptyDir: {{}}}}]\n",
        side("one", "echo one >> /w/log", ""),
        side(
            "first",
            &format!("(sleep 2; echo first started >> /w/log; touch /tmp/ok) & {}", reported("first", "cat /w/log;")),
            probed
        ),
        side("second", &reported("second", ""), always),
        side("two", "echo two >> /w/log", ""),
        side("main", &reported("main", "sleep 1;"), ""),
    );
    k.apply(&manifest)?;
    ready(&k, "all")?;
    let row = k.ok(&["get", "pod", "all", "--no-headers"])?;
    ensure!(row.split_whitespace().nth(1) == Some("3/3"), "sidecars count: {row}");
    let up = ["one", "first up", "first started", "second up", "two", "main up"];
    let lines = k.ok(&["exec", "all", "-c", "main", "--", "cat", "/w/log"])?;
    ensure!(lines.lines().eq(up), "{lines}");
    let log = k.spawn(&["logs", "-f", "all", "-c", "first"])?;
    k.ok(&["delete", "pod", "all", "--timeout=60s"])?;
    let out = log.wait_with_output()?;
    let out = String::from_utf8_lossy(&out.stdout);
    let want: Vec<&str> = up.into_iter().chain(["main down", "second down", "first down"]).collect();
    ensure!(out.lines().eq(want), "{out}");
    Ok(())
}

fn job_with_sidecar(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-sidejob")?;
    k.apply(&script(
        "job",
        "sleep 1; echo done",
        &format!("  restartPolicy: Never\n  initContainers:\n  - {{name: side, image: {IMAGE}, restartPolicy: Always, command: [sh, -c, \"trap 'exit 0' TERM; while :; do sleep 0.1; done\"]}}\n"),
    ))?;
    k.ok(&["wait", "pod/job", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s"])?;
    let side = k.json(&["get", "pod", "job"])?["status"]["initContainerStatuses"][0].clone();
    ensure!(side["state"]["terminated"]["exitCode"] == 0, "{side}");
    Ok(())
}

fn hooks(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-hooks")?;
    let trap = "trap 'echo term; exit 0' TERM; while :; do sleep 0.1; done";
    k.apply(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: hooked}}\nspec:
  terminationGracePeriodSeconds: 20
  containers:
  - name: exec
    image: {IMAGE}
    command: [sh, -c, \"{trap}\"]
    lifecycle:
      postStart: {{exec: {{command: [sh, -c, 'echo started > /proc/1/fd/1']}}}}
      preStop: {{sleep: {{seconds: 2}}}}
  - name: http
    image: {IMAGE}
    command: [sh, -c, \"mkdir /w; touch /w/stop; httpd -p 80 -h /w; {}\"]
    lifecycle: {{preStop: {{httpGet: {{path: /stop, port: 80}}}}}}
",
        trap.replace("while", "echo set; while")
    ))?;
    ready(&k, "hooked")?;
    log_is(&k, &["hooked", "-c", "exec"], &["started"])?;
    // The kernel drops a signal for which a container's first process has set no trap yet.
    log_is(&k, &["hooked", "-c", "http"], &["set"])?;
    let http = k.spawn(&["logs", "-f", "hooked", "-c", "http"])?;
    let started = Instant::now();
    k.ok(&["delete", "pod", "hooked", "--timeout=60s"])?;
    ensure!(started.elapsed() >= Duration::from_secs(2), "preStop sleep: {:?}", started.elapsed());
    let out = http.wait_with_output()?;
    let out = String::from_utf8_lossy(&out.stdout);
    ensure!(out.lines().last() == Some("term"), "{out}");
    Ok(())
}

fn failed_post_start(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-poststart")?;
    k.apply(&script("bad", "sleep 600", "    lifecycle: {postStart: {exec: {command: ['false']}}}\n"))?;
    eventually("restarts", Duration::from_secs(60), || {
        let c = k.json(&["get", "pod", "bad"])?["status"]["containerStatuses"][0].clone();
        ensure!(c["restartCount"].as_i64() >= Some(1), "{c}");
        Ok(())
    })?;
    let events = k.ok(&["events", "--for", "pod/bad"])?;
    ensure!(events.contains("FailedPostStartHook") && events.contains("PostStartHook failed"), "{events}");
    Ok(())
}

fn deadline(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-deadline")?;
    k.apply(&script("late", "sleep 600", "  activeDeadlineSeconds: 3\n"))?;
    k.ok(&["wait", "pod/late", "--for=jsonpath={.status.phase}=Failed", "--timeout=60s"])?;
    let status = k.ok(&["get", "pod", "late", "-o", "jsonpath={.status.reason}: {.status.message}"])?;
    ensure!(status == "DeadlineExceeded: Pod was active on the node longer than the specified deadline", "{status}");
    Ok(())
}

fn forced(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-forced")?;
    // In the node's PID namespace, so that another pod can see it end.
    let stubborn = script("stubborn", "trap '' TERM; while :; do sleep 1; echo kelson-forced >/dev/null; done", "");
    k.apply(&stubborn.replace("PeriodSeconds: 1\n", "PeriodSeconds: 600\n"))?;
    k.apply(&script("watcher", "sleep 600", "  hostPID: true\n"))?;
    ready(&k, "stubborn")?;
    ready(&k, "watcher")?;
    let there = "ps -o args | grep -v grep | grep -c 'kelson-forced >/dev/null' || true";
    let count = || k.ok(&["exec", "watcher", "--", "sh", "-c", there]);
    ensure!(count()?.trim() != "0", "it runs");
    k.ok(&["delete", "pod", "stubborn", "--force", "--grace-period=0"])?;
    eventually("its process is gone", Duration::from_secs(60), || {
        let left = count()?;
        ensure!(left.trim() == "0", "{left}");
        Ok(())
    })
}

fn ephemeral(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-debug")?;
    k.apply(&script("target", "exec sleep 6123", ""))?;
    ready(&k, "target")?;
    let image = format!("--image={IMAGE}");
    let shell = "ps -o args | grep '^sleep 6123' && echo seen; exit 3";
    k.ok(&["debug", "target", &image, "--target=main", "-c", "dbg", "--attach=false", "--", "sh", "-c", shell])?;
    let state = eventually("its end", Duration::from_secs(30), || {
        let c = k.json(&["get", "pod", "target"])?["status"]["ephemeralContainerStatuses"][0].clone();
        ensure!(c["state"]["terminated"].is_object(), "{c}");
        Ok(c["state"]["terminated"].clone())
    })?;
    ensure!(state["exitCode"] == 3, "{state}");
    log_is(&k, &["target", "-c", "dbg"], &["sleep 6123", "seen"])?;
    let count = k.ok(&["get", "pod", "target", "-o", "jsonpath={.status.containerStatuses[0].restartCount}"])?;
    ensure!(count == "0", "the pod goes on as it was");
    Ok(())
}

fn endings(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-endings")?;
    let one = |name: &str, script: &str, more: &str| {
        format!("  - {{name: {name}, image: {IMAGE}, command: [sh, -c, {}]{more}}}\n", serde_json::Value::from(script))
    };
    let fallback = ", terminationMessagePolicy: FallbackToLogsOnError";
    k.apply(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: ends}}\nspec:\n  restartPolicy: Never\n  containers:\n{}{}{}{}",
        one("file", "printf hello > /tmp/m; exit 2", ", terminationMessagePath: /tmp/m"),
        one("log", "echo from the log; exit 3", fallback),
        one("fine", "echo from the log", fallback),
        one("big", "head -c 100m /dev/zero | tail", ", resources: {limits: {memory: 20Mi}}"),
    ))?;
    k.ok(&["wait", "pod/ends", "--for=jsonpath={.status.phase}=Failed", "--timeout=60s"])?;
    let p = k.json(&["get", "pod", "ends"])?;
    let end = |name: &str| -> anyhow::Result<serde_json::Value> {
        let list = p["status"]["containerStatuses"].as_array().context("statuses")?;
        Ok(list.iter().find(|c| c["name"] == name).context("status")?["state"]["terminated"].clone())
    };
    ensure!(end("file")?["message"] == "hello" && end("file")?["exitCode"] == 2, "{}", end("file")?);
    ensure!(end("log")?["message"] == "from the log\n" && end("log")?["reason"] == "Error", "{}", end("log")?);
    ensure!(end("fine")?.get("message").is_none() && end("fine")?["reason"] == "Completed", "{}", end("fine")?);
    ensure!(end("big")?["reason"] == "OOMKilled" && end("big")?["exitCode"] == 137, "{}", end("big")?);
    Ok(())
}

fn evicted(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-evict")?;
    k.apply(&script(
        "greedy",
        "head -c 5m /dev/zero > /cache/big; sleep 600",
        "    volumeMounts: [{name: cache, mountPath: /cache}]\n  volumes: [{name: cache, emptyDir: {sizeLimit: 1Mi}}]\n",
    ))?;
    k.ok(&["wait", "pod/greedy", "--for=jsonpath={.status.phase}=Failed", "--timeout=90s"])?;
    let status = k.ok(&["get", "pod", "greedy", "-o", "jsonpath={.status.reason}: {.status.message}"])?;
    ensure!(status == "Evicted: Usage of EmptyDir volume \"cache\" exceeds the limit \"1Mi\". ", "{status}");
    let events = k.ok(&["events", "--for", "pod/greedy"])?;
    ensure!(events.contains("Evicted"), "{events}");
    Ok(())
}

/// With a resource that only this case uses, so that no other test's pods are preempted.
fn critical(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-critical")?;
    let node = k.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])?;
    let offered = |amount: &str| {
        let patch = format!(
            r#"{{"status":{{"capacity":{{"example.com/room":{amount}}},"allocatable":{{"example.com/room":{amount}}}}}}}"#
        );
        k.ok(&["patch", "node", &node, "--subresource=status", "-p", &patch])
    };
    offered("\"2\"")?;
    let pod = |name: &str, requests: &str, more: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  nodeName: {node}\n  terminationGracePeriodSeconds: 1\n{more}  containers:\n  - name: c\n    image: {IMAGE}\n    command: [sleep, '6000']\n    resources: {{limits: {{example.com/room: 1}}, requests: {{example.com/room: 1{requests}}}}}\n"
        )
    };
    k.apply(&pod("kept", ", cpu: 1m", ""))?;
    k.apply(&pod("given", "", ""))?;
    ready(&k, "kept")?;
    ready(&k, "given")?;
    k.apply(&pod("refused", "", ""))?;
    k.ok(&["wait", "pod/refused", "--for=jsonpath={.status.phase}=Failed", "--timeout=60s"])?;
    k.apply(&pod("critical", "", "  priorityClassName: system-cluster-critical\n"))?;
    ready(&k, "critical")?;
    let status = &k.json(&["get", "pod", "given"])?["status"];
    ensure!(status["phase"] == "Failed" && status["reason"] == "Preempting", "{status}");
    ensure!(status["message"] == "Preempted in order to admit critical pod", "{status}");
    let conditions = status["conditions"].as_array().context("conditions")?;
    let target = conditions.iter().find(|c| c["type"] == "DisruptionTarget").context("a disruption")?;
    ensure!(target["reason"] == "TerminationByKubelet", "{target}");
    ensure!(target["message"] == "Pod was preempted by Kubelet to accommodate a critical pod.", "{target}");
    let events = k.ok(&["events", "--for", "pod/given"])?;
    ensure!(events.contains("Preempting"), "{events}");
    let kept = k.ok(&["get", "pod", "kept", "-o", "jsonpath={.status.phase}"])?;
    ensure!(kept == "Running", "the pod that asked for more promises is {kept}");
    offered("null")?;
    Ok(())
}

fn static_pods(s: &Subject) -> Outcome {
    let server = s.server.as_ref().context("own server")?;
    if s.lacks(Node).is_some() {
        return Err(anyhow::anyhow!("needs a node"));
    }
    let k = s.kubectl.namespaced("default");
    let node = k.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])?;
    let dir = server.dir.join("kubelet/manifests");
    let (file, pod) = (dir.join("web.yaml"), format!("web-{node}"));
    let manifest = |word: &str| script("web", &format!("echo {word}; sleep 6000"), "");
    std::fs::write(&file, manifest("one"))?;
    eventually("its mirror", Duration::from_secs(60), || ready(&k, &pod))?;
    let mirror = k.json(&["get", "pod", &pod])?;
    ensure!(mirror["metadata"]["ownerReferences"][0]["kind"] == "Node", "{}", mirror["metadata"]);
    log_is(&k, &[&pod], &["one"])?;
    ensure!(k.ok(&["exec", &pod, "--", "echo", "in"])? == "in\n", "exec");

    // Deleting a mirror pod ends nothing: it is created again.
    let id = |p: &serde_json::Value| p["status"]["containerStatuses"][0]["containerID"].clone();
    k.ok(&["delete", "pod", &pod, "--wait=false"])?;
    eventually("a new mirror of the same containers", Duration::from_secs(60), || {
        let again = k.json(&["get", "pod", &pod])?;
        ensure!(again["metadata"]["uid"] != mirror["metadata"]["uid"] && id(&again) == id(&mirror), "{again}");
        Ok(())
    })?;

    std::fs::write(&file, manifest("two"))?;
    eventually("the changed manifest runs", Duration::from_secs(60), || {
        ensure!(k.ok(&["logs", &pod])? == "two\n", "old");
        Ok(())
    })?;
    std::fs::remove_file(&file)?;
    k.ok(&["wait", &format!("pod/{pod}"), "--for=delete", "--timeout=60s"])?;
    Ok(())
}
