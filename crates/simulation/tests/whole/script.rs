//! What users and administrators do, drawn from the seed, and what must come of it.
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kelson_simulation::{Rates, Trace};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cluster::{Cluster, NODES};
use crate::invariants::{self, Watched};

/// How often a deployment is made anew while the old one is still there, a second apart.
const RECREATE_TRIES: usize = 60;
/// Deeds, with pauses between them.
const STEPS: usize = 60;
const PAUSE_MAX: Duration = Duration::from_secs(12);
/// Longest time that a part is down.
const DOWN_MAX: Duration = Duration::from_secs(100);
/// After the last fault all is well within this: longer than the longest back-off and the node monitor's grace.
const HEALED_WITHIN: Duration = Duration::from_secs(1800);
const LOOK_EVERY: Duration = Duration::from_secs(5);

const NAMESPACES: [&str; 2] = ["blue", "green"];
/// This one is deleted on the way.
const DOOMED: &str = "doomed";
const DEPLOYMENTS: &str = "apps/v1/deployments";

/// Runs a seed to its end; the error says what does not hold.
pub async fn run(seed: u64, trace: Arc<OnceLock<Trace>>) -> Result<(), String> {
    let mut cluster = Cluster::start(seed, trace.get_or_init(Trace::new).clone()).await;
    play(&mut cluster, seed).await
}

async fn play(cluster: &mut Cluster, seed: u64) -> Result<(), String> {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x5eed);
    let mut watched = Watched::default();
    for name in NAMESPACES.into_iter().chain([DOOMED]) {
        cluster.api.create("v1/namespaces", json!({"metadata": {"name": name}})).await;
    }
    // The service account of each namespace, which pods need, and ready nodes.
    tokio::time::sleep(Duration::from_secs(20)).await;
    for (n, namespace) in NAMESPACES.into_iter().chain([DOOMED]).enumerate() {
        let name = format!("web{n}");
        cluster.api.create(DEPLOYMENTS, deployment(namespace, &name, &mut rng)).await;
        cluster.api.create("v1/services", service(namespace, &name)).await;
    }
    cluster.faults.set(Rates::BAD);
    for _ in 0..STEPS {
        step(cluster, &mut rng).await;
        let until = Instant::now() + PAUSE_MAX.mul_f64(rng.random());
        while Instant::now() < until {
            watched.look(cluster).await?;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
    cluster.trace.note("test", "faults end");
    cluster.faults.set(Rates::default());
    cluster.api.delete("v1/namespaces", "", DOOMED, json!({})).await;
    for n in 0..NODES {
        if !cluster.has_kubelet(n) {
            cluster.start_kubelet(n).await;
        }
    }
    let begun = Instant::now();
    loop {
        watched.look(cluster).await?;
        match invariants::settled(cluster, DOOMED).await {
            Ok(()) => return Ok(()),
            Err(why) if begun.elapsed() > HEALED_WITHIN => return Err(format!("never: {why}")),
            Err(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

fn deployment(namespace: &str, name: &str, rng: &mut StdRng) -> Value {
    let kind = if rng.random_bool(0.3) { "Recreate" } else { "RollingUpdate" };
    json!({"metadata": {"name": name, "namespace": namespace}, "spec": {
        "replicas": rng.random_range(1..5), "strategy": {"type": kind}, "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 5,
            "containers": [{"name": "c", "image": "example.com/c:1", "ports": [{"name": "http", "containerPort": 8080}],
                "resources": {"requests": {"cpu": "10m"}}}]}}}})
}

fn service(namespace: &str, name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": namespace}, "spec": {
        "selector": {"app": name}, "ports": [{"port": 80, "targetPort": "http"}]}})
}

/// One of the objects of a resource, as namespace and name.
async fn any(cluster: &Cluster, resource: &str, rng: &mut StdRng) -> Option<(String, String)> {
    let all = cluster.api.list(resource).await;
    let meta = |o: &Value, key: &str| o["metadata"][key].as_str().unwrap_or_default().to_owned();
    let wanted: Vec<_> = all.iter().map(|o| (meta(o, "namespace"), meta(o, "name"))).collect();
    (!wanted.is_empty()).then(|| wanted[rng.random_range(0..wanted.len())].clone())
}

