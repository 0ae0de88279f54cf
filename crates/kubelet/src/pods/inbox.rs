//! What the manager has not looked at yet: the newest state of each pod, kept by UID. It is as large as the node has pods,
//! however often they change.
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::event::Eviction;
use crate::runtime::events::RunningPod;

/// What the API says of a pod.
#[derive(Clone, Debug)]
pub enum PodChange {
    /// It has this state.
    Is(Arc<Pod>),
    /// It is gone; this was the last state.
    Gone(Arc<Pod>),
}

/// Where manifests of static pods are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ManifestSource {
    /// Files of a directory of this node.
    Files,
    /// What is published at a URL.
    Url,
}

/// Everything that happened since the manager last looked.
#[derive(Debug, Default)]
pub struct Pending {
    order: VecDeque<String>,
    changes: HashMap<String, PodChange>,
    /// The API's initial list of pods is complete.
    pub synced: bool,
    /// All the runtime had at start.
    pub found: Option<Vec<RunningPod>>,
    /// Pods that changed in the runtime, by UID, with what it has of them.
    pub runtime: HashMap<String, Option<RunningPod>>,
    /// Pods whose config maps or secrets changed.
    pub objects: HashSet<String>,
    /// Pods whose devices may be in another state.
    pub health: HashSet<String>,
    /// Workers that ended, and whether by themselves.
    pub ended: HashMap<String, bool>,
    /// The manifests of this node, by where they are from.
    pub statics: BTreeMap<ManifestSource, Vec<Arc<Pod>>>,
    /// Pods that must go for the node's sake.
    pub evictions: HashMap<String, Eviction>,
}

impl Pending {
    /// What may let pods have resources that they wait for, as `kubelet_pod_deferred_accepted_resizes_total` names it.
    pub fn retry_trigger(&self) -> &'static str {
        let is = |which: &dyn Fn(&PodChange) -> bool| self.changes.values().any(which);
        if !self.ended.is_empty() || is(&|c| matches!(c, PodChange::Gone(_))) {
            "pods_removed"
        } else if is(&|c| matches!(c, PodChange::Is(p) if crate::pod::is_terminal(p))) {
            "pod_terminated"
        } else if self.changes.is_empty() {
            "periodic_retry"
        } else {
            "pod_updated"
        }
    }

    /// Changes of pods in the API, in the order in which the pods first changed: one that takes the name of another
    /// comes after it.
    pub fn changes(&mut self) -> Vec<PodChange> {
        let order = std::mem::take(&mut self.order);
        order.into_iter().filter_map(|uid| self.changes.remove(&uid)).collect()
    }
}

/// The manager's inbox; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ManagerInbox(Arc<WaitingEvents>);

#[derive(Debug, Default)]
struct WaitingEvents {
    pending: Mutex<Pending>,
    wake: Notify,
}

impl ManagerInbox {
    fn put(&self, put: impl FnOnce(&mut Pending)) {
        put(&mut self.0.pending.lock());
        self.0.wake.notify_one();
    }

    /// The API says this of a pod.
    pub fn pod(&self, change: PodChange) {
        let (PodChange::Is(pod) | PodChange::Gone(pod)) = &change;
        let uid = crate::pod::uid(pod).to_owned();
        self.put(|p| {
            if p.changes.insert(uid.clone(), change).is_none() {
                p.order.push_back(uid);
            }
        });
    }
    /// The API's initial list of pods is complete.
    pub fn synced(&self) {
        self.put(|p| p.synced = true);
    }
    /// The runtime has these pods at start.
    pub fn found(&self, pods: Vec<RunningPod>) {
        self.put(|p| p.found = Some(pods));
    }
    /// A pod changed in the runtime, which has this of it.
    pub fn runtime(&self, uid: String, pod: Option<RunningPod>) {
        self.put(|p| drop(p.runtime.insert(uid, pod)));
    }
    /// A config map or secret of a pod changed.
    pub fn objects(&self, uid: &str) {
        self.put(|p| {
            p.objects.insert(uid.to_owned());
        });
    }
    /// These pods' devices may be in another state.
    pub fn health(&self, uids: impl IntoIterator<Item = String>) {
        self.put(|p| p.health.extend(uids));
    }
    /// A worker ended, by itself or by a panic.
    pub fn ended(&self, uid: String, by_itself: bool) {
        self.put(|p| {
            p.ended.insert(uid, by_itself);
        });
    }
    /// The manifests of this node are these, as far as they are from there.
    pub fn statics(&self, source: ManifestSource, pods: Vec<Arc<Pod>>) {
        self.put(|p| drop(p.statics.insert(source, pods)));
    }
    /// A pod must go for the node's sake.
    pub fn evict(&self, uid: &str, eviction: Eviction) {
        self.put(|p| drop(p.evictions.insert(uid.to_owned(), eviction)));
    }

    /// Waits until something has happened and takes it.
    pub async fn next(&self) -> Pending {
        self.0.wake.notified().await;
        std::mem::take(&mut *self.0.pending.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.into());
        Arc::new(pod)
    }

    #[tokio::test]
    async fn a_flood_leaves_the_newest_state_of_each_pod_in_order() {
        let inbox = ManagerInbox::default();
        for _ in 0..10_000 {
            inbox.pod(PodChange::Is(pod("a")));
            inbox.runtime("a".into(), None);
        }
        inbox.pod(PodChange::Is(pod("b")));
        inbox.pod(PodChange::Gone(pod("a")));
        let mut pending = inbox.next().await;
        assert_eq!(pending.runtime.len(), 1);
        let changes = pending.changes();
        assert!(matches!(&changes[..], [PodChange::Gone(a), PodChange::Is(b)]
            if crate::pod::uid(a) == "a" && crate::pod::uid(b) == "b"));
    }
}
