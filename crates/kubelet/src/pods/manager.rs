//! Starts and feeds the workers: pods from the API, noises from the runtime, what an earlier kubelet left behind.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kelson_client::{Change, EventType, Informer, InformerConfig, InformerHandle};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use super::admit;
use super::mirror::{Keeper, News};
use super::worker::{Event, Start, Worker};
use crate::effects::Context;
use crate::pod;
use crate::runtime::events::Present;

/// What the manager hears.
#[derive(Debug)]
pub enum Signal {
    /// The API has this state of a pod.
    Pod(Arc<Pod>),
    /// A pod is gone from the API.
    Gone(Arc<Pod>),
    /// The initial pods have all been told.
    Synced,
    /// Something of a pod changed in the runtime, which has this of it.
    Runtime(String, Option<Present>),
    /// All the runtime has, at start: pods by UID.
    Found(Vec<Present>),
    /// A config map or secret of this pod changed.
    Objects(String),
    /// The worker of this pod ended.
    Ended(String),
    /// The manifests of this node are these.
    Static(Vec<Arc<Pod>>),
    /// A pod must go for the node's sake.
    Evict {
        /// Which.
        uid: String,
        /// The text of its status.
        message: String,
        /// What its containers get to end.
        grace: Duration,
    },
}

struct Entry {
    to: mpsc::UnboundedSender<Event>,
    pod: Arc<Pod>,
}

/// Pods this node knows, for the server; cheap to clone.
#[derive(Clone, Default)]
pub struct Known {
    pods: Arc<Mutex<HashMap<String, Arc<Pod>>>>,
}

impl Known {
    /// All of them.
    pub fn list(&self) -> Vec<Arc<Pod>> {
        self.pods.lock().values().cloned().collect()
    }
    /// By namespace and name.
    pub fn find(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.pods.lock().values().find(|p| pod::namespace(p) == namespace && pod::name(p) == name).cloned()
    }
}

/// The manager's task.
pub struct Manager {
    ctx: Arc<Context>,
    node: watch::Receiver<Option<Arc<Node>>>,
    signals: mpsc::UnboundedReceiver<Signal>,
    own: mpsc::UnboundedSender<Signal>,
    workers: HashMap<String, Entry>,
    known: Known,
    /// Pods found in the runtime at start that the API has not named yet.
    found: Option<HashMap<String, Present>>,
    synced: bool,
    /// Static pods by namespace and name; `None` until the manifests have been read.
    statics: Option<HashMap<(String, String), Arc<Pod>>>,
    /// Static pods that wait until the one of the same name before them has ended.
    waiting: HashMap<(String, String), Arc<Pod>>,
    mirrors: mpsc::UnboundedSender<News>,
}

/// Watches this node's pods in the API and tells the manager.
pub fn source(ctx: &Context, to: mpsc::UnboundedSender<Signal>) -> InformerHandle<Pod> {
    let config = InformerConfig { fields: format!("spec.nodeName={}", ctx.config.node_name), ..Default::default() };
    let tell = to.clone();
    let handle = Informer::new(ctx.client.clone(), config)
        .on_change(move |change: &Change<Pod>| {
            // The manager ends with the kubelet: nobody to tell is no fault.
            let _ = tell.send(match change {
                Change::Added(p) | Change::Updated { new: p, .. } => Signal::Pod(Arc::clone(p)),
                Change::Deleted(p) => Signal::Gone(Arc::clone(p)),
            });
        })
        .start();
    let waiting = handle.clone();
    tokio::spawn(async move {
        waiting.synced().await;
        let _ = to.send(Signal::Synced);
    });
    handle
}

impl Manager {
    /// A manager that has not run yet.
    pub fn new(
        ctx: Arc<Context>,
        node: watch::Receiver<Option<Arc<Node>>>,
        signals: mpsc::UnboundedReceiver<Signal>,
        own: mpsc::UnboundedSender<Signal>,
        known: Known,
    ) -> Self {
        let (mirrors, news) = mpsc::unbounded_channel();
        let keeper = Keeper::new(ctx.client.clone(), node.clone(), ctx.statuses.clone());
        tokio::spawn(keeper.run(news));
        // Without a directory of manifests there is nothing to wait for.
        let statics = ctx.config.pod_manifest_path.is_none().then(HashMap::new);
        let (workers, waiting) = (HashMap::new(), HashMap::new());
        Self { ctx, node, signals, own, workers, known, found: None, synced: false, statics, waiting, mirrors }
    }

    /// Runs until the kubelet ends.
    pub async fn run(mut self) {
        while let Some(signal) = self.signals.recv().await {
            match signal {
                // The keeper lives as long as the manager.
                Signal::Pod(pod) if pod::is_mirror(&pod) => drop(self.mirrors.send(News::Seen(pod))),
                Signal::Gone(pod) if pod::is_mirror(&pod) => drop(self.mirrors.send(News::Gone(pod))),
                Signal::Pod(pod) => self.pod(pod),
                Signal::Gone(pod) => self.send(pod::uid(&pod), Event::Gone),
                Signal::Static(pods) => {
                    self.manifests(pods);
                    self.orphans();
                }
                Signal::Evict { uid, message, grace } => self.send(&uid, Event::Evict { message, grace }),
                Signal::Synced => {
                    self.synced = true;
                    let _ = self.mirrors.send(News::Synced);
                    self.orphans();
                }
                Signal::Found(found) => {
                    self.found = Some(found.into_iter().map(|p| (p.uid.clone(), p)).collect());
                    self.orphans();
                }
                Signal::Runtime(uid, there) => {
                    match there.filter(|_| self.complete() && !self.workers.contains_key(&uid)) {
                        // Made by a call that was given up after its pod had ended.
                        Some(left) => self.end_orphan(left),
                        None => self.send(&uid, Event::Runtime),
                    }
                }
                Signal::Objects(uid) => self.send(&uid, Event::Objects),
                Signal::Ended(uid) => {
                    self.ended(&uid);
                }
            }
        }
    }

