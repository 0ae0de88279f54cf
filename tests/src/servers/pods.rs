//! Pods of a ReplicaSet on nodes without containers: a controller that acts twice makes too many, and a pod that is restarted or
//! replaced without a reason is seen.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use super::cluster::{Cluster, PATIENCE};
use super::https::Https;
use super::load::{NAMESPACE, revision};
use super::record::Recorder;
use crate::eventually;

/// The path of the pods.
pub const PODS: &str = "/api/v1/namespaces/faults/pods";
const SETS: &str = "/apis/apps/v1/namespaces/faults/replicasets";
/// The replicas of the ReplicaSet.
const REPLICAS: usize = 4;
/// The pause between two deletions of a pod.
const DELETE_EVERY: Duration = Duration::from_millis(700);
/// The pause between two looks at the nodes.
const LOOK_EVERY: Duration = Duration::from_millis(400);

/// The state of the pods of a round.
#[derive(Default)]
struct Pods {
    /// Pods that are not being deleted, with their names.
    live: BTreeMap<String, String>,
    /// All pods that were made.
    made: BTreeSet<String>,
    /// Pods whose deletion was sent.
    deleted: BTreeSet<String>,
}

/// The pods of a round, as one watcher sees them.
pub struct PodRecord<'a> {
    record: &'a Recorder,
    pods: Mutex<Pods>,
}

fn id(pod: &Value) -> String {
    pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

fn restarts(pod: &Value) -> u64 {
    let containers = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    containers.map(|container| container["restartCount"].as_u64().unwrap_or(0)).sum()
}

/// Makes namespace and ReplicaSet in the first round, and waits until the pods run.
pub fn prepare(client: &mut Https) -> anyhow::Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    let (code, made) = client.call("POST", "/api/v1/namespaces", &namespace)?;
    ensure!(code == 201 || code == 409, "{code} {made}");
    let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web"}, "spec": {
        "replicas": REPLICAS, "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": "x"}]}}}});
    eventually("the ReplicaSet is there", PATIENCE, || {
        let (code, made) = client.call("POST", SETS, &set)?;
        ensure!(code == 201 || code == 409, "{code} {made}");
        Ok(())
    })?;
    until_running(client).map(drop)
}

/// Waits until as many pods run as must, and no other is there; returns the list.
fn until_running(client: &mut Https) -> anyhow::Result<Value> {
    eventually("the pods of the ReplicaSet run", PATIENCE, || {
        let (code, list) = client.call("GET", PODS, &Value::Null)?;
        let items = list["items"].as_array().with_context(|| format!("{code} {list}"))?;
        let running =
            |pod: &&Value| pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null();
        let states: Vec<_> =
            items.iter().map(|p| (&p["metadata"]["name"], &p["status"]["phase"], &p["spec"]["nodeName"])).collect();
        ensure!(items.len() == REPLICAS && items.iter().filter(running).count() == REPLICAS, "{states:?}");
        Ok(list)
    })
}

/// Labels a pod with the seed of the round; returns the revision of this write, the last one that a watcher of pods waits for.
pub fn mark_one(client: &mut Https, seed: u64) -> anyhow::Result<u64> {
    eventually("a pod is labelled", PATIENCE, || {
        let (code, list) = client.call("GET", PODS, &Value::Null)?;
        let items = list["items"].as_array().with_context(|| format!("{code} {list}"))?;
        let lives = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null();
        let pod = items.iter().find(lives).context("no pod lives")?;
        let name = pod["metadata"]["name"].as_str().context("a name")?;
        // Two rounds may have one seed, and a patch without effect has no event.
        let before = pod["metadata"]["resourceVersion"].as_str().context("a revision")?;
        let labels = json!({"metadata": {"labels": {"round": format!("{seed}-{before}")}}});
        let (code, pod) = client.call("PATCH", &format!("{PODS}/{name}"), &labels)?;
        ensure!(code == 200, "{code} {pod}");
        revision(&pod).context("the revision of a pod")
    })
}

