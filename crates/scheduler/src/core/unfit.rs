//! Handles a pod that fits on no node: deallocates claims so that other devices can be chosen, or preempts less
//! important pods.
use std::sync::Arc;

use kelson_meta::ObjectKey;
use tokio::time::Instant;

use super::question::{Room, RoomQuestion};
use super::{Core, Preemption, Report, Step};
use crate::evaluation::preempt::{Candidate, Outcome, preempt};
use crate::evaluation::select::FitError;
use crate::plugins::table::PluginSet;
use crate::reason::{NO_NODES, Reason, Tally, summary};
use crate::view::Pod;

/// The message for a claim left by an earlier attempt.
const EXTENDED_GONE: &str = "deletion of ResourceClaim completed";

/// The result of trying to get other devices for a pod that fits nowhere.
struct Freeing {
    /// The message for the pod's condition; may be empty.
    word: &'static str,
    /// The claim to deallocate.
    free: Option<ObjectKey>,
    /// Whether preemption may be tried.
    goes_on: bool,
}

impl Freeing {
    /// Joins its message and that of preemption.
    fn before(&self, text: &str) -> String {
        if self.word.is_empty() || text.is_empty() {
            format!("{}{text}", self.word)
        } else {
            format!("{}, {text}", self.word)
        }
    }
}

/// Creates the report for a pod that fits nowhere.
fn report(pod: Arc<Pod>, message: String) -> Report {
    Report { pod, reason: "Unschedulable", message, free: None, drop: None, nominate: None }
}

impl Core {
    /// Decides what to do about a pod that fits nowhere.
    pub(super) fn unfit(&mut self, profile: usize, pod: Arc<Pod>, unfit: FitError, now: Instant) -> Step {
        if let Some((plugin, text)) = &unfit.fault {
            let message = format!("running {plugin:?} filter plugin: {text}");
            return self.faulty(pod, message, now);
        }
        if unfit.nodes == 0 {
            self.queue.refuse(&pod.uid, unfit.plugins, now);
            return Step::Report(report(pod, unfit.message("")));
        }
        let freeing = self.freeing(profile, &pod, &unfit);
        let free = freeing.free.clone();
        let Some(thoroughness) = self.deciders[profile].preemption.filter(|_| freeing.goes_on) else {
            self.queue.refuse(&pod.uid, unfit.plugins, now);
            return Step::Report(Report { free, ..report(pod, unfit.message(&freeing.before(""))) });
        };
        let judged = self.asks_for_room(&pod);
        let decider = &mut self.deciders[profile];
        let offset = decider.selector.below(unfit.preemptible.len().max(1));
        let evaluation = decider.selector.evaluations.get(&pod.spec, &mut self.cluster);
        let (cluster, budgets) = (&mut self.cluster, &self.budgets);
        let begun = std::time::Instant::now();
        let how = (&unfit, offset, thoroughness);
        let outcome = preempt(evaluation, cluster, &self.promised, budgets, &pod, how, judged);
        self.metrics.preempted(profile, &outcome, begun.elapsed());
        match outcome {
            Outcome::Make { node, victims } => self.make_room(pod, &unfit, free, node, victims),
            Outcome::Judge(candidates) => {
                let room = |c: Candidate| Room {
                    node: self.cluster.nodes()[c.node].node.name.clone(),
                    victims: c.victims,
                    violations: c.violations,
                };
                let rooms = candidates.into_iter().map(room).collect();
                self.queue.ask_others(&pod.uid, unfit.plugins.and(PluginSet::EXTENDERS));
                Step::AskForRoom(RoomQuestion { pod, rooms, unfit })
            }
            Outcome::Useless(text) => {
                let step = self.without_room(pod, &unfit, &freeing.before(&text), now);
                match step {
                    Step::Report(said) => Step::Report(Report { free, ..said }),
                    other => other,
                }
            }
            Outcome::Ineligible(text) => {
                self.queue.refuse(&pod.uid, unfit.plugins, now);
                Step::Report(Report { free, ..report(pod, unfit.message(&freeing.before(&text))) })
            }
        }
    }