    fn send(&self, uid: &str, event: Event) {
        if let Some(e) = self.workers.get(uid) {
            let _ = e.to.send(event);
        }
    }

    fn pod(&mut self, pod: Arc<Pod>) {
        let uid = pod::uid(&pod).to_owned();
        if let Some(e) = self.workers.get_mut(&uid) {
            e.pod = Arc::clone(&pod);
            self.known.pods.lock().insert(uid, Arc::clone(&pod));
            let _ = e.to.send(Event::Pod(pod));
            return;
        }
        let adopted = self.found.as_ref().is_some_and(|f| f.contains_key(&uid));
        let rejected = if adopted || pod::is_deleted(&pod) || pod::is_terminal(&pod) { None } else { self.judge(&pod) };
        self.start(Start { pod, rejected, gone: false });
    }

    /// Whether all sources have told their pods.
    fn complete(&self) -> bool {
        self.synced && self.statics.is_some()
    }

    fn manifests(&mut self, pods: Vec<Arc<Pod>>) {
        let name = |p: &Pod| (pod::namespace(p).to_owned(), pod::name(p).to_owned());
        let wanted: HashMap<_, _> = pods.iter().map(|p| (name(p), Arc::clone(p))).collect();
        let before = self.statics.replace(wanted.clone()).unwrap_or_default();
        let same = |a: &Pod, b: Option<&Arc<Pod>>| b.is_some_and(|b| pod::uid(a) == pod::uid(b));
        for (n, pod) in before.iter().filter(|(n, p)| !same(p, wanted.get(*n))) {
            self.waiting.remove(n);
            self.send(pod::uid(pod), Event::Gone);
        }
        for (n, pod) in wanted.into_iter().filter(|(n, p)| !same(p, before.get(n))) {
            let busy = self.workers.values().any(|w| pod::is_static(&w.pod) && name(&w.pod) == n);
            if busy {
                self.waiting.insert(n, pod);
            } else {
                self.pod(pod);
            }
        }
        let _ = self.mirrors.send(News::Wanted(pods));
    }

    fn ended(&mut self, uid: &str) {
        self.known.pods.lock().remove(uid);
        let Some(entry) = self.workers.remove(uid) else { return };
        let name = (pod::namespace(&entry.pod).to_owned(), pod::name(&entry.pod).to_owned());
        if let Some(next) = self.waiting.remove(&name).filter(|_| pod::is_static(&entry.pod)) {
            self.pod(next);
        }
    }

    fn judge(&self, pod: &Arc<Pod>) -> Option<(String, String)> {
        let others: Vec<Arc<Pod>> = self.workers.values().map(|e| Arc::clone(&e.pod)).collect();
        let node = self.node.borrow().clone();
        let (reason, message) =
            admit::admit(&self.ctx.config, pod, &others, node.as_deref(), *self.ctx.pressure.borrow()).err()?;
        self.ctx.event(pod, EventType::Warning, &reason, message.clone());
        Some((reason, message))
    }

    fn start(&mut self, start: Start) {
        let uid = pod::uid(&start.pod).to_owned();
        let (to, events) = mpsc::unbounded_channel();
        self.known.pods.lock().insert(uid.clone(), Arc::clone(&start.pod));
        self.workers.insert(uid.clone(), Entry { to: to.clone(), pod: Arc::clone(&start.pod) });
        let worker = Worker::new(Arc::clone(&self.ctx), start, events, to);
        let own = self.own.clone();
        tokio::spawn(async move {
            worker.run().await;
            let _ = own.send(Signal::Ended(uid));
        });
    }

    fn end_orphan(&mut self, p: Present) {
        tracing::info!(pod = %p.name, namespace = %p.namespace, uid = %p.uid, "ending a pod that the API does not know");
        let mut pod = Pod::default();
        pod.metadata.name = Some(p.name);
        pod.metadata.namespace = Some(p.namespace);
        pod.metadata.uid = Some(p.uid);
        pod.spec = Some(k8s_openapi::api::core::v1::PodSpec::default());
        self.start(Start { pod: Arc::new(pod), rejected: None, gone: true });
    }

    /// Ends pods that the runtime has and the API has not, and removes directories of pods nobody knows.
    fn orphans(&mut self) {
        if !self.complete() {
            return;
        }
        let Some(found) = self.found.as_ref() else { return };
        let orphans: Vec<Present> = found.values().filter(|p| !self.workers.contains_key(&p.uid)).cloned().collect();
        orphans.into_iter().for_each(|p| self.end_orphan(p));
        for entry in std::fs::read_dir(self.ctx.config.root_dir.join("pods")).into_iter().flatten().flatten() {
            let uid = entry.file_name().to_string_lossy().into_owned();
            if !self.workers.contains_key(&uid) {
                if let Err(e) = crate::volumes::setup::tear_down(&self.ctx, &uid) {
                    tracing::warn!(uid, error = %e, "directory of an unknown pod not removed");
                }
                self.ctx.cgroups.remove(&uid);
            }
        }
    }
}
