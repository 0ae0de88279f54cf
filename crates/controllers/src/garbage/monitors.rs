//! Watches every kind that can be deleted, as metadata alone, and keeps the graph up to date. Kinds that come and go with
//! custom resource definitions are followed: a change of those calls for a new look at discovery.
use std::collections::HashMap;
use std::sync::Arc;

use kelson_client::{Change, Client, Informer, InformerConfig, InformerHandle, ResourceType, slim_object};
use kelson_meta::OwnerReference;
use kelson_tasks::Tasks;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::Notify;

use super::graph::{Graph, Node, Work};
use crate::shared::discovery::ApiResource;
use crate::views::uid_number;

/// Kinds whose objects never own nor are owned, and are many.
const IGNORED: &[(&str, &str)] = &[("", "events"), ("events.k8s.io", "events")];
/// Kinds whose change means that other kinds come or go.
const DEFINITIONS: &[(&str, &str)] =
    &[("apiextensions.k8s.io", "customresourcedefinitions"), ("apiregistration.k8s.io", "apiservices")];

/// Metadata of an object of any kind.
#[derive(Deserialize)]
pub struct MetaView {
    metadata: SlimMeta,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SlimMeta {
    name: Box<str>,
    namespace: Box<str>,
    uid: Box<str>,
    resource_version: Box<str>,
    deletion_timestamp: Option<Box<str>>,
    owner_references: Box<[OwnerReference]>,
    finalizers: Vec<String>,
}

// Only for messages: the path comes from discovery.
slim_object!(MetaView, ResourceType::namespaced("meta.k8s.io", "v1", "partialobjectmetadata", "PartialObjectMetadata"));

/// Resources by number; numbers are never used again.
#[derive(Default)]
pub struct Resources {
    all: Vec<Arc<ApiResource>>,
}

impl Resources {
    fn number(&mut self, r: &ApiResource) -> u16 {
        let at = self.all.iter().position(|have| **have == *r).unwrap_or_else(|| {
            self.all.push(Arc::new(r.clone()));
            self.all.len() - 1
        });
        u16::try_from(at).unwrap_or(u16::MAX)
    }
    /// The resource of a number.
    pub fn get(&self, number: u16) -> Option<Arc<ApiResource>> {
        self.all.get(usize::from(number)).cloned()
    }
    /// The resource an owner reference means, whatever version of the group it names.
    pub fn of_kind(&self, api_version: &str, kind: &str) -> Option<Arc<ApiResource>> {
        let group = api_version.split_once('/').map_or("", |(g, _)| g);
        self.all.iter().rev().find(|r| r.group == group && r.kind == kind).cloned()
    }
}

/// The graph and what feeds it.
pub struct Monitors {
    client: Client,
    tasks: Tasks,
    /// Who owns whom.
    pub graph: Arc<Mutex<Graph>>,
    /// What is served and can be listed, watched and deleted, as discovery last said.
    pub resources: Mutex<Resources>,
    running: Mutex<HashMap<u16, InformerHandle<MetaView>>>,
    /// Woken when discovery should be read again.
    pub refresh: Arc<Notify>,
    on_work: Arc<dyn Fn(Work) + Send + Sync>,
}

impl Monitors {
    /// None running yet. `on_work` is called for what a change of the graph calls for.
    pub fn new(client: Client, tasks: Tasks, on_work: Arc<dyn Fn(Work) + Send + Sync>) -> Self {
        Self {
            client,
            tasks,
            graph: Arc::default(),
            resources: Mutex::default(),
            running: Mutex::default(),
            refresh: Arc::default(),
            on_work,
        }
    }

    /// Starts watches of new kinds and ends those of kinds that are gone.
    pub fn follow(&self, served: &[ApiResource]) {
        let wanted = served.iter().filter(|r| {
            r.serves(&["delete", "list", "watch"]) && !IGNORED.contains(&(r.group.as_str(), r.plural.as_str()))
        });
        let mut keep = Vec::new();
        for r in wanted {
            let number = self.resources.lock().number(r);
            keep.push(number);
            if !self.running.lock().contains_key(&number) {
                let handle = self.watch(number, r);
                self.running.lock().insert(number, handle);
            }
        }
        let mut ended = Vec::new();
        self.running.lock().retain(|n, _| {
            let stays = keep.contains(n);
            if !stays {
                ended.push(*n);
            }
            stays
        });
        for n in ended {
            let gone = self.graph.lock().of_resource(n);
            for uid in gone {
                let work = self.graph.lock().remove(uid);
                (self.on_work)(work);
            }
        }
    }

    fn watch(&self, number: u16, r: &ApiResource) -> InformerHandle<MetaView> {
        let (graph, on_work, refresh) = (Arc::clone(&self.graph), Arc::clone(&self.on_work), Arc::clone(&self.refresh));
        let defines = DEFINITIONS.contains(&(r.group.as_str(), r.plural.as_str()));
        Informer::<MetaView>::new(self.client.clone(), InformerConfig::default())
            .metadata_at(r.path(""))
            .on_change(move |change| {
                let m = &change.object().metadata;
                let uid = uid_number(&m.uid);
                let work = if matches!(change, Change::Deleted(_)) {
                    graph.lock().remove(uid)
                } else {
                    let deleting = m.deletion_timestamp.is_some();
                    let node = Node::new(number, &m.namespace, &m.name, &m.owner_references, deleting, &m.finalizers);
                    graph.lock().observe(uid, node)
                };
                on_work(work);
                if defines {
                    refresh.notify_one();
                }
            })
            .start_in(&self.tasks)
    }

    /// Waits until every running watch has read its initial state.
    pub async fn synced(&self) {
        let all: Vec<_> = self.running.lock().values().cloned().collect();
        for h in all {
            h.synced().await;
        }
    }
}
