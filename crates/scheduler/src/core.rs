//! The scheduler without its surroundings: everything known and waiting, fed by changes, asked for the next step.
//! Synchronous and without effects, so that a test drives it by hand; [`crate::run`] gives it the API and time.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kelson_meta::ObjectKey;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::metrics::{Attempt, Metrics};
use crate::plugins::local;
use crate::queue::Queue;
use crate::reason::Plugin;
use crate::select::{Decision, Nominations, Selector};
use crate::view::{DisruptionBudget, Node, Pod};

/// An assumed pod whose binding succeeded is forgotten when the API has not shown it after this time.
const CONFIRM_MAX: Duration = Duration::from_secs(600);

/// What to do next.
#[derive(Debug)]
pub enum Step {
    /// Bind this pod to the node it is now assumed on; tell the outcome by [`Core::bound`] or [`Core::failed`].
    Bind(Arc<Pod>),
    /// Tell the pod's owner why it waits.
    Report(Report),
    /// Nothing, until a change or this moment.
    Idle(Option<Instant>),
}

/// Why a pod waits.
#[derive(Debug)]
pub struct Report {
    /// The pod as it was decided on.
    pub pod: Arc<Pod>,
    /// For people.
    pub message: String,
}

/// Everything known and waiting.
#[derive(Debug)]
pub struct Core {
    /// Nodes and placed pods.
    pub cluster: Cluster,
    /// Waiting pods.
    pub queue: Queue,
    /// Counters.
    pub metrics: Metrics,
    /// Disruption budgets, for preemption.
    pub budgets: HashMap<ObjectKey, DisruptionBudget>,
    promised: Nominations,
    selector: Selector,
    name: Box<str>,
}

