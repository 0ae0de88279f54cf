//! Admission of new pods, and preemption for critical ones.
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kelson_client::EventType;

use super::PodManager;
use crate::config::thresholds::PREEMPTED;
use crate::pod;
use crate::pods::admit::{self, Refusal, Rejection, Shortage};
use crate::pods::event::Eviction;
use crate::pods::preempt::{self, Missing};
use crate::pods::room::{EndingPods, Wait};

/// Message of status and event of a preempted pod.
const PREEMPTED_MESSAGE: &str = "Preempted in order to admit critical pod";
/// Minimum wait for preempted pods to end, before the critical pod starts anyway.
const LEAVE_MIN: Duration = Duration::from_secs(10);

impl PodManager {
    /// Returns the pods that use resources of the node. Rejected pods use none, even if the API does not show the rejection yet.
    pub(super) fn others(&self) -> Vec<Arc<Pod>> {
        let (staying, gone) = self.staying_and_gone();
        staying.into_iter().chain(gone).collect()
    }

    /// The same, separated into pods that stay and pods that were deleted from the API while their containers are still ending.
    fn staying_and_gone(&self) -> (Vec<Arc<Pod>>, Vec<Arc<Pod>>) {
        let taking = self.workers.values().filter(|e| e.start.rejected.is_none());
        let (gone, staying): (Vec<_>, Vec<_>) = taking.partition(|e| e.start.gone);
        let pods = |entries: Vec<&super::PodEntry>| entries.into_iter().map(|e| Arc::clone(&e.start.pod)).collect();
        (pods(staying), pods(gone))
    }

    /// Admits or rejects a new pod. The scheduler no longer counts a pod that was deleted from the API, while its containers may still be
    /// ending. A pod that needs its resources therefore waits and is not rejected.
    pub(super) fn judge(&mut self, pod: &Arc<Pod>) -> Result<Option<Wait>, Rejection> {
        let (staying, gone) = self.staying_and_gone();
        let (node, runtime) = (self.node.borrow().clone(), self.parts.runtime_state.borrow().clone());
        let devices = self.parts.devices.offered();
        let here = admit::NodeState {
            allowed_unsafe_sysctls: &self.parts.config.allowed_unsafe_sysctls,
            node: node.as_deref(),
            pressure: *self.pressure.borrow(),
            shuts_down: *self.shutdown.borrow(),
            runtime: &runtime,
            devices: &devices,
            exclusive: self.parts.config.placement.is_exclusive(),
        };
        let judged = match admit::admit(&here, pod, &staying) {
            Ok(()) => {
                // Waiting pods use nothing yet and were already admitted in addition to each other.
                let waits = |p: &Arc<Pod>| self.rooms.contains_key(pod::uid(p));
                let running: Vec<_> = staying.iter().filter(|p| !waits(p)).cloned().collect();
                Ok(self.wait_for_gone(pod, admit::in_the_way(&here, pod, &running, &gone)))
            }
            Err(Refusal::Shortage(short)) if pod::is_critical(pod) => {
                self.preempt(pod, &short, &gone).map(Some).map_err(|why| {
                    let why = format!("preemption: error finding a set of pods to preempt: {why}");
                    let why = format!("Unexpected error while attempting to recover from admission failure: {why}");
                    ("UnexpectedAdmissionError".to_owned(), why)
                })
            }
            Err(refusal) => Err(refusal.rejection()),
        };
        judged.map_err(|(reason, message)| {
            self.parts.effects.metrics.lives().rejected(&reason);
            let in_status = format!("Pod was rejected: {message}");
            self.parts.effects.events.pod(pod, EventType::Warning, &reason, message);
            (reason, in_status)
        })
    }

    /// Lets a pod wait until these pods, which were deleted from the API, have left the node. There is no time limit, because a container
    /// that does not end keeps its ports and devices.
    fn wait_for_gone(&mut self, pod: &Arc<Pod>, in_the_way: Vec<Arc<Pod>>) -> Option<Wait> {
        if in_the_way.is_empty() {
            return None;
        }
        let names: Vec<String> = in_the_way.iter().map(|p| pod::format_pod(p)).collect();
        let text = format!("Waiting for pods that are being terminated to leave the node: {}", names.join(", "));
        tracing::info!(pod = %pod::format_pod(pod), "{text}");
        self.parts.effects.events.pod(pod, EventType::Normal, "WaitingForTermination", text);
        let uids = in_the_way.iter().map(|p| pod::uid(p).to_owned()).collect();
        let (room, wait) = EndingPods::left_by(uids, None);
        self.rooms.insert(pod::uid(pod).to_owned(), room);
        Some(wait)
    }

    /// Ends pods to free resources for a critical one. Resources of ending pods count as freed, and their end is awaited too. So is the end
    /// of `gone`, the pods that were deleted from the API and not counted when the node was found `short`.
    fn preempt(&mut self, pod: &Arc<Pod>, short: &[Shortage], gone: &[Arc<Pod>]) -> Result<Wait, String> {
        let takes =
            |e: &&super::PodEntry| !pod::is_terminal(&e.start.pod) && e.start.rejected.is_none() && !e.start.gone;
        let active = self.workers.values().filter(takes);
        let (leaving, staying): (Vec<_>, Vec<_>) = active.partition(|e| e.start.evicted.is_some());
        let pods = |entries: &[&super::PodEntry]| -> Vec<Arc<Pod>> {
            entries.iter().map(|e| Arc::clone(&e.start.pod)).collect()
        };
        let (leaving, staying) = (pods(&leaving), pods(&staying));
        let chosen = preempt::victims(pod, &staying, &Missing::of(short).without(&leaving))?;
        for victim in &chosen {
            tracing::info!(pod = %pod::format_pod(victim), critical = %pod::format_pod(pod), "preempting a pod for a critical pod");
            self.parts.effects.events.pod(victim, EventType::Warning, PREEMPTED, PREEMPTED_MESSAGE);
            self.parts.effects.metrics.preempted(short.first().map_or("", |s| s.resource.as_str()));
            let eviction = Eviction { reason: PREEMPTED, message: PREEMPTED_MESSAGE.into(), grace: pod::grace(victim) };
            if let Some(entry) = self.workers.get_mut(pod::uid(victim)) {
                entry.start.evicted = Some(eviction.clone());
                entry.inbox.evict(eviction);
            }
        }
        let left = || leaving.iter().chain(&chosen);
        let longest = left().map(|p| pod::grace(p)).max().unwrap_or_default();
        let limit = (longest + longest / 2).max(LEAVE_MIN);
        let uids = left().chain(gone).map(|p| pod::uid(p).to_owned()).collect();
        let (room, wait) = EndingPods::left_by(uids, Some(limit));
        self.rooms.insert(pod::uid(pod).to_owned(), room);
        Ok(wait)
    }

    /// Starts the waiting pods whose resources are free, and ends those that were deleted while they waited.
    pub(super) fn rooms_left(&mut self) {
        let workers = &self.workers;
        let runs = |uid: &String| workers.get(uid).is_some_and(|e| !pod::is_terminal(&e.start.pod));
        let wanted = |uid: &String| workers.get(uid).is_some_and(|e| !e.start.gone && !pod::is_deleted(&e.start.pod));
        self.rooms.retain(|uid, room| wanted(uid) && room.is_taken(runs));
    }
}
