//! The scheduler without its surroundings: everything known and waiting, fed by changes, asked for the next step.
//! Synchronous and without effects, so that a test drives it by hand; [`crate::run`] gives it the API and time.
mod ask;
mod plans;
mod promised;
mod question;
mod step;
mod unfit;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kelson_devices::ResourceClaimView;
use kelson_meta::ObjectKey;
use kelson_metrics::Registry;
use tokio::time::Instant;

use self::promised::ask_promised_again;
pub use self::question::{Answer, Question, Room, RoomQuestion};
pub use self::step::{DeviceBinding, PendingBinding, Preemption, Report, Step};
use crate::cluster::devices::{ClaimChange, DevicePlan, extended_owner};
use crate::cluster::{Cluster, Learnt, NodeState};
use crate::evaluation::nominations::Nominations;
use crate::evaluation::preempt::Thoroughness;
use crate::evaluation::select::{Decision, Selector};
use crate::extender::Extender;
use crate::metrics::{Attempt, Metrics};
use crate::plugins::change::Change;
use crate::plugins::plugin::PodChange;
use crate::plugins::table::{PluginSet, Row, Table};
use crate::profile::Profile;
use crate::queue::Queue;
use crate::view::{DisruptionBudget, Node, Pod, PodSpec};

/// An assumed pod whose binding succeeded is forgotten when the API has not shown it after this time.
const CONFIRM_MAX: Duration = Duration::from_secs(600);