impl Core {
    /// A scheduler of this name that knows nothing yet.
    pub fn new(name: &str, percent: usize, seed: u64) -> Self {
        Self {
            cluster: Cluster::default(),
            queue: Queue::default(),
            metrics: Metrics::default(),
            budgets: HashMap::new(),
            promised: Nominations::default(),
            selector: Selector::new(percent, seed),
            name: name.into(),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A pod was made or changed.
    pub fn put_pod(&mut self, pod: Arc<Pod>, now: Instant) {
        if pod.terminal {
            return self.remove_pod(&pod, now);
        }
        if !pod.node_name.is_empty() {
            self.queue.remove(&pod.uid);
            self.promised.remove(&pod.uid);
            self.cluster.put_pod(Arc::clone(&pod));
            return self.pod_assigned(now);
        }
        if pod.deleting {
            return self.remove_pod(&pod, now);
        }
        // News from before its binding may come after it: an assumed pod does not wait.
        if pod.spec.scheduler_name != self.name || self.cluster.node_of(&pod.uid).is_some() {
            return;
        }
        match pod.nominated.as_deref() {
            Some(node) => self.promised.put(Arc::clone(&pod), node),
            None => self.promised.remove(&pod.uid),
        }
        self.queue.put(pod, now);
    }

    /// A pod is gone, or has ended.
    pub fn remove_pod(&mut self, pod: &Pod, now: Instant) {
        self.queue.remove(&pod.uid);
        let promised = self.promised.node_of(&pod.uid).map(Box::<str>::from);
        self.promised.remove(&pod.uid);
        let node = self.cluster.node_of(&pod.uid).map(Box::<str>::from);
        self.cluster.remove_pod(&pod.uid);
        if let Some(node) = node.or(promised) {
            self.room_made(&node, now);
        }
    }

    /// A node was made or changed.
    pub fn put_node(&mut self, node: &Arc<Node>, now: Instant) {
        let before = self.cluster.position(&node.name).map(|i| self.cluster.nodes()[i].generation);
        self.cluster.put_node(Arc::clone(node));
        let Some(i) = self.cluster.position(&node.name) else { return };
        let state = &self.cluster.nodes()[i];
        if before == Some(state.generation) {
            return;
        }
        self.queue.stir(now, |pod, plugins| {
            plugins.is_empty()
                || plugins.has(Plugin::PodTopologySpread)
                || local::standing_refusal(&pod.spec, state).is_none() && local::could_hold(&pod.spec, state)
        });
    }

    /// A node is gone: fewer domains may make a spread constraint hold.
    pub fn remove_node(&mut self, name: &str, now: Instant) {
        self.cluster.remove_node(name);
        self.stir_refused_by(&[Plugin::PodTopologySpread, Plugin::InterPodAffinity], now);
    }

    /// Claims, volumes or classes changed.
    pub fn storage_changed(&mut self, now: Instant) {
        self.stir_refused_by(&[Plugin::VolumeBinding], now);
    }

    /// Namespaces changed.
    pub fn namespaces_changed(&mut self, now: Instant) {
        self.stir_refused_by(&[Plugin::InterPodAffinity], now);
    }

    fn pod_assigned(&mut self, now: Instant) {
        self.stir_refused_by(&[Plugin::InterPodAffinity, Plugin::PodTopologySpread], now);
    }

    fn stir_refused_by(&mut self, plugins: &[Plugin], now: Instant) {
        if self.queue.any_refused_by(plugins) {
            self.queue.stir(now, |_, by| plugins.iter().any(|p| by.has(*p)));
        }
    }

    /// Pods left a node: hope for those that fit it now, and for those whose place depends on other pods.
    fn room_made(&mut self, node: &str, now: Instant) {
        if !self.queue.any_hopeless() {
            return;
        }
        let state = self.cluster.position(node).map(|i| &self.cluster.nodes()[i]);
        self.queue.stir(now, |pod, plugins| {
            plugins.has(Plugin::InterPodAffinity)
                || plugins.has(Plugin::PodTopologySpread)
                || state.is_some_and(|s| local::refusal(&pod.spec, s, None).is_none())
        });
    }

    /// Takes the next pod and decides on it.
    pub fn step(&mut self, now: Instant) -> Step {
        self.cluster.expire_before(now.checked_sub(CONFIRM_MAX));
        let Some(pod) = self.queue.pop(now) else { return Step::Idle(self.queue.due()) };
        let begun = std::time::Instant::now();
        let decision = self.selector.decide(&mut self.cluster, &self.promised, &pod);
        match decision {
            Decision::Node(i) => {
                let node = self.cluster.nodes()[i].node.name.clone();
                let assigned = Arc::new(pod.assigned_to(&node));
                self.cluster.assume(Arc::clone(&assigned));
                self.promised.remove(&pod.uid);
                self.metrics.attempt(Attempt::Scheduled, begun.elapsed());
                Step::Bind(assigned)
            }
            Decision::Unfit(unfit) => {
                let message = unfit.message("");
                self.queue.refuse(&pod.uid, unfit.plugins, now);
                self.metrics.attempt(Attempt::Unschedulable, begun.elapsed());
                Step::Report(Report { pod, message })
            }
        }
    }

    /// A binding succeeded.
    pub fn bound(&mut self, pod: &Pod, now: Instant) {
        self.cluster.bound(&pod.uid, now);
        self.queue.remove(&pod.uid);
    }

    /// A binding failed. Tried again after a back-off, unless the pod is `gone`.
    pub fn failed(&mut self, pod: &Pod, gone: bool, now: Instant) {
        self.metrics.attempt(Attempt::Error, Duration::ZERO);
        let forgotten = self.cluster.forget(&pod.uid);
        if gone {
            self.queue.remove(&pod.uid);
        } else {
            self.queue.fault(&pod.uid, now);
        }
        if forgotten {
            self.room_made(&pod.node_name, now);
        }
    }

    /// Metrics in the text format.
    pub fn metrics_text(&self) -> String {
        self.metrics.text(&self.name, self.queue.depth())
    }
}
