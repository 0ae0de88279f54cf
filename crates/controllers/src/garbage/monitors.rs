//! Watches the metadata of every kind that can be deleted and updates the graph. A change of custom resource
//! definitions or API services triggers discovery, which adds and removes watches.
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures::FutureExt as _;
use kelson_client::{Change, Client, Informer, InformerConfig, InformerHandle, ResourceType, slim_object};
use kelson_meta::OwnerReference;
use kelson_tasks::Tasks;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::Notify;

use super::graph::{Graph, Node, Work};
use crate::shared::discovery::{ApiResource, Discovered};
use crate::views::uid_number;

/// Kinds without ownership and with many objects.
const IGNORED: &[(&str, &str)] = &[("", "events"), ("events.k8s.io", "events")];
/// Kinds whose changes add or remove other kinds.
const DEFINITIONS: &[(&str, &str)] =
    &[("apiextensions.k8s.io", "customresourcedefinitions"), ("apiregistration.k8s.io", "apiservices")];

/// The maximum number of remembered deleted definitions.
const UNDEFINED_MAX: usize = 10_000;

/// The metadata of an object of any kind.
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

// The type is used only in messages; the path comes from discovery.
slim_object!(MetaView, ResourceType::namespaced("meta.k8s.io", "v1", "partialobjectmetadata", "PartialObjectMetadata"));

/// Resources by number. Numbers are never reused.
#[derive(Default)]
pub struct Resources {
    all: Vec<Arc<ApiResource>>,
    /// Numbers of the resources that are served now.
    current: HashSet<u16>,
}

impl Resources {
    fn number(&mut self, r: &ApiResource) -> u16 {
        let at = self.all.iter().position(|have| **have == *r).unwrap_or_else(|| {
            self.all.push(Arc::new(r.clone()));
            self.all.len() - 1
        });
        u16::try_from(at).unwrap_or(u16::MAX)
    }
    /// Returns the resource with this number.
    pub fn get(&self, number: u16) -> Option<Arc<ApiResource>> {
        self.all.get(usize::from(number)).cloned()
    }
    /// Returns the served resource of an owner reference, in any version of its group.
    pub fn of_kind(&self, api_version: &str, kind: &str) -> Option<Arc<ApiResource>> {
        let group = api_version.split_once('/').map_or("", |(g, _)| g);
        let served = self.current.iter().filter_map(|n| self.all.get(usize::from(*n)));
        served.into_iter().find(|r| r.group == group && r.kind == kind).cloned()
    }
    /// Updates the served resources from discovery. Resources of a group version whose discovery failed are kept, since
    /// an owner that cannot be read still exists.
    fn take(&mut self, found: &Discovered) {
        let unread = |r: &ApiResource| found.failed.iter().any(|(gv, _)| *gv == r.group_version());
        let old = std::mem::take(&mut self.current);
        let kept: Vec<u16> =
            old.into_iter().filter(|n| self.all.get(usize::from(*n)).is_some_and(|r| unread(r))).collect();
        self.current.extend(&kept);
        for r in &found.resources {
            let same = |n: &u16| self.all[usize::from(*n)].is_same_collection(r);
            if !kept.iter().any(same) {
                let number = self.number(r);
                self.current.insert(number);
            }
        }
    }
}

/// The graph and the watches that feed it.
pub struct Monitors {
    client: Client,
    tasks: Tasks,
    /// The ownership graph.
    pub graph: Arc<Mutex<Graph>>,
    /// The served resources of the last discovery.
    pub resources: Mutex<Resources>,
    running: Mutex<HashMap<u16, InformerHandle<MetaView>>>,
    /// Names of deleted custom resource definitions, whose objects were all deleted before.
    undefined: Arc<Mutex<HashSet<String>>>,
    /// Notified when discovery should be read again.
    pub refresh: Arc<Notify>,
    on_work: Arc<dyn Fn(Work) + Send + Sync>,
}