    /// Handles an error that no node caused: the pod is retried after a back-off.
    pub(super) fn faulty(&mut self, pod: Arc<Pod>, message: String, now: Instant) -> Step {
        self.queue.fault(&pod.uid, now);
        Step::Report(Report { reason: "SchedulerError", ..report(pod, message) })
    }

    /// Preempts these pods of a node.
    pub(super) fn make_room(
        &mut self,
        pod: Arc<Pod>,
        unfit: &FitError,
        free: Option<ObjectKey>,
        node: usize,
        victims: Vec<Arc<Pod>>,
    ) -> Step {
        let node = self.cluster.nodes()[node].node.name.clone();
        let lesser = |p: &&Arc<Pod>| p.uid != pod.uid && p.spec.priority < pod.spec.priority;
        let disappointed: Vec<_> = self.promised.on(&node).iter().filter(lesser).cloned().collect();
        disappointed.iter().for_each(|p| self.promised.remove(&p.uid));
        self.promised.put(Arc::clone(&pod), &node);
        self.queue.ask_others(&pod.uid, unfit.plugins);
        let report = Report { nominate: Some(node), free, ..report(pod, unfit.message("")) };
        Step::Preempt(Preemption { report, victims, disappointed, plugins: unfit.plugins })
    }

    /// Handles a pod for which preemption does not help; an earlier nomination is cleared.
    pub(super) fn without_room(&mut self, pod: Arc<Pod>, unfit: &FitError, text: &str, now: Instant) -> Step {
        self.queue.refuse(&pod.uid, unfit.plugins, now);
        self.promised.remove(&pod.uid);
        let nominate = pod.nominated.as_ref().map(|_| "".into());
        Step::Report(Report { nominate, ..report(pod, unfit.message(text)) })
    }

    /// Returns the claim for extended resources that an earlier attempt created for the pod.
    pub(super) fn left_over(&self, pod: &Pod) -> Option<ObjectKey> {
        let devices = &self.cluster.devices;
        let made = devices.extended_claim_of(&pod.uid).filter(|_| !pod.spec.extended.is_empty())?;
        devices.extended_needs(&pod.spec).map(|_| made.clone())
    }

    /// Starts over for a pod with a claim from an earlier attempt: the claim is deleted, and the pod is retried once it
    /// is gone.
    pub(super) fn begin_again(&mut self, profile: usize, pod: Arc<Pod>, claim: ObjectKey, now: Instant) -> Step {
        let nodes = self.cluster.nodes().len();
        let mut plugins = PluginSet::default();
        let rows = self.deciders[profile].table.rows().iter().enumerate();
        rows.filter(|(_, p)| p.name() == "DynamicResources").for_each(|(row, _)| plugins.insert(row));
        self.queue.refuse(&pod.uid, plugins, now);
        let mut tally = Tally::default();
        tally.count(&Reason::EXTENDED_LEFT, nodes);
        let message = if nodes == 0 { NO_NODES.into() } else { summary(nodes, None, &tally, EXTENDED_GONE) };
        Step::Report(Report { drop: Some(claim), ..report(pod, message) })
    }

    /// Runs PostFilter of DynamicResources for a pod that fits nowhere, before preemption.
    fn freeing(&self, profile: usize, pod: &Pod, unfit: &FitError) -> Freeing {
        let table = &self.deciders[profile].table;
        let own = table.filtering().find(|(_, p)| p.name() == "DynamicResources").map(|(row, _)| row);
        let said = |word| Freeing { word, free: None, goes_on: true };
        match (own, &unfit.before) {
            (None, _) => said(""),
            // The plugin was not asked before and has nothing to report. Upstream treats that as an error and does not
            // preempt.
            (Some(own), Some(_)) if unfit.before_row != own => Freeing { goes_on: false, ..said("not found") },
            (Some(_), Some(_)) => said("no new claims to deallocate"),
            (Some(_), None) if pod.spec.devices.is_empty() => said("no new claims to deallocate"),
            (Some(_), None) => {
                let nodes = self.cluster.nodes().iter().map(|n| Arc::clone(&n.node));
                match self.cluster.devices.to_free(&pod.spec, &pod.uid, nodes) {
                    Some(key) => Freeing { free: Some(key), ..said("deallocation of ResourceClaim completed") },
                    None => said("still not schedulable"),
                }
            }
        }
    }
}
