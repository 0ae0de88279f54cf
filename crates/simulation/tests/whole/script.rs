//! The actions of users and administrators and the faults, drawn from the seed, and the final checks.
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kelson_simulation::{Rates, Trace};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cluster::{Cluster, NODES};
use crate::invariants;
use crate::scaled;
use crate::watched::Watched;
use crate::workloads::{self, ALL, DAEMON_SETS, DEPLOYMENTS, JOBS, STATEFUL_SETS};

/// The number of attempts to recreate a workload while the old one still exists, a second apart.
const RECREATE_TRIES: usize = 60;
/// The number of actions, with pauses between them.
const STEPS: usize = 40;
const PAUSE_MAX: Duration = Duration::from_secs(12);
/// The maximum time that a part is down.
const DOWN_MAX: Duration = Duration::from_secs(100);
/// The maximum time without power, the maximum time with a full disk, and the largest jump of a clock.
const POWERLESS_MAX: Duration = Duration::from_secs(20);
const FULL_MAX: Duration = Duration::from_secs(30);
const JUMP_MAX_S: i64 = 7200;
/// The maximum number of writes of a part before it is killed during one, and how long they are waited for.
const WRITES_MAX: usize = 12;
const WRITES_WITHIN: Duration = Duration::from_secs(60);
/// The time limit for convergence after the last fault: longer than the longest back-off and the node monitor's grace
/// period.
const HEALED_WITHIN: Duration = Duration::from_secs(1800);
const LOOK_EVERY: Duration = Duration::from_secs(5);

const NAMESPACES: [&str; 2] = ["blue", "green"];
/// This namespace is deleted during the run.
const DOOMED: &str = "doomed";

/// Runs a seed to its end; the error says which check failed.
pub async fn run(seed: u64, trace: Arc<OnceLock<Trace>>) -> Result<(), String> {
    let mut cluster = Cluster::start(seed, trace.get_or_init(Trace::new).clone()).await;
    play(&mut cluster, seed).await
}

