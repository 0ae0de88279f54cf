//! Invariants that must hold at every moment, checked whenever a pod, a job or a container changes.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kelson_client::{Change, Informer, InformerConfig, InformerHandle, ResourceType, slim_object};
use kelson_meta::ObjectMeta;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::Instant;

use crate::cluster::Cluster;

/// The time that one watch may be behind another: a client waits up to half a minute before it watches again, and its
/// requests are rejected meanwhile.
const BEHIND_MAX: Duration = Duration::from_secs(300);

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    node_name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PodStatus {
    phase: String,
}

/// The fields of a pod for the checks.
#[derive(Deserialize)]
pub struct Pod {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}
slim_object!(Pod, ResourceType::namespaced("", "v1", "pods", "Pod"));

impl Pod {
    fn is_terminal(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct JobStatus {
    succeeded: u32,
    failed: u32,
}

/// The fields of a job for the checks.
#[derive(Deserialize)]
pub struct Job {
    metadata: ObjectMeta,
    #[serde(default)]
    status: JobStatus,
}
slim_object!(Job, ResourceType::namespaced("batch", "v1", "jobs", "Job"));

#[derive(Default)]
struct State {
    /// The node of each bound pod, by UID.
    bound: BTreeMap<String, String>,
    /// Pods that succeeded, by the UID of their job.
    succeeded: BTreeMap<String, BTreeSet<String>>,
    /// Jobs that count more successes than were observed, by UID, with the time since when and a message. Pods and jobs
    /// have separate watches, and after a break the watch of pods may resume later: it has time to catch up.
    ahead: BTreeMap<String, (usize, Instant, String)>,
    /// The UIDs that run on each node, with namespace and name.
    runs: BTreeMap<String, BTreeMap<String, (String, String)>>,
    wrong: Option<String>,
}

impl State {
    fn must(&mut self, holds: bool, why: impl FnOnce() -> String) {
        if !holds && self.wrong.is_none() {
            self.wrong = Some(why());
        }
    }

    fn pod(&mut self, change: &Change<Pod>) {
        let pod = change.object();
        let (uid, name, node) = (pod.metadata.uid.as_str(), &pod.metadata.name, pod.spec.node_name.as_str());
        let before = self.bound.get(uid).cloned();
        match before {
            Some(before) => self.must(before == node, || format!("pod {name} was bound to {before}, now to {node:?}")),
            None if !node.is_empty() => drop(self.bound.insert(uid.to_owned(), node.to_owned())),
            None => {}
        }
        if pod.status.phase == "Succeeded" {
            for job in pod.metadata.owner_references.iter().filter(|o| o.kind == "Job") {
                self.succeeded.entry(job.uid.clone()).or_default().insert(uid.to_owned());
            }
        }
        if let Change::Updated { old, new } = change
            && old.metadata.uid == new.metadata.uid
        {
            let (was, is) = (&old.status.phase, &new.status.phase);
            self.must(!old.is_terminal() || was == is, || format!("pod {name} was {was} and is {is}"));
        }
    }

    fn job(&mut self, change: &Change<Job>) {
        if let Change::Deleted(old) = change {
            self.ahead.remove(&old.metadata.uid);
        }
        let Change::Updated { old, new } = change else { return };
        if old.metadata.uid != new.metadata.uid {
            return;
        }
        let (was, is, name) = (&old.status, &new.status, &new.metadata.name);
        self.must(was.succeeded <= is.succeeded && was.failed <= is.failed, || {
            format!("job {name} counted {}+{} and counts {}+{}", was.succeeded, was.failed, is.succeeded, is.failed)
        });
        let seen = self.succeeded.get(&new.metadata.uid).map_or(0, BTreeSet::len);
        let counted = is.succeeded as usize;
        if counted > seen {
            let why = format!("job {name} counts {counted} successes, and {seen} pods succeeded");
            self.ahead.entry(new.metadata.uid.clone()).or_insert((counted, Instant::now(), why));
        }
    }

    /// Reports jobs that counted successes which never happened.
    fn catch_up(&mut self) {
        let succeeded = &self.succeeded;
        self.ahead.retain(|uid, (counted, ..)| succeeded.get(uid).map_or(0, BTreeSet::len) < *counted);
        let late = self.ahead.values().find(|(_, since, _)| since.elapsed() > BEHIND_MAX);
        if let Some(why) = late.map(|(.., why)| why.clone()) {
            self.must(false, || why);
        }
    }

    fn containers(&mut self, node: &str, running: Vec<(String, String, String)>) {
        let mut here = BTreeMap::new();
        for (namespace, name, uid) in running {
            let bound = self.bound.get(&uid).cloned();
            // A pod may have been removed from the API meanwhile, but it only runs on the node it was bound to.
            self.must(bound.as_deref().is_none_or(|b| b == node), || {
                format!("{name} runs on {node}, bound to {bound:?}")
            });
            let twice = here.insert(uid, (namespace, name.clone())).is_some();
            self.must(!twice, || format!("two containers of {name} run on {node}"));
        }
        let names: BTreeSet<_> = here.values().cloned().collect();
        let elsewhere = self.runs.iter().filter(|(n, _)| *n != node).flat_map(|(_, pods)| pods.values());
        let two = elsewhere.chain(here.values()).filter(|n| names.contains(*n)).count() > names.len();
        let shown = format!("{names:?}");
        self.must(!two, || format!("two pods of one name run: one of {shown}, on {node}"));
        self.runs.insert(node.to_owned(), here);
    }
}

/// Records what a watcher of the cluster has seen, in order.
pub struct Watched {
    state: Arc<Mutex<State>>,
    _pods: InformerHandle<Pod>,
    _jobs: InformerHandle<Job>,
}

impl Watched {
    /// Starts watching the cluster.
    pub fn start(cluster: &Cluster) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let (client, pods, jobs) = (cluster.api.client(), Arc::clone(&state), Arc::clone(&state));
        let pods = Informer::new(client.clone(), InformerConfig::default())
            .on_change(move |change: &Change<Pod>| {
                if !matches!(change, Change::Deleted(_)) {
                    pods.lock().pod(change);
                }
            })
            .start();
        let jobs = Informer::new(client, InformerConfig::default())
            .on_change(move |change: &Change<Job>| jobs.lock().job(change))
            .start();
        for node in &cluster.nodes {
            let (name, runtime, state) = (node.name.clone(), Arc::downgrade(&node.runtime), Arc::clone(&state));
            let look = move || {
                if let Some(runtime) = runtime.upgrade() {
                    state.lock().containers(&name, runtime.running_pods());
                }
            };
            *node.runtime.changed.lock() = Some(Box::new(look));
        }
        Self { state, _pods: pods, _jobs: jobs }
    }

    /// Returns an error if an invariant was violated since the start.
    pub fn verdict(&self, cluster: &Cluster) -> Result<(), String> {
        let mut state = self.state.lock();
        state.catch_up();
        match state.wrong.clone().or_else(|| cluster.faults.flood()) {
            Some(why) => Err(why),
            None => Ok(()),
        }
    }

    /// Returns the number of a job's pods that succeeded.
    pub fn succeeded(&self, job: &str) -> usize {
        self.state.lock().succeeded.get(job).map_or(0, BTreeSet::len)
    }
}