impl<'a> PodRecord<'a> {
    /// Begins with the pods that run now; returns the revision from which a watcher must continue.
    pub fn new(record: &'a Recorder, client: &mut Https) -> anyhow::Result<(Self, u64)> {
        let list = until_running(client)?;
        let mut pods = Pods::default();
        for pod in list["items"].as_array().into_iter().flatten() {
            pods.live.insert(id(pod), pod["metadata"]["name"].as_str().unwrap_or_default().to_owned());
            pods.made.insert(id(pod));
        }
        Ok((Self { record, pods: Mutex::new(pods) }, revision(&list).context("a list's revision")?))
    }

    /// Takes an event of the watch.
    pub fn event(&self, kind: &str, pod: &Value) {
        let mut pods = self.pods.lock().expect("no thread panics while it holds this");
        let (id, name) = (id(pod), pod["metadata"]["name"].as_str().unwrap_or_default().to_owned());
        if restarts(pod) > 0 {
            self.record.fault(format!("a container of pod {name} was restarted"));
        }
        if kind == "ADDED" {
            self.record.note(format!("pod {name} is made"));
            pods.made.insert(id.clone());
        }
        if kind == "DELETED" || !pod["metadata"]["deletionTimestamp"].is_null() {
            if pods.live.remove(&id).is_some() && !pods.deleted.contains(&id) {
                self.record.fault(format!("pod {name} is deleted, and no client asked for it"));
            }
        } else {
            pods.live.insert(id, name);
        }
        if pods.live.len() > REPLICAS {
            self.record.fault(format!("{REPLICAS} replicas and {} pods: {:?}", pods.live.len(), pods.live.values()));
        }
    }

    /// Deletes a pod now and then, until the load ends.
    pub fn delete_some(&self, servers: &mut [Https], seed: u64) {
        let mut dice = StdRng::seed_from_u64(seed);
        while !self.record.load_ends() {
            std::thread::sleep(DELETE_EVERY);
            let chosen = {
                let mut pods = self.pods.lock().expect("no thread panics while it holds this");
                let at = dice.random_range(0..REPLICAS);
                let chosen = pods.live.iter().nth(at).map(|(id, name)| (id.clone(), name.clone()));
                pods.deleted.extend(chosen.iter().map(|(id, _)| id.clone()));
                chosen
            };
            let Some((id, name)) = chosen else { continue };
            let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": id}});
            let done = servers[0].call("DELETE", &format!("{PODS}/{name}"), &options);
            if !matches!(done, Ok((200 | 202 | 404 | 409, _))) {
                servers.rotate_left(1);
            }
        }
    }

    /// Checks at the end that as many pods run as must, and that no more were made than were missing.
    pub fn check(&self, client: &mut Https) -> anyhow::Result<usize> {
        until_running(client)?;
        let pods = self.pods.lock().expect("no thread panics while it holds this");
        let (made, deleted) = (pods.made.len(), pods.deleted.len());
        ensure!(made <= REPLICAS + deleted, "{made} pods were made for {REPLICAS} replicas and {deleted} deletions");
        Ok(made - REPLICAS.min(made))
    }
}

/// Looks at the nodes until the load ends: all are ready.
pub fn watch_nodes(cluster: &Cluster) -> impl FnOnce(&Recorder) + Send + use<> {
    let mut servers: Vec<Https> = (0..cluster.stations.len()).map(|n| cluster.client(n)).collect();
    move |record| {
        while !record.load_ends() {
            match servers[0].call("GET", "/api/v1/nodes", &Value::Null) {
                Ok((200, list)) => {
                    list["items"].as_array().into_iter().flatten().for_each(|node| is_ready(node, record))
                }
                _ => servers.rotate_left(1),
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

fn is_ready(node: &Value, record: &Recorder) {
    let mut conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    let ready = conditions.find(|condition| condition["type"] == "Ready");
    if ready.is_none_or(|ready| ready["status"] != "True") {
        record.fault(format!("node {} is not ready: {ready:?}", node["metadata"]["name"]));
    }
}
