//! The scheduler's state machine, without I/O: it holds the cluster and the queue, receives changes, and returns the
//! next step. It is synchronous, so that tests drive it by hand; [`crate::run`] connects it to the API server and to
//! time.
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
use crate::cluster::{Cluster, NodeState, PodUpdate};
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

/// An assumed pod is dropped if the API server has not shown it this long after its binding succeeded.
const CONFIRM_MAX: Duration = Duration::from_secs(600);

/// The old and the new version of a pod's spec; both `None` when the pods are not known.
type OldAndNew = (Option<Arc<PodSpec>>, Option<Arc<PodSpec>>);

/// The scheduler's state: the cluster, the queue of pods, and one decider for each profile.
///
/// Informers call the `put_*` and `remove_*` methods; [`Core::step`] takes the next pod, decides on a node, and returns
/// what the caller must do (bind, report, preempt, ask extenders). The caller then reports the outcome by
/// [`Core::bound`], [`Core::failed`] or the `answered` methods. Nothing here blocks, sleeps or reads a clock.
#[derive(Debug)]
pub struct Core {
    /// Nodes and placed pods.
    pub cluster: Cluster,
    pub queue: Queue,
    /// The scheduler's metrics.
    pub metrics: Metrics,
    /// PodDisruptionBudgets, for preemption.
    pub budgets: HashMap<ObjectKey, DisruptionBudget>,
    promised: Nominations,
    /// Servers that filter and score nodes in addition to the plugins.
    pub extenders: Vec<Extender>,
    /// When the attempt began, by the UID of a pod that is being bound.
    begun: HashMap<Arc<str>, std::time::Instant>,
    /// The allocations that are being written, by the UID of the pod.
    plans: HashMap<Arc<str>, Arc<DevicePlan>>,
    /// One decider for each profile; at least one.
    deciders: Vec<Decider>,
}

/// The decision state of one profile.
#[derive(Debug)]
struct Decider {
    name: Box<str>,
    table: Arc<Table>,
    selector: Selector,
    /// Preemption settings; `None` when preemption is disabled.
    preemption: Option<Thoroughness>,
}

impl Core {
    /// Creates a scheduler with this name, the default profile's plugins and an empty cluster.
    pub fn new(name: &str, percent: usize, seed: u64) -> Self {
        let profile = Profile { name: name.into(), percent, ..Profile::default() };
        Self::with_profiles(vec![profile], seed, Registry::of_component())
    }

    /// Creates a scheduler with these profiles, whose metrics are in `registry`.
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

    /// The profile whose name the pod's `schedulerName` is.
    fn profile_of(&self, pod: &Pod) -> Option<usize> {
        self.deciders.iter().position(|d| d.name == pod.spec.scheduler_name)
    }

    /// Returns the number of unschedulable pods by plugin and profile.
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

    /// Returns the names of all profiles.
    pub fn names(&self) -> Vec<Box<str>> {
        self.deciders.iter().map(|d| d.name.clone()).collect()
    }

    /// Handles a pod that was added or updated.
    pub fn put_pod(&mut self, pod: Arc<Pod>, now: Instant) {
        if pod.terminal {
            return self.remove_pod(&pod, now);
        }
        if !pod.node_name.is_empty() {
            // The watch may deliver a binding before its request returns.
            if let Some(waited) = self.queue.remove(&pod.uid).filter(|_| self.begun.contains_key(&pod.uid)) {
                self.metrics.placed(&waited, now);
            }
            self.promised.remove(&pod.uid);
            let (node, new) = (pod.node_name.clone(), Arc::clone(&pod.spec));
            let old = if self.queue.any_unschedulable() { self.cluster.spec_of(&pod.uid) } else { None };
            return match self.cluster.put_pod(pod) {
                PodUpdate::Placed => self.pod_came(&new, now),
                // Its requests may have become smaller as well.
                PodUpdate::Changed => self.room_made(&node, Change::AssignedPodUpdate, (old, Some(new)), now),
                PodUpdate::Nothing => {}
            };
        }
        if pod.deleting {
            return self.remove_pod(&pod, now);
        }
        // A version from before its binding may arrive after it: an assumed pod does not wait.
        if self.profile_of(&pod).is_none() || self.cluster.node_of(&pod.uid).is_some() {
            return;
        }
        match pod.nominated.as_deref() {
            Some(node) => self.promised.put(Arc::clone(&pod), node),
            // Another client cleared the nomination. A nomination of ours that is not written yet stays.
            None if self.queue.get(&pod.uid).is_some_and(|was| was.nominated.is_some()) => {
                self.promised.remove(&pod.uid);
            }
            None => {}
        }
        let held = self.cluster.devices.holds(&pod.spec);
        self.queue.put(pod, held, now);
    }

