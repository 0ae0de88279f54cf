//! Shows static pods in the API: creates a mirror pod for each, creates it again after its deletion, and deletes it with the manifest. The
//! status writer learns the UID of each mirror pod from here (upstream: `pkg/kubelet/pod/mirror_client.go`).
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kelson_client::{Client, ClientError, DeleteOptions};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::pod;
use crate::status::writer::StatusWriter;

/// Delay before a failed call is retried.
const RETRY: Duration = Duration::from_secs(5);

type Name = (String, String);

fn name(pod: &Pod) -> Name {
    (pod::namespace(pod).to_owned(), pod::name(pod).to_owned())
}

/// The action for one name.
#[derive(Debug, PartialEq)]
enum MirrorAction {
    Nothing,
    Create,
    Delete,
}

fn decide(wanted: Option<&Pod>, mirror: Option<&Pod>, complete: bool) -> MirrorAction {
    match (wanted, mirror) {
        (None, None) => MirrorAction::Nothing,
        // The mirror may belong to a source that was not read yet.
        (None, Some(_)) if !complete => MirrorAction::Nothing,
        (None, Some(_)) => MirrorAction::Delete,
        (Some(_), None) => MirrorAction::Create,
        (Some(w), Some(m)) => {
            let shows = pod::annotation(m, pod::CONFIG_MIRROR) == pod::annotation(w, pod::CONFIG_HASH);
            if shows && !pod::is_deleted(m) { MirrorAction::Nothing } else { MirrorAction::Delete }
        }
    }
}

/// Builds the mirror pod of a static pod.
fn mirror(pod: &Pod, node: &Node) -> Pod {
    let mut out = pod.clone();
    let annotations = out.metadata.annotations.get_or_insert_default();
    let hash = annotations.get(pod::CONFIG_HASH).cloned().unwrap_or_default();
    annotations.insert(pod::CONFIG_MIRROR.into(), hash);
    out.metadata.uid = None;
    out.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.metadata.name.clone().unwrap_or_default(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        ..Default::default()
    }]);
    out.status = None;
    out
}

/// Static pods and their mirror pods. Clones share the state; its size is bounded by the number of static pods.
#[derive(Clone, Default)]
pub struct MirrorInbox(Arc<WaitingMirror>);

#[derive(Default)]
struct WaitingMirror {
    state: Mutex<Mirrors>,
    wake: Notify,
}

#[derive(Clone, Default)]
struct Mirrors {
    /// Static pods, by name.
    wanted: HashMap<Name, Arc<Pod>>,
    /// Mirror pods in the API, by name.
    mirrors: HashMap<Name, Arc<Pod>>,
    /// Whether the initial list from the API is complete.
    synced: bool,
    /// Whether every source of manifests was read. Then a mirror without a static pod is deleted.
    complete: bool,
}

impl MirrorInbox {
    /// Number of mirror pods in the API.
    pub fn count(&self) -> usize {
        self.0.state.lock().mirrors.len()
    }

    fn put(&self, put: impl FnOnce(&mut Mirrors)) {
        put(&mut self.0.state.lock());
        self.0.wake.notify_one();
    }

    /// Replaces the static pods. `complete`: every source was read.
    pub fn wanted(&self, pods: Vec<Arc<Pod>>, complete: bool) {
        self.put(|s| {
            s.wanted = pods.into_iter().map(|p| (name(&p), p)).collect();
            s.complete = complete;
        });
    }
    /// Records a mirror pod in the API.
    pub fn seen(&self, pod: Arc<Pod>) {
        self.put(|s| drop(s.mirrors.insert(name(&pod), pod)));
    }
    /// Records that a mirror pod was deleted from the API.
    pub fn gone(&self, pod: &Pod) {
        self.put(|s| {
            let name = name(pod);
            if s.mirrors.get(&name).is_some_and(|m| pod::uid(m) == pod::uid(pod)) {
                s.mirrors.remove(&name);
            }
        });
    }
    /// Records that the initial list from the API is complete.
    pub fn synced(&self) {
        self.put(|s| s.synced = true);
    }
}

/// Reconciles the mirror pods in the API with the manifests.
#[derive(Clone)]
pub struct MirrorManager {
    client: Client,
    node: watch::Receiver<Option<Arc<Node>>>,
    statuses: StatusWriter,
    inbox: MirrorInbox,
}

impl MirrorManager {
    /// Creates a manager that is not running yet.
    pub fn new(
        client: Client,
        node: watch::Receiver<Option<Arc<Node>>>,
        statuses: StatusWriter,
        inbox: MirrorInbox,
    ) -> Self {
        Self { client, node, statuses, inbox }
    }

    /// Runs until its task is aborted.
    pub async fn run(self) {
        let mut again = false;
        loop {
            let changed = self.inbox.0.wake.notified();
            match again {
                // After a failure, retries even if nothing changes.
                true => drop(tokio::time::timeout(RETRY, changed).await),
                false => changed.await,
            }
            let now = self.inbox.0.state.lock().clone();
            again = now.synced && !self.reconcile(&now).await;
        }
    }