impl Monitors {
    /// Returns monitors without watches. `on_work` receives the objects to process after each change of the graph.
    pub fn new(client: Client, tasks: Tasks, on_work: Arc<dyn Fn(Work) + Send + Sync>) -> Self {
        Self {
            client,
            tasks,
            graph: Arc::default(),
            resources: Mutex::default(),
            running: Mutex::default(),
            undefined: Arc::default(),
            refresh: Arc::default(),
            on_work,
        }
    }

    /// Starts watches of new kinds and stops those of removed kinds.
    pub fn follow(&self, found: &Discovered) {
        let keep: Vec<(u16, Arc<ApiResource>)> = {
            let mut resources = self.resources.lock();
            resources.take(found);
            let numbered = resources.current.iter().filter_map(|n| Some((*n, resources.get(*n)?)));
            numbered.filter(|(_, r)| is_monitored(r)).collect()
        };
        for (number, r) in &keep {
            if !self.running.lock().contains_key(number) {
                let handle = self.watch(*number, r);
                self.running.lock().insert(*number, handle);
            }
        }
        let mut ended = Vec::new();
        self.running.lock().retain(|n, _| {
            let stays = keep.iter().any(|(number, _)| number == n);
            if !stays {
                ended.push(*n);
            }
            stays
        });
        for n in ended {
            self.forget(n);
        }
    }

    /// Removes the objects of a resource that is no longer served. They count as deleted if their definition was
    /// deleted.
    fn forget(&self, number: u16) {
        let definition = self.resources.lock().get(number).map(|r| format!("{}.{}", r.plural, r.group));
        let gone = definition.is_some_and(|name| self.undefined.lock().contains(&name));
        let objects = self.graph.lock().of_resource(number);
        for uid in objects {
            let work = {
                let mut graph = self.graph.lock();
                if gone { graph.remove(uid) } else { graph.forget(uid) }
            };
            (self.on_work)(work);
        }
    }

    fn watch(&self, number: u16, r: &ApiResource) -> InformerHandle<MetaView> {
        let (graph, on_work, refresh) = (Arc::clone(&self.graph), Arc::clone(&self.on_work), Arc::clone(&self.refresh));
        let (group, kind) = (r.group.clone(), r.kind.clone());
        let undefined = Arc::clone(&self.undefined);
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
                    let owners = &m.owner_references;
                    let node =
                        Node::new(number, (&group, &kind), &m.namespace, &m.name, owners, deleting, &m.finalizers);
                    graph.lock().observe(uid, node)
                };
                on_work(work);
                if defines {
                    note_definition(&mut undefined.lock(), change);
                    refresh.notify_one();
                }
            })
            .start_in(&self.tasks)
    }

    /// Waits until every running watch has its initial list.
    pub async fn synced(&self) {
        let all: Vec<_> = self.running.lock().values().cloned().collect();
        for h in all {
            h.synced().await;
        }
    }

    /// Returns the resources without an initial list, as `PLURAL.GROUP`.
    pub fn unsynced(&self) -> Vec<String> {
        let running: Vec<_> = self.running.lock().iter().map(|(n, h)| (*n, h.clone())).collect();
        let waiting = running.into_iter().filter(|(_, h)| h.synced().now_or_never().is_none());
        let resources = self.resources.lock();
        let mut names: Vec<String> =
            waiting.filter_map(|(n, _)| resources.get(n)).map(|r| format!("{}.{}", r.plural, r.group)).collect();
        names.sort();
        names
    }
}

fn is_monitored(r: &ApiResource) -> bool {
    r.serves(&["delete", "list", "watch"]) && !IGNORED.contains(&(r.group.as_str(), r.plural.as_str()))
}

/// Records a deleted definition, up to the maximum number.
fn note_definition(undefined: &mut HashSet<String>, change: &Change<MetaView>) {
    let name = &change.object().metadata.name;
    if !matches!(change, Change::Deleted(_)) {
        undefined.remove(&**name);
    } else if undefined.len() < UNDEFINED_MAX {
        undefined.insert(name.to_string());
    }
}
