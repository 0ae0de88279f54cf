//! Metadata watches of kinds that quotas count by number, including custom resources. A watch starts when a quota first
//! names the kind, and serves to detect deletions.
use std::collections::HashMap;
use std::time::Duration;

use kelson_client::{Change, Client, Informer, InformerConfig, InformerHandle, ResourceType, slim_object};
use kelson_quota::Evaluator;
use kelson_tasks::Tasks;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::Instant;

use super::replenish::Replenish;
use crate::shared::context::SyncError;
use crate::shared::discovery::{ApiResource, discover};

/// The minimum interval of discovery for a kind that is not served.
const REDISCOVER: Duration = Duration::from_secs(30);
/// The maximum number of watched kinds.
const WATCHES_MAX: usize = 256;

/// An object of any kind, by name.
#[derive(Deserialize)]
struct Counted {
    metadata: CountedMeta,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CountedMeta {
    name: Box<str>,
    namespace: Box<str>,
    uid: Box<str>,
    resource_version: Box<str>,
}

// The type is used only in messages; the path comes from discovery.
slim_object!(Counted, ResourceType::namespaced("meta.k8s.io", "v1", "partialobjectmetadata", "PartialObjectMetadata"));

#[derive(Default)]
struct DiscoveryCache {
    resources: Vec<ApiResource>,
    read: Option<Instant>,
}

/// Served kinds, and the watches of those that quotas count.
pub struct Watches {
    client: Client,
    tasks: Tasks,
    replenish: Replenish,
    known: tokio::sync::Mutex<DiscoveryCache>,
    running: Mutex<HashMap<(String, String), InformerHandle<Counted>>>,
}

impl Watches {
    /// Returns the watches, none of them started.
    pub fn new(client: Client, tasks: Tasks, replenish: Replenish) -> Self {
        let (known, running) = (tokio::sync::Mutex::default(), Mutex::default());
        Self { client, tasks, replenish, known, running }
    }

    /// Returns the path of a kind's objects in a namespace and starts a watch. Returns `None` if no namespaced resource
    /// with this name is served.
    pub async fn path(
        &self,
        evaluator: &Evaluator,
        group: &str,
        plural: &str,
        namespace: &str,
    ) -> Result<Option<String>, SyncError> {
        let Some(resource) = self.find(group, plural).await? else { return Ok(None) };
        // The others are watched by shared informers.
        if matches!(evaluator, Evaluator::Count(_) | Evaluator::DeviceClaims(_)) {
            self.watch(evaluator, &resource);
        }
        Ok(Some(resource.path(namespace)))
    }

    async fn find(&self, group: &str, plural: &str) -> Result<Option<ApiResource>, SyncError> {
        let mut known = self.known.lock().await;
        let of = |known: &DiscoveryCache| {
            let found = known.resources.iter().find(|r| r.group == group && r.plural == plural);
            found.filter(|r| r.namespaced && r.serves(&["list", "watch"])).cloned()
        };
        let found = of(&known);
        if found.is_some() || known.read.is_some_and(|at| at.elapsed() < REDISCOVER) {
            return Ok(found);
        }
        known.resources = discover(&self.client).await?.resources;
        known.read = Some(Instant::now());
        Ok(of(&known))
    }

    fn watch(&self, evaluator: &Evaluator, resource: &ApiResource) {
        let mut running = self.running.lock();
        let key = (resource.group.clone(), resource.plural.clone());
        if running.contains_key(&key) || running.len() >= WATCHES_MAX {
            return;
        }
        let (evaluator, replenish) = (evaluator.clone(), self.replenish.clone());
        let informer = Informer::<Counted>::new(self.client.clone(), InformerConfig::default())
            .metadata_at(resource.path(""))
            .on_change(move |change| {
                if matches!(change, Change::Deleted(_)) {
                    replenish.announce(&evaluator, &change.object().metadata.namespace);
                }
            });
        running.insert(key, informer.start_in(&self.tasks));
    }
}
