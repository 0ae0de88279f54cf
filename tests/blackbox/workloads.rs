//! Deployments on a real node: rollout, undo, restart, scaling, and the scheduler's message when nothing fits.
use std::time::Duration;

use anyhow::ensure;
use kelson_blackbox::{Needs::Node, Outcome, Subject, Test, eventually};

use crate::pods::IMAGE;

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "workloads::deployment_rollout_and_undo", needs: Node, run: rollout_and_undo },
        Test { name: "workloads::rollout_restart_and_scale", needs: Node, run: restart_and_scale },
        Test { name: "workloads::unschedulable_pod_says_why", needs: Node, run: unschedulable },
        Test { name: "workloads::cordon_drain_taint", needs: Node, run: cordon_drain_taint },
    ]
}

/// Returns a deployment of `replicas` sleepers; `version` is in the environment so that a change causes a rollout.
pub fn sleeper(name: &str, replicas: u8, version: &str) -> String {
    format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: {IMAGE}
        command: [sh, -c, 'trap exit TERM; while :; do sleep 1 & wait; done']
        env: [{{name: VERSION, value: '{version}'}}]
"
    )
}

fn rollout_and_undo(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("w-rollout")?;
    let version = "jsonpath={.spec.template.spec.containers[0].env[0].value}";
    k.apply(&sleeper("web", 3, "one"))?;
    k.ok(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    k.apply(&sleeper("web", 3, "two"))?;
    k.ok(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    let history = k.ok(&["rollout", "history", "deployment/web"])?;
    ensure!(history.lines().filter(|l| l.starts_with(char::is_numeric)).count() == 2, "{history}");
    k.ok(&["rollout", "undo", "deployment/web"])?;
    k.ok(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    ensure!(k.ok(&["get", "deployment", "web", "-o", version])? == "one", "undone");
    let pods = k.json(&["get", "pods", "-l", "app=web"])?;
    let values: Vec<&str> = pods["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|p| p["metadata"]["deletionTimestamp"].is_null())
        .filter_map(|p| p["spec"]["containers"][0]["env"][0]["value"].as_str())
        .collect();
    ensure!(values == ["one", "one", "one"], "{values:?}");
    k.ok(&["delete", "deployment", "web", "--cascade=foreground", "--timeout=60s"])?;
    ensure!(k.ok(&["get", "pods", "-o", "name"])?.is_empty(), "foreground deletion waits for the pods");
    Ok(())
}

fn restart_and_scale(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("w-restart")?;
    k.apply(&sleeper("web", 1, "one"))?;
    k.ok(&["wait", "deployment/web", "--for=condition=Available", "--timeout=120s"])?;
    let before = k.ok(&["get", "pods", "-o", "name"])?;
    k.ok(&["rollout", "restart", "deployment/web"])?;
    k.ok(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    eventually("old pod gone", Duration::from_secs(30), || {
        let now = k.ok(&["get", "pods", "-o", "name"])?;
        ensure!(now.lines().count() == 1 && now != before, "{now}");
        Ok(())
    })?;
    k.ok(&["scale", "deployment/web", "--replicas=3"])?;
    k.ok(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    k.ok(&["scale", "deployment/web", "--replicas=0"])?;
    k.ok(&["wait", "pod", "-l", "app=web", "--for=delete", "--timeout=60s"])?;
    Ok(())
}

fn unschedulable(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("w-pending")?;
    k.apply(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: huge}}\nspec: {{containers: [{{name: a, image: {IMAGE}, resources: {{requests: {{cpu: '4000'}}}}}}]}}\n"
    ))?;
    let why = eventually("a reason in the condition", Duration::from_secs(60), || {
        let path = "jsonpath={.status.conditions[?(@.type=='PodScheduled')].reason}: {.status.conditions[?(@.type=='PodScheduled')].message}";
        let text = k.ok(&["get", "pod", "huge", "-o", path])?;
        ensure!(text.starts_with("Unschedulable: "), "{text}");
        Ok(text)
    })?;
    ensure!(why.contains("nodes are available:") && why.contains("Insufficient cpu"), "{why}");
    eventually("an event", Duration::from_secs(60), || {
        let events = k.ok(&["events", "--for", "pod/huge"])?;
        ensure!(events.contains("FailedScheduling") && events.contains("Insufficient cpu"), "{events}");
        Ok(())
    })
}

fn cordon_drain_taint(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("w-drain")?;
    let node = s.kubectl.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])?;
    // A unique name, since draining looks at all namespaces.
    k.apply(&sleeper("drained", 1, "one"))?;
    k.ok(&["wait", "deployment/drained", "--for=condition=Available", "--timeout=120s"])?;
    k.ok(&["taint", "node", &node, "test=x:NoSchedule"])?;
    k.ok(&["taint", "node", &node, "test-"])?;
    let result = (|| {
        let drained =
            s.kubectl.ok(&["drain", &node, "--pod-selector=app=drained", "--delete-emptydir-data", "--timeout=60s"])?;
        ensure!(drained.contains("evicted"), "{drained}");
        let path = "jsonpath={.items[0].status.phase}";
        eventually("the new pod waits", Duration::from_secs(30), || {
            ensure!(k.ok(&["get", "pods", "-o", path])? == "Pending", "phase");
            Ok(())
        })
    })();
    s.kubectl.ok(&["uncordon", &node])?;
    result?;
    k.ok(&["rollout", "status", "deployment/drained", "--timeout=60s"])?;
    Ok(())
}