async fn play(cluster: &mut Cluster, seed: u64) -> Result<(), String> {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x5eed);
    let watched = Watched::start(cluster);
    for name in NAMESPACES.into_iter().chain([DOOMED]) {
        cluster.api.create("v1/namespaces", json!({"metadata": {"name": name}})).await;
    }
    scaled::serve_metrics(cluster).await;
    // The service account of each namespace, which pods need, and ready nodes.
    tokio::time::sleep(Duration::from_secs(20)).await;
    for (n, namespace) in NAMESPACES.into_iter().chain([DOOMED]).enumerate() {
        for (resource, name) in [(DEPLOYMENTS, "web"), (STATEFUL_SETS, "set"), (DAEMON_SETS, "each"), (JOBS, "job")] {
            let name = format!("{name}{n}");
            cluster.api.create(resource, workloads::any(resource, namespace, &name, &mut rng)).await;
            if resource != JOBS {
                cluster.api.create("v1/services", workloads::service(namespace, &name)).await;
            }
        }
        scaled::begin(cluster, namespace, n, &mut rng).await;
    }
    cluster.faults.set(Rates::BAD);
    for _ in 0..STEPS {
        step(cluster, &mut rng).await;
        tokio::time::sleep(PAUSE_MAX.mul_f64(rng.random())).await;
        scaled::measure(cluster).await;
        watched.verdict(cluster)?;
        scaled::within_budgets(cluster).await?;
    }
    cluster.trace.note("test", "faults end");
    cluster.faults.set(Rates::default());
    cluster.api.delete("v1/namespaces", "", DOOMED, json!({})).await;
    for n in 0..NODES {
        mark(cluster, n, false).await;
    }
    let begun = Instant::now();
    loop {
        watched.verdict(cluster)?;
        scaled::measure(cluster).await;
        scaled::within_budgets(cluster).await?;
        match all_settled(cluster, &watched).await {
            Ok(()) => return Ok(()),
            Err(why) if begun.elapsed() > HEALED_WITHIN => return Err(format!("never: {why}")),
            Err(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

async fn all_settled(cluster: &Cluster, watched: &Watched) -> Result<(), String> {
    invariants::settled(cluster, watched, DOOMED).await?;
    scaled::settled(cluster).await
}

/// Returns one of the objects of a resource, as namespace and name.
async fn any(cluster: &Cluster, resource: &str, rng: &mut StdRng) -> Option<(String, String)> {
    let all = cluster.api.list(resource).await;
    let meta = |o: &Value, key: &str| o["metadata"][key].as_str().unwrap_or_default().to_owned();
    let wanted: Vec<_> = all.iter().map(|o| (meta(o, "namespace"), meta(o, "name"))).collect();
    (!wanted.is_empty()).then(|| wanted[rng.random_range(0..wanted.len())].clone())
}

async fn step(cluster: &mut Cluster, rng: &mut StdRng) {
    match rng.random_range(0..30) {
        0..=2 => scale(cluster, rng).await,
        3..=5 => roll_out(cluster, rng).await,
        6..=7 => delete_workload(cluster, rng).await,
        8..=9 => {
            if let Some((namespace, name)) = any(cluster, "v1/pods", rng).await {
                cluster.trace.note("user", format_args!("deletes pod {namespace}/{name}"));
                cluster.api.delete("v1/pods", &namespace, &name, json!({})).await;
            }
        }
        10..=11 => crash(cluster, rng),
        12 => {
            let n = rng.random_range(0..NODES);
            mark(cluster, n, rng.random_bool(0.4)).await;
        }
        13 => suspend(cluster, rng).await,
        14 => cluster.restart_api(DOWN_MAX.mul_f64(rng.random::<f64>() / 5.0)).await,
        15 => {
            let n = rng.random_range(0..NODES);
            cluster.reboot(n).await;
            tokio::time::sleep(DOWN_MAX.mul_f64(rng.random())).await;
            cluster.start_kubelet(n).await;
        }
        16..=17 => restart(cluster, Part::Controllers, rng).await,
        18 => restart(cluster, Part::Scheduler, rng).await,
        22 => {
            let torn = rng.random_bool(0.5).then(|| rng.random());
            cluster.cut_power(torn, POWERLESS_MAX.mul_f64(rng.random())).await;
        }
        23 => cluster.fill_disk(FULL_MAX.mul_f64(rng.random())).await,
        25..=26 => kill_runtime(cluster, rng).await,
        27..=29 => scaled::evict(cluster, rng).await,
        24 => cluster.jump(rng.random_range(-JUMP_MAX_S..=JUMP_MAX_S)),
        _ => {
            let n = rng.random_range(0..NODES);
            restart(cluster, Part::Kubelet(n), rng).await;
        }
    }
}

/// A component that can be restarted.
#[derive(Clone, Copy)]
enum Part {
    Controllers,
    Scheduler,
    Kubelet(usize),
}

/// Kills a part, in half of the cases when one of its writes was just executed and not answered yet, and starts it
/// again after a pause.
async fn restart(cluster: &mut Cluster, part: Part, rng: &mut StdRng) {
    if rng.random() {
        let is_its = move |who: &str| match part {
            Part::Controllers => who.contains("controller"),
            Part::Scheduler => who.contains("scheduler"),
            Part::Kubelet(n) => who == format!("n{n}"),
        };
        let happened = cluster.faults.silence(rng.random_range(1..=WRITES_MAX), is_its);
        if tokio::time::timeout(WRITES_WITHIN, happened).await.is_err() {
            cluster.faults.forget_plans();
        }
    }
    let down = DOWN_MAX.mul_f64(rng.random());
    match part {
        Part::Controllers => {
            cluster.stop_controllers().await;
            tokio::time::sleep(down).await;
            cluster.start_controllers();
        }
        Part::Scheduler => {
            cluster.stop_scheduler().await;
            tokio::time::sleep(down).await;
            cluster.start_scheduler();
        }
        Part::Kubelet(n) => {
            cluster.stop_kubelet(n).await;
            tokio::time::sleep(down).await;
            cluster.start_kubelet(n).await;
        }
    }
}

/// Kills the container runtime of a node, in half of the cases with the node's kubelet, which then starts while the
/// runtime is down. Some containers end meanwhile, without an event.
async fn kill_runtime(cluster: &mut Cluster, rng: &mut StdRng) {
    let n = rng.random_range(0..NODES);
    let (with_kubelet, ends) = (rng.random_bool(0.5), rng.random_bool(0.5));
    cluster.trace.note("test", format_args!("runtime {n} is killed, with its kubelet: {with_kubelet}"));
    cluster.nodes[n].runtime.kill();
    if with_kubelet {
        cluster.stop_kubelet(n).await;
    }
    tokio::time::sleep(DOWN_MAX.mul_f64(rng.random())).await;
    let running = cluster.nodes[n].runtime.running().len();
    if ends && running > 0 {
        cluster.nodes[n].runtime.exit_nth(rng.random_range(0..running), 1);
    }
    let runtime = Arc::clone(&cluster.nodes[n].runtime);
    let later = DOWN_MAX.mul_f64(rng.random::<f64>() / 5.0);
    let revives = async {
        tokio::time::sleep(later).await;
        runtime.revive();
    };
    if with_kubelet {
        tokio::join!(cluster.start_kubelet(n), revives);
    } else {
        revives.await;
    }
    cluster.trace.note("test", format_args!("runtime {n} is there again"));
}

async fn scale(cluster: &Cluster, rng: &mut StdRng) {
    let resource = [DEPLOYMENTS, DEPLOYMENTS, STATEFUL_SETS][rng.random_range(0..3)];
    let Some((namespace, name)) = any(cluster, resource, rng).await else { return };
    let replicas = rng.random_range(0..6);
    cluster.trace.note("user", format_args!("scales {namespace}/{name} to {replicas}"));
    cluster.api.change(resource, &namespace, &name, |d| d["spec"]["replicas"] = json!(replicas)).await;
}

async fn roll_out(cluster: &Cluster, rng: &mut StdRng) {
    let resource = [DEPLOYMENTS, STATEFUL_SETS, DAEMON_SETS][rng.random_range(0..3)];
    let Some((namespace, name)) = any(cluster, resource, rng).await else { return };
    let image = format!("example.com/c:{}", rng.random_range(1..5));
    cluster.trace.note("user", format_args!("sets {namespace}/{name} to {image}"));
    let set = |d: &mut Value| d["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image);
    cluster.api.change(resource, &namespace, &name, set).await;
}

/// Suspends or resumes a job.
async fn suspend(cluster: &Cluster, rng: &mut StdRng) {
    let Some((namespace, name)) = any(cluster, JOBS, rng).await else { return };
    let suspend = rng.random_bool(0.5);
    cluster.trace.note("user", format_args!("suspends {namespace}/{name}: {suspend}"));
    cluster.api.change(JOBS, &namespace, &name, |j| j["spec"]["suspend"] = json!(suspend)).await;
}

/// Deletes a workload with one of the three propagation policies, and creates one with the same name immediately.
async fn delete_workload(cluster: &Cluster, rng: &mut StdRng) {
    let resource = ALL[rng.random_range(0..ALL.len())];
    let Some((namespace, name)) = any(cluster, resource, rng).await else { return };
    let policy = ["Foreground", "Background", "Orphan"][rng.random_range(0..3)];
    cluster.trace.note("user", format_args!("deletes {namespace}/{name}, {policy}"));
    cluster.api.delete(resource, &namespace, &name, json!({"propagationPolicy": policy})).await;
    // While the old one waits for its dependents the new one is rejected; dependents may wait for a kubelet that is
    // down.
    for _ in 0..RECREATE_TRIES {
        let Err(e) = cluster.api.try_create(resource, workloads::any(resource, &namespace, &name, rng)).await else {
            return;
        };
        assert!(e.is_already_exists(), "{e}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Ends a container, or a sandbox with all its containers.
fn crash(cluster: &Cluster, rng: &mut StdRng) {
    let runtime = &cluster.nodes[rng.random_range(0..NODES)].runtime;
    let running = runtime.running().len();
    if running == 0 {
        return;
    }
    let n = rng.random_range(0..running);
    if rng.random_bool(0.25) {
        cluster.trace.note("sandbox", "ends");
        runtime.end_sandbox(n);
    } else {
        cluster.trace.note("container", "crashes");
        runtime.exit_nth(n, 1);
    }
}

/// Cordons or uncordons a node.
async fn mark(cluster: &Cluster, n: usize, cordoned: bool) {
    let name = &cluster.nodes[n].name;
    cluster.trace.note("user", format_args!("node {name} unschedulable: {cordoned}"));
    if cluster.api.get("v1/nodes", "", name).await.is_some() {
        cluster.api.change("v1/nodes", "", name, |n| n["spec"]["unschedulable"] = json!(cordoned)).await;
    }
}