    /// Reconciles every name. Returns `false` if something failed and must be retried.
    async fn reconcile(&self, now: &Mirrors) -> bool {
        let mut names: Vec<Name> = now.wanted.keys().chain(now.mirrors.keys()).cloned().collect();
        names.sort();
        names.dedup();
        let mut fine = true;
        for n in names {
            let (wanted, mirror) = (now.wanted.get(&n).cloned(), now.mirrors.get(&n).cloned());
            let action = decide(wanted.as_deref(), mirror.as_deref(), now.complete);
            if let Some(w) = &wanted {
                let shown = mirror.as_ref().filter(|_| action == MirrorAction::Nothing).map(|m| pod::uid(m).to_owned());
                self.statuses.mirrored(pod::uid(w), shown);
            }
            let outcome = match (action, &wanted, &mirror) {
                (MirrorAction::Create, Some(w), _) => self.create(w).await,
                // The watch then reports the deletion, after which the new mirror is created.
                (MirrorAction::Delete, _, Some(m)) => self.delete(m).await,
                _ => Ok(()),
            };
            if let Err(why) = outcome {
                tracing::warn!(pod = %format!("{}/{}", n.0, n.1), why, "updating the mirror pod failed; retrying");
                fine = false;
            }
        }
        fine
    }

    async fn create(&self, pod: &Pod) -> Result<(), String> {
        let node = self.node.borrow().clone().ok_or("the node is not registered yet")?;
        match self.client.create::<Pod>(pod::namespace(pod), &mirror(pod, &node)).await {
            Ok(made) => {
                // The watch may be late; until then use the created pod.
                self.statuses.mirrored(pod::uid(pod), made.metadata.uid.clone());
                self.inbox.0.state.lock().mirrors.insert(name(pod), Arc::new(made));
                Ok(())
            }
            Err(e) if e.is_already_exists() => self.is_there(pod).await,
            Err(e) => Err(e.to_string()),
        }
    }

    /// Checks whether the existing pod of this name is the mirror; the watch then reports it.
    ///
    /// # Errors
    /// Another pod has the name. Creating the mirror is retried until that pod is gone.
    async fn is_there(&self, pod: &Pod) -> Result<(), String> {
        let there = self.client.get::<Pod>(pod::namespace(pod), pod::name(pod)).await.map_err(|e| e.to_string())?;
        let hash = |p: &Pod, key: &str| p.metadata.annotations.as_ref().and_then(|a| a.get(key).cloned());
        if pod::is_mirror(&there) && hash(&there, pod::CONFIG_MIRROR) == hash(pod, pod::CONFIG_HASH) {
            return Ok(());
        }
        Err(format!("another pod has the name {} in namespace {}: delete it", pod::name(pod), pod::namespace(pod)))
    }

    async fn delete(&self, mirror: &Pod) -> Result<(), String> {
        let options = DeleteOptions::default().with_grace(0).with_uid(pod::uid(mirror));
        let gone = |e: &ClientError| e.is_not_found() || e.is_conflict();
        match self.client.delete::<Pod>(pod::namespace(mirror), pod::name(mirror), &options).await {
            Err(e) if !gone(&e) => Err(e.to_string()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(key: &str, hash: &str) -> Pod {
        serde_json::from_value(json!({"metadata":{"name":"p-n","namespace":"x","uid":"u",
            "annotations":{key: hash}},"spec":{"containers":[]}}))
        .expect("pod")
    }

    #[test]
    fn actions_for_one_mirror_pod() {
        let (wanted, mine) = (pod(pod::CONFIG_HASH, "1"), pod(pod::CONFIG_MIRROR, "1"));
        let old = pod(pod::CONFIG_MIRROR, "0");
        let mut leaving = mine.clone();
        leaving.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("time");
        assert_eq!(decide(Some(&wanted), None, false), MirrorAction::Create);
        assert_eq!(decide(Some(&wanted), Some(&mine), true), MirrorAction::Nothing);
        assert_eq!(decide(Some(&wanted), Some(&old), false), MirrorAction::Delete);
        assert_eq!(
            decide(Some(&wanted), Some(&leaving), true),
            MirrorAction::Delete,
            "a deleted mirror is created again"
        );
        assert_eq!(decide(None, Some(&mine), true), MirrorAction::Delete);
        assert_eq!(decide(None, Some(&mine), false), MirrorAction::Nothing, "its manifest may not have been read yet");
        assert_eq!(decide(None, None, true), MirrorAction::Nothing);
    }

    #[test]
    fn a_mirror_belongs_to_its_node() {
        let mut node = Node::default();
        (node.metadata.name, node.metadata.uid) = (Some("n".into()), Some("node-uid".into()));
        let m = mirror(&pod(pod::CONFIG_HASH, "1"), &node);
        assert!(pod::is_mirror(&m) && m.metadata.uid.is_none());
        let owner = &m.metadata.owner_references.expect("owners")[0];
        assert_eq!((owner.kind.as_str(), owner.uid.as_str(), owner.controller), ("Node", "node-uid", Some(true)));
    }
}
