//! The scheduler without its surroundings: everything known and waiting, fed by changes, asked for the next step.
//! Synchronous and without effects, so that a test drives it by hand; [`crate::run`] gives it the API and time.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kelson_meta::ObjectKey;
use kelson_metrics::Registry;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::cluster::storage::{Claims, Plan, Progress};
use crate::evaluation::nominations::Nominations;
use crate::evaluation::preempt::{Outcome, Thoroughness, preempt};
use crate::evaluation::select::{Decision, Selector, Unfit};
use crate::metrics::{Attempt, Metrics};
use crate::plugins::plugin::Change;
use crate::plugins::table::{PluginSet, Table};
use crate::profile::Profile;
use crate::queue::Queue;
use crate::view::{DisruptionBudget, Node, Pod};

/// An assumed pod whose binding succeeded is forgotten when the API has not shown it after this time.
const CONFIRM_MAX: Duration = Duration::from_secs(600);

/// What to do next.
#[derive(Debug)]
pub enum Step {
    /// Bind this pod to the node it is now assumed on; tell the outcome by [`Core::bound`] or [`Core::failed`].
    Bind(Arc<Pod>),
    /// The same, but its volumes must be bound first.
    BindVolumes(PendingBinding),
    /// Tell the pod's owner why it waits.
    Report(Report),
    /// Make room: tell these pods to go and the pod's owner why it waits, then [`Core::room_asked`].
    Preempt(Preemption),
    /// Nothing, until a change or this moment.
    Idle(Option<Instant>),
}

/// A pod that is assumed on its node, and what its claims need before it may run there.
#[derive(Debug)]
pub struct PendingBinding {
    /// The pod, assigned.
    pub pod: Arc<Pod>,
    /// What is to be bound and made.
    pub plan: Arc<Plan>,
}

/// Why a pod waits.
#[derive(Debug)]
pub struct Report {
    /// The pod as it was decided on.
    pub pod: Arc<Pod>,
    pub message: String,
    /// What its `nominatedNodeName` shall be; empty clears it, `None` leaves it.
    pub nominate: Option<Box<str>>,
}

/// Room to be made.
#[derive(Debug)]
pub struct Preemption {
    /// For the pod that needs it.
    pub report: Report,
    /// Pods that are deleted to make room for this one.
    pub victims: Vec<Arc<Pod>>,
    /// Less important pods that were promised this room.
    pub disappointed: Vec<Arc<Pod>>,
    plugins: PluginSet,
}

/// Everything known and waiting.
#[derive(Debug)]
pub struct Core {
    /// Nodes and placed pods.
    pub cluster: Cluster,
    pub queue: Queue,
    /// What is counted.
    pub metrics: Metrics,
    /// Disruption budgets, for preemption.
    pub budgets: HashMap<ObjectKey, DisruptionBudget>,
    promised: Nominations,
    /// At least one.
    deciders: Vec<Decider>,
}

/// What decides for one profile.
#[derive(Debug)]
struct Decider {
    name: Box<str>,
    table: Arc<Table>,
    selector: Selector,
    /// `None`: nobody makes room for its pods.
    preemption: Option<Thoroughness>,
}

impl Core {
    /// A scheduler of this name, with the default profile's plugins, that knows nothing yet.
    pub fn new(name: &str, percent: usize, seed: u64) -> Self {
        let profile = Profile { name: name.into(), percent, ..Profile::default() };
        Self::with_profiles(vec![profile], seed, Registry::of_component())
    }

    /// A scheduler with these profiles, which counts what it does in `registry`.
    pub(crate) fn with_profiles(profiles: Vec<Profile>, seed: u64, registry: Registry) -> Self {
        let metrics = Metrics::new(profiles.iter().map(|p| &*p.name), registry);
        let decider = |p: Profile| {
            let table = Arc::new(Table::new(p.rows));
            let selector = Selector::new(Arc::clone(&table), p.percent, seed);
            Decider { name: p.name, table, selector, preemption: p.preemption }
        };
        Self {
            cluster: Cluster::default(),
            queue: Queue::default(),
            metrics,
            budgets: HashMap::new(),
            promised: Nominations::default(),
            deciders: profiles.into_iter().map(decider).collect(),
        }
    }