/// A pod as it was and as it is; neither: nobody knows which pods are meant.
type OldAndNew = (Option<Arc<PodSpec>>, Option<Arc<PodSpec>>);

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
    /// Who else has a say in where pods go.
    pub extenders: Vec<Extender>,
    /// By pod that is being bound: when its attempt began.
    begun: HashMap<Arc<str>, std::time::Instant>,
    /// By pod: the devices that are being written into its claims.
    plans: HashMap<Arc<str>, Arc<DevicePlan>>,
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
        let named = |wanted: &dyn Fn(&&Row) -> bool, p: &Profile| -> Vec<&'static str> {
            p.rows.iter().filter(wanted).map(|row| row.plugin.name()).collect()
        };
        let names = |p: &Profile| (named(&|row| row.filters, p), named(&|row| row.weight > 0, p));
        let names: Vec<_> = profiles.iter().map(|p| (&*p.name, names(p).0, names(p).1)).collect();
        let metrics = Metrics::new(&names, registry);
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
            extenders: Vec::new(),
            begun: HashMap::new(),
            plans: HashMap::new(),
            deciders: profiles.into_iter().map(decider).collect(),
        }
    }

    /// The profile that decides on a pod: it is the one of the name that the pod asks for.
    fn profile_of(&self, pod: &Pod) -> Option<usize> {
        self.deciders.iter().position(|d| d.name == pod.spec.scheduler_name)
    }

    /// Pods that wait for another try, counted by plugin and profile.
    pub fn refused(&self) -> BTreeMap<(&'static str, Box<str>), usize> {
        let mut counts = BTreeMap::new();
        for (pod, by) in self.queue.refused() {
            let Some(d) = self.deciders.iter().find(|d| d.name == pod.spec.scheduler_name) else { continue };
            for row in by.rows() {
                *counts.entry((d.table.rows()[row].name(), d.name.clone())).or_default() += 1;
            }
        }
        counts
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
            // The watch may tell of a binding before its answer does.
            if let Some(waited) = self.queue.remove(&pod.uid).filter(|_| self.begun.contains_key(&pod.uid)) {
                self.metrics.placed(&waited, now);
            }
            self.promised.remove(&pod.uid);
            let (node, new) = (pod.node_name.clone(), Arc::clone(&pod.spec));
            let old = if self.queue.any_unschedulable() { self.cluster.spec_of(&pod.uid) } else { None };
            return match self.cluster.put_pod(pod) {
                Learnt::Placed => self.pod_came(&new, now),
                // It may ask for less, too.
                Learnt::Changed => self.room_made(&node, Change::AssignedPodUpdate, (old, Some(new)), now),
                Learnt::Nothing => {}
            };
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
        let held = self.cluster.devices.holds(&pod.spec);
        self.queue.put(pod, held, now);
    }

    /// A pod is gone, or has ended.
    pub fn remove_pod(&mut self, pod: &Pod, now: Instant) {
        self.queue.remove(&pod.uid);
        let promised = self.promised.node_of(&pod.uid).map(Box::<str>::from);
        self.promised.remove(&pod.uid);
        let node = self.cluster.node_of(&pod.uid).map(Box::<str>::from);
        self.cluster.remove_pod(&pod.uid);
        if let Some(node) = node.or(promised) {
            self.room_made(&node, Change::AssignedPodDelete, (Some(Arc::clone(&pod.spec)), None), now);
            ask_promised_again(&self.promised, &mut self.queue, &node, Change::AssignedPodDelete, now);
        }
    }

    /// A node was made or changed.
    pub fn put_node(&mut self, node: &Arc<Node>, now: Instant) {
        let known = self.cluster.position(&node.name).map(|i| &self.cluster.nodes()[i]);
        let (before, old) = (known.map(|s| s.generation), known.map(|s| NodeState::new(Arc::clone(&s.node), 0)));
        self.cluster.put_node(Arc::clone(node));
        let Some(i) = self.cluster.position(&node.name) else { return };
        let state = &self.cluster.nodes()[i];
        if before == Some(state.generation) {
            return;
        }
        let change = if before.is_none() { Change::NodeAdd } else { Change::NodeUpdate };
        ask_promised_again(&self.promised, &mut self.queue, &node.name, change, now);
        let (deciders, metrics) = (&self.deciders, &self.metrics);
        self.queue.requeue(now, change.label(), |pod, by| {
            let Some(d) = deciders.iter().find(|d| d.name == pod.spec.scheduler_name) else { return true };
            // Where it could go now and could not before for what the node was, or never knew of; else who refused it must see a
            // use in the change.
            let fits = d.table.may_fit(&pod.spec, state);
            let turned = |old: &NodeState| by.meets(d.table.of_nodes()) && !d.table.may_fit(&pod.spec, old);
            let newly = fits && old.as_ref().is_none_or(turned);
            by.is_empty()
                || newly
                || fits && by.meets(PluginSet::EXTENDERS)
                || by.rows().any(|row| {
                    let begun = std::time::Instant::now();
                    let plugin = d.table.rows()[row];
                    // To plugins that count over many nodes one matters even where the pod itself cannot go.
                    let matters = fits || plugin.requeues_on(Change::NodeDelete);
                    let yes = matters && plugin.node_hint(&pod.spec, old.as_ref(), state);
                    metrics.hinted(plugin.name(), change, yes, begun.elapsed());
                    yes
                })
        });
    }

    /// A node is gone: fewer domains may make a spread constraint hold, and pods that were promised room there look elsewhere.
    pub fn remove_node(&mut self, name: &str, now: Instant) {
        self.cluster.remove_node(name);
        ask_promised_again(&self.promised, &mut self.queue, name, Change::NodeDelete, now);
        self.requeue_by(Change::NodeDelete, None, now);
    }

    /// A claim for devices came, went or changed.
    pub fn put_resource_claim(&mut self, key: ObjectKey, claim: Option<Arc<ResourceClaimView>>, now: Instant) {
        let kind = match self.cluster.devices.claim(&key) {
            None => Change::ResourceClaimAdd,
            Some(_) => Change::ResourceClaimUpdate,
        };
        let known = self.cluster.devices.claim(&key);
        let is_extended = known.into_iter().chain(&claim).any(|c| extended_owner(c).is_some());
        let change = self.cluster.devices.put_claim(key.clone(), claim);
        let devices = &self.cluster.devices;
        self.queue.reconsider(now, kind.label(), |pod| devices.holds(&pod.spec));
        let deciders = &self.deciders;
        match change {
            ClaimChange::Nothing => {}
            ClaimChange::Freed => self.requeue_by(kind, None, now),
            ClaimChange::Own => self.queue.requeue(now, kind.label(), |pod, by| {
                let named = |d: &crate::view::DeviceRef| d.claim.as_deref() == Some(key.name.as_str());
                let uses = pod.spec.devices.iter().any(named) || (is_extended && !pod.spec.extended.is_empty());
                let uses = uses && *pod.spec.namespace == *key.namespace;
                let decider = deciders.iter().find(|d| d.name == pod.spec.scheduler_name);
                uses && decider.is_none_or(|d| by.meets(d.table.requeued_by(kind)))
            }),
        }
    }

    /// Something else changed, of which `about` is the name where it matters.
    pub fn changed(&mut self, change: Change, about: Option<&ObjectKey>, now: Instant) {
        self.requeue_by(change, about, now);
    }

    /// Tries the pods again that were refused by plugins to which this change matters.
    fn requeue_by(&mut self, change: Change, about: Option<&ObjectKey>, now: Instant) {
        let deciders = &self.deciders;
        // Rows of several tables are other plugins: of one profile alone it is known at once that nobody waits for this.
        if let [only] = deciders.as_slice()
            && self.extenders.is_empty()
            && !self.queue.any_refused_by(only.table.requeued_by(change))
        {
            return;
        }
        let metrics = &self.metrics;
        self.queue.requeue(now, change.label(), |pod, by| {
            let Some(d) = deciders.iter().find(|d| d.name == pod.spec.scheduler_name) else { return true };
            by.meets(PluginSet::EXTENDERS)
                || by.common(d.table.requeued_by(change)).rows().any(|row| {
                    let begun = std::time::Instant::now();
                    let plugin = d.table.rows()[row];
                    let yes = about.is_none_or(|about| plugin.hint(&pod.spec, change, about));
                    metrics.hinted(plugin.name(), change, yes, begun.elapsed());
                    yes
                })
        });
    }

    /// A pod was placed: those are tried again whose place depends on it.
    fn pod_came(&mut self, new: &Arc<PodSpec>, now: Instant) {
        if self.queue.any_unschedulable() {
            self.requeue_by_pod(None, Change::AssignedPodAdd, (None, Some(Arc::clone(new))), now);
        }
    }

    /// There is room on a node, since pods left it or ask for less: those that fit it now are tried again, and those whose
    /// place depends on the pod that is meant, as it was and as it is.
    fn room_made(&mut self, node: &str, change: Change, pod: OldAndNew, now: Instant) {
        if !self.queue.any_unschedulable() {
            return;
        }
        self.requeue_by_pod(Some(node), change, pod, now);
    }

    fn requeue_by_pod(&mut self, node: Option<&str>, change: Change, (old, new): OldAndNew, now: Instant) {
        let state = node.and_then(|node| self.cluster.position(node)).map(|i| &self.cluster.nodes()[i]);
        let namespaces = self.cluster.known_namespaces();
        let about = PodChange { old: old.as_deref(), new: new.as_deref(), namespaces };
        let known = old.is_some() || new.is_some();
        let (deciders, metrics) = (&self.deciders, &self.metrics);
        self.queue.requeue(now, change.label(), |pod, by| {
            let Some(d) = deciders.iter().find(|d| d.name == pod.spec.scheduler_name) else { return true };
            by.meets(PluginSet::EXTENDERS)
                || by.is_empty()
                || by.meets(d.table.of_room()) && state.is_some_and(|s| d.table.fits(&pod.spec, s))
                || by.common(d.table.requeued_by(change)).rows().any(|row| {
                    let begun = std::time::Instant::now();
                    let plugin = d.table.rows()[row];
                    let yes = !known || plugin.pod_hint(&pod.spec, about);
                    metrics.hinted(plugin.name(), change, yes, begun.elapsed());
                    yes
                })
        });
    }

    /// Takes the next pod and decides on it.
    pub fn step(&mut self, now: Instant) -> Step {
        self.cluster.expire_before(now.checked_sub(CONFIRM_MAX));
        let Some(pod) = self.queue.pop(now) else { return Step::Idle(self.queue.due()) };
        let begun = std::time::Instant::now();
        // A pod that is queued has a profile.
        let profile = self.profile_of(&pod).unwrap_or(0);
        if let Some(claim) = self.left_over(&pod) {
            return self.begin_anew(profile, pod, claim, now);
        }
        let judged = self.asks(&pod);
        let decision = self.deciders[profile].selector.decide(&mut self.cluster, &self.promised, &pod, judged);
        self.metrics.decided(profile, &self.deciders[profile].selector.spent, begun.elapsed());
        match decision {
            Decision::Node(i) => self.place(pod, i, begun),
            Decision::Judge(nodes, unfit) => {
                let named = |(i, total): (usize, i64)| (self.cluster.nodes()[i].node.name.clone(), total);
                let nodes = nodes.into_iter().map(named).collect();
                self.queue.ask_others(&pod.uid, unfit.plugins.and(PluginSet::EXTENDERS));
                Step::Ask(Question { pod, nodes, profile, unfit, begun })
            }
            Decision::Unfit(unfit) => {
                let how = if unfit.fault.is_some() { Attempt::Error } else { Attempt::Unschedulable };
                let step = self.unfit(profile, pod, unfit, now);
                self.metrics.attempt(profile, how, begun.elapsed());
                step
            }
        }
    }

    /// Takes a pod as placed, and says what is to be done before it is.
    fn place(&mut self, pod: Arc<Pod>, i: usize, begun: std::time::Instant) -> Step {
        let node = self.cluster.nodes()[i].node.name.clone();
        let assigned = Arc::new(pod.assigned_to(&node));
        self.cluster.assume(Arc::clone(&assigned));
        self.promised.remove(&pod.uid);
        self.queue.end_asking(&pod.uid);
        self.begun.insert(Arc::clone(&pod.uid), begun);
        let volumes = self.volumes_of(&pod, i);
        let volumes = volumes.map(|plan| PendingBinding { pod: Arc::clone(&assigned), plan });
        match (self.devices_of(&pod, i), volumes) {
            (Some(plan), volumes) => Step::BindDevices(DeviceBinding { pod: assigned, plan, volumes }),
            (None, Some(volumes)) => Step::BindVolumes(volumes),
            (None, None) => Step::Bind(assigned),
        }
    }

    /// The victims of a preemption are deleted, `all` of them or not; their room may even be there already.
    pub fn room_asked(&mut self, p: &Preemption, all: bool, now: Instant) {
        if all {
            self.queue.refuse(&p.report.pod.uid, p.plugins, now);
        } else {
            self.queue.fault(&p.report.pod.uid, now);
        }
    }

    /// A binding succeeded.
    pub fn bound(&mut self, pod: &Pod, now: Instant) {
        self.end_plans(&pod.uid);
        self.cluster.bound(&pod.uid, now);
        let took = self.begun.remove(&pod.uid).map(|begun| begun.elapsed()).unwrap_or_default();
        self.metrics.attempt(self.profile_of(pod).unwrap_or(0), Attempt::Scheduled, took);
        if let Some(waited) = self.queue.remove(&pod.uid) {
            self.metrics.placed(&waited, now);
        }
    }

    /// A binding failed. Tried again after a back-off, unless the pod is `gone`.
    pub fn failed(&mut self, pod: &Pod, gone: bool, now: Instant) {
        let took = self.begun.remove(&pod.uid).map(|begun| begun.elapsed()).unwrap_or_default();
        self.metrics.attempt(self.profile_of(pod).unwrap_or(0), Attempt::Error, took);
        let (volumes, devices) = self.end_plans(&pod.uid);
        let forgotten = self.cluster.forget(&pod.uid);
        if gone {
            self.queue.remove(&pod.uid);
        } else {
            self.queue.fault(&pod.uid, now);
        }
        if forgotten {
            self.room_made(&pod.node_name, Change::AssignedPodDelete, (Some(Arc::clone(&pod.spec)), None), now);
        }
        if volumes {
            self.requeue_by(Change::VolumeUpdate, None, now);
        }
        if devices {
            self.requeue_by(Change::ResourceClaimUpdate, None, now);
        }
    }
}