    /// Handles a pod that was deleted or has ended.
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

    /// Handles a node that was added or updated.
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
            // Requeue pods that fit now and did not fit before; for the others a plugin that rejected them must find
            // the change useful.
            let fits = d.table.may_fit(&pod.spec, state);
            let turned = |old: &NodeState| by.meets(d.table.of_nodes()) && !d.table.may_fit(&pod.spec, old);
            let newly = fits && old.as_ref().is_none_or(turned);
            by.is_empty()
                || newly
                || fits && by.meets(PluginSet::EXTENDERS)
                || by.rows().any(|row| {
                    let begun = std::time::Instant::now();
                    let plugin = d.table.rows()[row];
                    // For plugins that count over many nodes a node matters even if the pod itself cannot go there.
                    let matters = fits || plugin.requeues_on(Change::NodeDelete);
                    let yes = matters && plugin.node_hint(&pod.spec, old.as_ref(), state);
                    metrics.hinted(plugin.name(), change, yes, begun.elapsed());
                    yes
                })
        });
    }

    /// Handles a deleted node: with fewer domains a spread constraint may hold, and pods nominated to the node need
    /// another one.
    pub fn remove_node(&mut self, name: &str, now: Instant) {
        self.cluster.remove_node(name);
        ask_promised_again(&self.promised, &mut self.queue, name, Change::NodeDelete, now);
        self.requeue_by(Change::NodeDelete, None, now);
    }

    /// Handles a ResourceClaim that was added, updated or deleted.
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

    /// Handles any other change; `about` is the name of the object where plugins need it.
    pub fn changed(&mut self, change: Change, about: Option<&ObjectKey>, now: Instant) {
        self.requeue_by(change, about, now);
    }

    /// Requeues the pods that were rejected by plugins for which this change is useful.
    fn requeue_by(&mut self, change: Change, about: Option<&ObjectKey>, now: Instant) {
        let deciders = &self.deciders;
        // Tables number their plugins differently; with a single profile it is known immediately that no pod waits for
        // this.
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

    /// Requeues pods whose placement depends on a pod that was placed.
    fn pod_came(&mut self, new: &Arc<PodSpec>, now: Instant) {
        if self.queue.any_unschedulable() {
            self.requeue_by_pod(None, Change::AssignedPodAdd, (None, Some(Arc::clone(new))), now);
        }
    }

    /// Handles room freed on a node, because pods left it or request less: requeues pods that fit now, and pods whose
    /// placement depends on the changed pod.
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

    /// Takes the next pod from the queue and decides on it.
    pub fn step(&mut self, now: Instant) -> Step {
        self.cluster.expire_before(now.checked_sub(CONFIRM_MAX));
        let Some(pod) = self.queue.pop(now) else { return Step::Idle(self.queue.due()) };
        let begun = std::time::Instant::now();
        // A pod in the queue always has a profile.
        let profile = self.profile_of(&pod).unwrap_or(0);
        if let Some(claim) = self.left_over(&pod) {
            return self.begin_again(profile, pod, claim, now);
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

    /// Assumes a pod on its node and returns what must be done before it is bound.
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

    /// Records that the victims of a preemption were deleted; `all` is false if some were not. Their room may already
    /// be free.
    pub fn room_asked(&mut self, p: &Preemption, all: bool, now: Instant) {
        if all {
            self.queue.refuse(&p.report.pod.uid, p.plugins, now);
        } else {
            self.queue.fault(&p.report.pod.uid, now);
        }
    }

    /// Records that a binding succeeded.
    pub fn bound(&mut self, pod: &Pod, now: Instant) {
        self.end_plans(&pod.uid);
        self.cluster.bound(&pod.uid, now);
        let took = self.begun.remove(&pod.uid).map(|begun| begun.elapsed()).unwrap_or_default();
        self.metrics.attempt(self.profile_of(pod).unwrap_or(0), Attempt::Scheduled, took);
        if let Some(waited) = self.queue.remove(&pod.uid) {
            self.metrics.placed(&waited, now);
        }
    }

    /// Records that a binding failed. The pod is retried after a back-off, unless it is `gone`.
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
