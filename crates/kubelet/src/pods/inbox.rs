//! Events that the manager has not processed: the newest state of each pod by UID. Its size is bounded by the number of pods, however often
//! they change.
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::event::Eviction;
use crate::runtime::events::RunningPod;

/// A change of a pod in the API.
#[derive(Clone, Debug)]
pub enum PodChange {
    /// The pod was added or updated; its newest state.
    Is(Arc<Pod>),
    /// The pod was deleted; its last state.
    Gone(Arc<Pod>),
}

/// Source of static pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ManifestSource {
    /// Manifest files in a directory of this node.
    Files,
    /// A document at a URL.
    Url,
}

/// All events since the manager last took them.
#[derive(Debug, Default)]
pub struct Pending {
    order: VecDeque<String>,
    changes: HashMap<String, PodChange>,
    /// Whether the initial list of pods from the API is complete.
    pub synced: bool,
    /// The pods that the runtime had when the kubelet started.
    pub found: Option<Vec<RunningPod>>,
    /// Pods that changed in the runtime, by UID, with their state there; `None` if the runtime no longer has the pod.
    pub runtime: HashMap<String, Option<RunningPod>>,
    /// UIDs of pods whose ConfigMaps or Secrets changed.
    pub objects: HashSet<String>,
    /// UIDs of pods whose devices may have changed their health.
    pub health: HashSet<String>,
    /// Workers that ended, by UID of the pod; `true` if they returned, `false` if they panicked.
    pub ended: HashMap<String, bool>,
    /// Static pods of this node, by source.
    pub statics: BTreeMap<ManifestSource, Vec<Arc<Pod>>>,
    /// Requested evictions, by UID.
    pub evictions: HashMap<String, Eviction>,
    /// Checks that the manager works; each is answered when all of the above was processed.
    pub pings: Vec<oneshot::Sender<()>>,
}

/// Maximum number of checks that wait; an earlier one's caller has given up by then.
const PINGS_MAX: usize = 4;

impl Pending {
    /// Returns what may have freed resources for deferred resizes, as the label of `kubelet_pod_deferred_accepted_resizes_total`.
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

    /// Takes the changes of pods in the API, in the order in which the pods first changed. A pod that reuses a name thus follows the old
    /// pod.
    pub fn changes(&mut self) -> Vec<PodChange> {
        let order = std::mem::take(&mut self.order);
        order.into_iter().filter_map(|uid| self.changes.remove(&uid)).collect()
    }
}

/// The manager's inbox. Clones share the same events.
#[derive(Clone, Debug, Default)]
pub struct ManagerInbox(Arc<WaitingEvents>);

#[derive(Debug, Default)]
struct WaitingEvents {
    pending: Mutex<Pending>,
    wake: Notify,
    /// Whether the manager has begun to take events, which may be long after the kubelet's start.
    is_taken: AtomicBool,
}

impl ManagerInbox {
    fn put(&self, put: impl FnOnce(&mut Pending)) {
        put(&mut self.0.pending.lock());
        self.0.wake.notify_one();
    }

    /// Records a change of a pod in the API.
    pub fn pod(&self, change: PodChange) {
        let (PodChange::Is(pod) | PodChange::Gone(pod)) = &change;
        let uid = crate::pod::uid(pod).to_owned();
        self.put(|p| {
            if p.changes.insert(uid.clone(), change).is_none() {
                p.order.push_back(uid);
            }
        });
    }
    /// Records that the initial list of pods from the API is complete.
    pub fn synced(&self) {
        self.put(|p| p.synced = true);
    }
    /// Records the pods that the runtime had when the kubelet started.
    pub fn found(&self, pods: Vec<RunningPod>) {
        self.put(|p| p.found = Some(pods));
    }
    /// Records a change of a pod in the runtime, with its state there.
    pub fn runtime(&self, uid: String, pod: Option<RunningPod>) {
        self.put(|p| drop(p.runtime.insert(uid, pod)));
    }
    /// Records that a ConfigMap or Secret of a pod changed.
    pub fn objects(&self, uid: &str) {
        self.put(|p| {
            p.objects.insert(uid.to_owned());
        });
    }
    /// Records that the health of these pods' devices may have changed.
    pub fn health(&self, uids: impl IntoIterator<Item = String>) {
        self.put(|p| p.health.extend(uids));
    }
    /// Records that a worker ended: by itself or by a panic.
    pub fn ended(&self, uid: String, by_itself: bool) {
        self.put(|p| {
            p.ended.insert(uid, by_itself);
        });
    }
    /// Records the static pods of one source.
    pub fn statics(&self, source: ManifestSource, pods: Vec<Arc<Pod>>) {
        self.put(|p| drop(p.statics.insert(source, pods)));
    }
    /// Records a request to evict a pod.
    pub fn evict(&self, uid: &str, eviction: Eviction) {
        self.put(|p| drop(p.evictions.insert(uid.to_owned(), eviction)));
    }

    /// Waits until the manager has processed all earlier events. Returns at once if it has not begun.
    pub async fn ping(&self) {
        if !self.0.is_taken.load(Ordering::Relaxed) {
            return;
        }
        let (answer, answered) = oneshot::channel();
        self.put(|p| {
            if p.pings.len() >= PINGS_MAX {
                p.pings.remove(0);
            }
            p.pings.push(answer);
        });
        if answered.await.is_err() {
            // Without an answer the manager has ended, or newer checks wait: the caller's limit decides.
            std::future::pending::<()>().await;
        }
    }

    /// Waits for events and takes all of them.
    pub async fn next(&self) -> Pending {
        self.0.is_taken.store(true, Ordering::Relaxed);
        self.0.wake.notified().await;
        std::mem::take(&mut *self.0.pending.lock())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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

    #[tokio::test(start_paused = true)]
    async fn a_manager_that_hangs_answers_no_check() {
        const LIMIT: Duration = Duration::from_secs(5);
        let inbox = ManagerInbox::default();
        inbox.ping().await;
        inbox.synced();
        drop(inbox.next().await);
        for _ in 0..2 * PINGS_MAX {
            assert!(tokio::time::timeout(LIMIT, inbox.ping()).await.is_err(), "it takes nothing");
        }
        let pending = inbox.next().await;
        assert_eq!(pending.pings.len(), PINGS_MAX);
        let manager = async {
            let pending = inbox.next().await;
            pending.pings.into_iter().for_each(|ping| ping.send(()).unwrap_or_default());
        };
        let (answered, ()) = tokio::join!(tokio::time::timeout(LIMIT, inbox.ping()), manager);
        assert!(answered.is_ok());
    }
}
