//! The resource metrics API, which the server has itself: `kubectl top`, autoscalers, and stepping aside for an installed metrics-server.
use std::time::Duration;

use anyhow::ensure;
use kelson_blackbox::{
    Needs::Node, Needs::OwnNode, Needs::OwnServer, Outcome, Process, Subject, Test, eventually, repo_root,
};

use crate::pods::{IMAGE, ready, script};

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "metrics_api::top_of_nodes_and_pods", needs: Node, run: top },
        Test { name: "metrics_api::an_autoscaler_follows_the_load", needs: Node, run: autoscaler },
        Test { name: "metrics_api::it_steps_aside_and_returns", needs: OwnNode, run: steps_aside },
        Test { name: "metrics_api::disabled_it_leaves_no_trace", needs: OwnServer, run: disabled },
    ]
}

const LIMIT: Duration = Duration::from_secs(90);
/// Uses as much of a core as it gets.
const BUSY: &str = "while :; do :; done";

fn top(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("m-top")?;
    k.apply(&script("busy", BUSY, ""))?;
    k.apply(&script("idle", "sleep 6000", ""))?;
    ready(&k, "busy")?;
    ready(&k, "idle")?;
    let pods = eventually("both pods have a usage", LIMIT, || {
        let pods = k.ok(&["top", "pods", "--sort-by=cpu", "--no-headers"])?;
        ensure!(pods.lines().count() == 2, "{pods}");
        Ok(pods)
    })?;
    let row: Vec<&str> = pods.lines().next().unwrap_or_default().split_whitespace().collect();
    let cpu: u32 = row[1].trim_end_matches('m').parse()?;
    ensure!(row[0] == "busy" && row[1].ends_with('m') && cpu > 50 && row[2].ends_with("Mi"), "{pods}");
    let nodes = k.ok(&["top", "nodes"])?;
    let words: Vec<&str> = nodes.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    ensure!(nodes.starts_with("NAME") && words.len() == 5 && words[2].ends_with('%'), "{nodes}");
    ensure!(words[1].trim_end_matches('m').parse::<u32>()? >= cpu / 2, "the node's use includes the pod's: {nodes}");
    let containers = k.ok(&["top", "pod", "busy", "--containers", "--no-headers"])?;
    ensure!(containers.split_whitespace().nth(1) == Some("main"), "{containers}");
    let all = k.ok(&["top", "pods", "-A", "--sort-by=memory", "--field-selector=metadata.namespace=m-top"])?;
    ensure!(all.contains("m-top") && all.lines().count() == 3, "{all}");
    k.ok(&["label", "pod", "idle", "kind=quiet"])?;
    let chosen = k.ok(&["top", "pods", "-l", "kind=quiet", "--no-headers"])?;
    ensure!(chosen.lines().count() == 1 && chosen.starts_with("idle"), "{chosen}");
    let table = k.ok(&["get", "pods.metrics.k8s.io", "busy"])?;
    ensure!(table.starts_with("NAME") && table.contains("WINDOW"), "{table}");
    let object = k.json(&["get", "pods.metrics.k8s.io", "busy"])?;
    ensure!(object["kind"] == "PodMetrics" && object["containers"][0]["name"] == "main", "{object}");
    let explained = k.ok(&["explain", "podmetrics.containers.usage", "--api-version=metrics.k8s.io/v1beta1"])?;
    ensure!(explained.contains("FIELD: usage"), "{explained}");
    let unknown = k.fails(&["top", "pod", "nothing"])?;
    ensure!(unknown.stderr.contains("pods \"nothing\" not found"), "{}", unknown.stderr);
    k.ok(&["delete", "pod", "busy", "--grace-period=0", "--force"])?;
    let gone = k.fails(&["top", "pod", "busy"])?;
    ensure!(gone.stderr.contains("pods \"busy\" not found"), "{}", gone.stderr);
    k.ok(&["create", "serviceaccount", "viewer"])?;
    k.ok(&["create", "rolebinding", "viewer", "--clusterrole=view", "--serviceaccount=m-top:viewer"])?;
    let viewer = "--as=system:serviceaccount:m-top:viewer";
    eventually("a viewer of the namespace may read its pods' usage", LIMIT, || k.ok(&["top", "pods", viewer]))?;
    let nodes = k.fails(&["top", "nodes", viewer])?;
    ensure!(nodes.stderr.contains("nodes.metrics.k8s.io is forbidden"), "{}", nodes.stderr);
    Ok(())
}