    /// The profile that decides on a pod: it is the one of the name that the pod asks for.
    fn profile_of(&self, pod: &Pod) -> Option<usize> {
        self.deciders.iter().position(|d| d.name == pod.spec.scheduler_name)
    }

    /// The names of its profiles.
    pub fn names(&self) -> Vec<Box<str>> {
        self.deciders.iter().map(|d| d.name.clone()).collect()
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
            return self.requeue_by(Change::PodPlaced, now);
        }
        if pod.deleting {
            return self.remove_pod(&pod, now);
        }
        // News from before its binding may come after it: an assumed pod does not wait.
        if self.profile_of(&pod).is_none() || self.cluster.node_of(&pod.uid).is_some() {
            return;
        }
        match pod.nominated.as_deref() {
            Some(node) => self.promised.put(Arc::clone(&pod), node),
            // Taken back by somebody. A promise of ours that is not written yet stands.
            None if self.queue.get(&pod.uid).is_some_and(|was| was.nominated.is_some()) => {
                self.promised.remove(&pod.uid);
            }
            None => {}
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
        let deciders = &self.deciders;
        self.queue.requeue(now, |pod, by| {
            let Some(d) = deciders.iter().find(|d| d.name == pod.spec.scheduler_name) else { return true };
            by.is_empty() || by.meets(d.table.requeued_by(Change::Node)) || d.table.may_fit(&pod.spec, state)
        });
    }

    /// A node is gone: fewer domains may make a spread constraint hold.
    pub fn remove_node(&mut self, name: &str, now: Instant) {
        self.cluster.remove_node(name);
        self.requeue_by(Change::NodeRemoved, now);
    }

    /// Claims, volumes or classes changed.
    pub fn storage_changed(&mut self, now: Instant) {
        self.requeue_by(Change::Storage, now);
    }

    pub fn namespaces_changed(&mut self, now: Instant) {
        self.requeue_by(Change::Namespaces, now);
    }

    /// Tries the pods again that were refused by plugins to which this change matters.
    fn requeue_by(&mut self, change: Change, now: Instant) {
        let deciders = &self.deciders;
        // Rows of several tables are other plugins: of one profile alone it is known at once that nobody waits for this.
        if let [only] = deciders.as_slice()
            && !self.queue.any_refused_by(only.table.requeued_by(change))
        {
            return;
        }
        self.queue.requeue(now, |pod, by| {
            let decider = deciders.iter().find(|d| d.name == pod.spec.scheduler_name);
            decider.is_none_or(|d| by.meets(d.table.requeued_by(change)))
        });
    }

    /// Pods left a node: those that fit it now are tried again, and those whose place depends on other pods.
    fn room_made(&mut self, node: &str, now: Instant) {
        if !self.queue.any_unschedulable() {
            return;
        }
        let state = self.cluster.position(node).map(|i| &self.cluster.nodes()[i]);
        let deciders = &self.deciders;
        self.queue.requeue(now, |pod, by| {
            let Some(d) = deciders.iter().find(|d| d.name == pod.spec.scheduler_name) else { return true };
            by.meets(d.table.requeued_by(Change::PodRemoved)) || state.is_some_and(|s| d.table.fits(&pod.spec, s))
        });
    }

    /// Takes the next pod and decides on it.
    pub fn step(&mut self, now: Instant) -> Step {
        self.cluster.expire_before(now.checked_sub(CONFIRM_MAX));
        let Some(pod) = self.queue.pop(now) else { return Step::Idle(self.queue.due()) };
        let begun = std::time::Instant::now();
        // A pod that is queued has a profile.
        let profile = self.profile_of(&pod).unwrap_or(0);
        let decision = self.deciders[profile].selector.decide(&mut self.cluster, &self.promised, &pod);
        match decision {
            Decision::Node(i) => {
                let node = self.cluster.nodes()[i].node.name.clone();
                let assigned = Arc::new(pod.assigned_to(&node));
                self.cluster.assume(Arc::clone(&assigned));
                self.promised.remove(&pod.uid);
                self.metrics.attempt(profile, Attempt::Scheduled, begun.elapsed());
                match self.volumes_of(&pod, i) {
                    Some(plan) => Step::BindVolumes(PendingBinding { pod: assigned, plan }),
                    None => Step::Bind(assigned),
                }
            }
            Decision::Unfit(unfit) => {
                let step = self.unfit(profile, pod, &unfit, now);
                self.metrics.attempt(profile, Attempt::Unschedulable, begun.elapsed());
                step
            }
        }
    }

