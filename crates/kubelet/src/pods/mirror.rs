//! Shows static pods in the API: one mirror pod for each, made again when somebody deletes it, removed with its manifest.
//! The status writer is told which mirror stands for which pod (upstream: `pkg/kubelet/pod/mirror_client.go`).
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kelson_client::{Client, ClientError, DeleteOptions};
use tokio::sync::{mpsc, watch};

use crate::pod;
use crate::status::writer::StatusWriter;

/// Before a call that failed is made again.
const RETRY: Duration = Duration::from_secs(5);

/// What the keeper hears.
#[derive(Debug)]
pub enum News {
    /// These are all static pods.
    Wanted(Vec<Arc<Pod>>),
    /// The API has this mirror pod.
    Seen(Arc<Pod>),
    /// The API has it no more.
    Gone(Arc<Pod>),
    /// The API has been read whole.
    Synced,
}

type Name = (String, String);

fn name(pod: &Pod) -> Name {
    (pod::namespace(pod).to_owned(), pod::name(pod).to_owned())
}

/// What to do about one name.
#[derive(Debug, PartialEq)]
enum Deed {
    Nothing,
    Create,
    Delete,
}

fn decide(wanted: Option<&Pod>, mirror: Option<&Pod>) -> Deed {
    match (wanted, mirror) {
        (None, None) => Deed::Nothing,
        (None, Some(_)) => Deed::Delete,
        (Some(_), None) => Deed::Create,
        (Some(w), Some(m)) => {
            let shows = pod::annotation(m, pod::CONFIG_MIRROR) == pod::annotation(w, pod::CONFIG_HASH);
            if shows && !pod::is_deleted(m) { Deed::Nothing } else { Deed::Delete }
        }
    }
}

/// The mirror of a static pod on a node.
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

/// The keeper's task.
pub struct Keeper {
    client: Client,
    node: watch::Receiver<Option<Arc<Node>>>,
    statuses: StatusWriter,
    wanted: HashMap<Name, Arc<Pod>>,
    mirrors: HashMap<Name, Arc<Pod>>,
    synced: bool,
}

impl Keeper {
    /// A keeper that has not run yet.
    pub fn new(client: Client, node: watch::Receiver<Option<Arc<Node>>>, statuses: StatusWriter) -> Self {
        Self { client, node, statuses, wanted: HashMap::new(), mirrors: HashMap::new(), synced: false }
    }

    /// Runs until nobody can tell it anything more.
    pub async fn run(mut self, mut news: mpsc::UnboundedReceiver<News>) {
        let mut again = false;
        loop {
            let heard = match again {
                true => tokio::time::timeout(RETRY, news.recv()).await,
                false => Ok(news.recv().await),
            };
            match heard {
                Ok(None) => return,
                Ok(Some(n)) => {
                    self.take(n);
                    while let Ok(n) = news.try_recv() {
                        self.take(n);
                    }
                }
                Err(_) => {}
            }
            again = self.synced && !self.reconcile().await;
        }
    }

    fn take(&mut self, news: News) {
        match news {
            News::Wanted(pods) => self.wanted = pods.into_iter().map(|p| (name(&p), p)).collect(),
            News::Seen(pod) => drop(self.mirrors.insert(name(&pod), pod)),
            News::Gone(pod) => drop(self.mirrors.remove(&name(&pod))),
            News::Synced => self.synced = true,
        }
    }

    /// Brings every name further; false when something failed and must be tried again.
    async fn reconcile(&mut self) -> bool {
        let mut names: Vec<Name> = self.wanted.keys().chain(self.mirrors.keys()).cloned().collect();
        names.sort();
        names.dedup();
        let mut fine = true;
        for n in names {
            let (wanted, mirror) = (self.wanted.get(&n).cloned(), self.mirrors.get(&n).cloned());
            let deed = decide(wanted.as_deref(), mirror.as_deref());
            if let Some(w) = &wanted {
                let shown = mirror.as_ref().filter(|_| deed == Deed::Nothing).map(|m| pod::uid(m).to_owned());
                self.statuses.mirrored(pod::uid(w), shown);
            }
            let outcome = match (deed, &wanted, &mirror) {
                (Deed::Create, Some(w), _) => self.create(w).await,
                // What the watch tells then leads to the new one.
                (Deed::Delete, _, Some(m)) => self.delete(m).await,
                _ => Ok(()),
            };
            if let Err(why) = outcome {
                tracing::warn!(pod = %format!("{}/{}", n.0, n.1), why, "mirror pod not brought up to date yet");
                fine = false;
            }
        }
        fine
    }

    async fn create(&mut self, pod: &Pod) -> Result<(), String> {
        let node = self.node.borrow().clone().ok_or("the node is not registered yet")?;
        match self.client.create::<Pod>(pod::namespace(pod), &mirror(pod, &node)).await {
            Ok(made) => {
                // The watch may take its time; until then this one counts.
                self.statuses.mirrored(pod::uid(pod), made.metadata.uid.clone());
                self.mirrors.insert(name(pod), Arc::new(made));
                Ok(())
            }
            Err(e) if e.is_already_exists() => Ok(()),
            Err(e) => Err(e.to_string()),
        }
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
    fn deeds() {
        let (wanted, mine) = (pod(pod::CONFIG_HASH, "1"), pod(pod::CONFIG_MIRROR, "1"));
        let old = pod(pod::CONFIG_MIRROR, "0");
        let mut leaving = mine.clone();
        leaving.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("time");
        assert_eq!(decide(Some(&wanted), None), Deed::Create);
        assert_eq!(decide(Some(&wanted), Some(&mine)), Deed::Nothing);
        assert_eq!(decide(Some(&wanted), Some(&old)), Deed::Delete);
        assert_eq!(decide(Some(&wanted), Some(&leaving)), Deed::Delete, "somebody deletes it: a new one follows");
        assert_eq!(decide(None, Some(&mine)), Deed::Delete);
        assert_eq!(decide(None, None), Deed::Nothing);
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