fn autoscaler(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("m-hpa")?;
    k.apply(&format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: load}}
spec:
  selector: {{matchLabels: {{app: load}}}}
  template:
    metadata: {{labels: {{app: load}}}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {{name: main, image: {IMAGE}, command: [sh, -c, '{BUSY}'], resources: {{requests: {{cpu: 20m}}, limits: {{cpu: 100m}}}}}}
"
    ))?;
    k.ok(&["rollout", "status", "deployment/load", "--timeout=120s"])?;
    k.ok(&["autoscale", "deployment", "load", "--cpu=50%", "--min=1", "--max=3"])?;
    eventually("the autoscaler adds pods", Duration::from_secs(180), || {
        let hpa = k.json(&["get", "hpa", "load"])?;
        ensure!(hpa["status"]["desiredReplicas"] == 3, "{}", hpa["status"]);
        Ok(())
    })?;
    let hpa = k.json(&["get", "hpa", "load"])?;
    let used = hpa["status"]["currentMetrics"][0]["resource"]["current"]["averageUtilization"].as_u64();
    ensure!(used.is_some_and(|used| used > 100), "{}", hpa["status"]);
    let events = k.ok(&["get", "events", "-o", "jsonpath={.items[*].reason}"])?;
    ensure!(events.contains("SuccessfulRescale"), "{events}");
    Ok(())
}

const THEIRS: &str = "apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  service: {name: metrics-server, namespace: kube-system}
  group: metrics.k8s.io
  version: v1beta1
  insecureSkipTLSVerify: true
  groupPriorityMinimum: 100
  versionPriority: 100
";

fn steps_aside(_: &Subject) -> Outcome {
    let server = Process::start(&[], &repo_root().join(".cache/images"))?;
    let k = server.kubectl();
    eventually("the server's own metrics", LIMIT, || k.ok(&["top", "nodes"]))?;
    let local = k.ok(&["get", "apiservice", "v1beta1.metrics.k8s.io", "--no-headers"])?;
    ensure!(local.contains("Local") && local.contains("True"), "{local}");
    k.apply(THEIRS)?;
    let away = k.fails(&["top", "nodes"])?;
    ensure!(
        away.stderr.contains("Metrics API not available") || away.stderr.contains("ServiceUnavailable"),
        "{}",
        away.stderr
    );
    let theirs = k.ok(&["get", "apiservice", "v1beta1.metrics.k8s.io", "--no-headers"])?;
    ensure!(theirs.contains("kube-system/metrics-server") && theirs.contains("False"), "{theirs}");
    k.with_input(&["delete", "-f", "-"], THEIRS.as_bytes())?;
    eventually("the server's own metrics are back", LIMIT, || k.ok(&["top", "nodes"]))?;
    server.finish(false)
}

fn disabled(_: &Subject) -> Outcome {
    let server =
        Process::start(&["--disable-agent", "--disable", "metrics-server"], &repo_root().join(".cache/images"))?;
    let k = server.kubectl();
    let none = k.fails(&["top", "nodes"])?;
    ensure!(none.stderr.contains("Metrics API not available"), "{}", none.stderr);
    k.fails(&["get", "apiservice", "v1beta1.metrics.k8s.io"])?;
    ensure!(!k.ok(&["api-versions"])?.contains("metrics.k8s.io"), "no group");
    server.finish(false)
}