async fn step(cluster: &mut Cluster, rng: &mut StdRng) {
    match rng.random_range(0..14) {
        0..=2 => scale(cluster, rng).await,
        3..=4 => roll_out(cluster, rng).await,
        5 => delete_deployment(cluster, rng).await,
        6..=7 => {
            if let Some((namespace, name)) = any(cluster, "v1/pods", rng).await {
                cluster.trace.note("user", format_args!("deletes pod {namespace}/{name}"));
                cluster.api.delete("v1/pods", &namespace, &name, json!({})).await;
            }
        }
        8..=9 => crash(cluster, rng),
        10 => cordon(cluster, rng).await,
        11 => {
            cluster.stop_controllers().await;
            tokio::time::sleep(DOWN_MAX.mul_f64(rng.random())).await;
            cluster.start_controllers();
        }
        12 => {
            cluster.stop_scheduler().await;
            tokio::time::sleep(DOWN_MAX.mul_f64(rng.random())).await;
            cluster.start_scheduler();
        }
        _ => restart_kubelet(cluster, rng).await,
    }
}

/// An existing deployment is scaled.
async fn scale(cluster: &Cluster, rng: &mut StdRng) {
    let Some((namespace, name)) = any(cluster, DEPLOYMENTS, rng).await else { return };
    let replicas = rng.random_range(0..7);
    cluster.trace.note("user", format_args!("scales {namespace}/{name} to {replicas}"));
    cluster.api.change(DEPLOYMENTS, &namespace, &name, |d| d["spec"]["replicas"] = json!(replicas)).await;
}

async fn roll_out(cluster: &Cluster, rng: &mut StdRng) {
    let Some((namespace, name)) = any(cluster, DEPLOYMENTS, rng).await else { return };
    let image = format!("example.com/c:{}", rng.random_range(1..5));
    cluster.trace.note("user", format_args!("sets {namespace}/{name} to {image}"));
    let set = |d: &mut Value| d["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image);
    cluster.api.change(DEPLOYMENTS, &namespace, &name, set).await;
}

/// A deployment goes one of the three ways, and one of the same name is made again at once.
async fn delete_deployment(cluster: &Cluster, rng: &mut StdRng) {
    let Some((namespace, name)) = any(cluster, DEPLOYMENTS, rng).await else { return };
    let policy = ["Foreground", "Background", "Orphan"][rng.random_range(0..3)];
    cluster.trace.note("user", format_args!("deletes {namespace}/{name}, {policy}"));
    cluster.api.delete(DEPLOYMENTS, &namespace, &name, json!({"propagationPolicy": policy})).await;
    // While the old one waits for its dependents the new one is refused; dependents may wait for a kubelet that is down.
    for _ in 0..RECREATE_TRIES {
        let Err(e) = cluster.api.try_create(DEPLOYMENTS, deployment(&namespace, &name, rng)).await else { return };
        assert!(e.is_already_exists(), "{e}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

fn crash(cluster: &Cluster, rng: &mut StdRng) {
    let runtime = &cluster.nodes[rng.random_range(0..NODES)].runtime;
    let running = runtime.running().len();
    if running > 0 {
        cluster.trace.note("container", "crashes");
        runtime.exit_nth(rng.random_range(0..running), 1);
    }
}

async fn cordon(cluster: &Cluster, rng: &mut StdRng) {
    let name = &cluster.nodes[rng.random_range(0..NODES)].name;
    let cordoned = rng.random_bool(0.4);
    cluster.trace.note("user", format_args!("node {name} unschedulable: {cordoned}"));
    if cluster.api.get("v1/nodes", "", name).await.is_some() {
        cluster.api.change("v1/nodes", "", name, |n| n["spec"]["unschedulable"] = json!(cordoned)).await;
    }
}

async fn restart_kubelet(cluster: &mut Cluster, rng: &mut StdRng) {
    let n = rng.random_range(0..NODES);
    cluster.stop_kubelet(n).await;
    tokio::time::sleep(DOWN_MAX.mul_f64(rng.random())).await;
    cluster.start_kubelet(n).await;
}