    /// What must be bound for a pod on the node it is assumed on; from now on others take it as bound (Reserve).
    fn volumes_of(&mut self, pod: &Pod, node: usize) -> Option<Arc<Plan>> {
        if pod.spec.claims.is_empty() {
            return None;
        }
        let Claims::Needs(needs) = self.cluster.storage.claims(&pod.spec) else { return None };
        let plan = needs.place(&self.cluster.storage, &self.cluster.nodes()[node].node).ok()?;
        let plan = (!plan.is_empty()).then(|| Arc::new(plan))?;
        self.cluster.storage.begin(&pod.uid, Arc::clone(&plan));
        Some(plan)
    }

    /// How far the binding of a pod's volumes is.
    pub fn volumes_progress(&self, binding: &PendingBinding) -> Progress {
        if self.cluster.node_of(&binding.pod.uid) != Some(&*binding.plan.node) {
            return Progress::Failed("the pod is gone".into());
        }
        let node = self.cluster.position(&binding.plan.node).map(|i| &*self.cluster.nodes()[i].node);
        self.cluster.storage.progress(&binding.plan, node)
    }

    /// What to do about a pod that fits nowhere.
    fn unfit(&mut self, profile: usize, pod: Arc<Pod>, unfit: &Unfit, now: Instant) -> Step {
        if unfit.nodes == 0 {
            self.queue.refuse(&pod.uid, unfit.plugins, now);
            return Step::Report(Report { message: unfit.message(""), pod, nominate: None });
        }
        let decider = &mut self.deciders[profile];
        let Some(thoroughness) = decider.preemption else {
            self.queue.refuse(&pod.uid, unfit.plugins, now);
            return Step::Report(Report { message: unfit.message(""), pod, nominate: None });
        };
        let offset = decider.selector.below(unfit.preemptible.len().max(1));
        let evaluation = decider.selector.evaluations.get(&pod.spec, &mut self.cluster);
        let (cluster, budgets) = (&mut self.cluster, &self.budgets);
        match preempt(evaluation, cluster, &self.promised, budgets, &pod, (unfit, offset, thoroughness)) {
            Outcome::Make { node, victims } => {
                let node = self.cluster.nodes()[node].node.name.clone();
                let lesser = |p: &&Arc<Pod>| p.uid != pod.uid && p.spec.priority < pod.spec.priority;
                let disappointed: Vec<_> = self.promised.on(&node).iter().filter(lesser).cloned().collect();
                disappointed.iter().for_each(|p| self.promised.remove(&p.uid));
                self.promised.put(Arc::clone(&pod), &node);
                let report = Report { message: unfit.message(""), pod, nominate: Some(node) };
                Step::Preempt(Preemption { report, victims, disappointed, plugins: unfit.plugins })
            }
            Outcome::Useless(text) => {
                self.queue.refuse(&pod.uid, unfit.plugins, now);
                self.promised.remove(&pod.uid);
                let nominate = pod.nominated.as_ref().map(|_| "".into());
                Step::Report(Report { message: unfit.message(&text), pod, nominate })
            }
            Outcome::Ineligible(text) => {
                self.queue.refuse(&pod.uid, unfit.plugins, now);
                Step::Report(Report { message: unfit.message(&text), pod, nominate: None })
            }
        }
    }

    /// The victims of a preemption have been told; their room may even be there already.
    pub fn room_asked(&mut self, p: &Preemption, now: Instant) {
        self.queue.refuse(&p.report.pod.uid, p.plugins, now);
        if let Some(node) = &p.report.nominate {
            self.room_made(node, now);
        }
    }

    /// A binding succeeded.
    pub fn bound(&mut self, pod: &Pod, now: Instant) {
        self.cluster.storage.end(&pod.uid);
        self.cluster.bound(&pod.uid, now);
        self.queue.remove(&pod.uid);
    }

    /// A binding failed. Tried again after a back-off, unless the pod is `gone`.
    pub fn failed(&mut self, pod: &Pod, gone: bool, now: Instant) {
        self.metrics.attempt(self.profile_of(pod).unwrap_or(0), Attempt::Error, Duration::ZERO);
        self.cluster.storage.end(&pod.uid);
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
}
