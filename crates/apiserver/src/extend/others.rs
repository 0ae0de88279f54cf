//! Follows changes by other servers on a shared storage: this server serves definitions and routes APIServices that they wrote as if
//! they had been written here. Without a shared storage there is nothing to follow.
use std::sync::Arc;
use std::time::Duration;

use kelson_store::{EventKind, Record, Resource};

use crate::aggregate::registry as aggregation;
use crate::custom::registrar as definitions;
use crate::shared::Server;

/// Pause after the log could not be followed.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Applies changes of one resource.
trait Observer {
    /// All known names.
    fn names(&self) -> Vec<String>;
    /// An object was created or updated. Also called for writes of this server.
    fn written(&self, record: &Arc<Record>);
    /// An object was deleted.
    fn deleted(&self, name: &str, record: Option<&Record>);
}

struct DefinitionLookup<'a>(&'a Server);

impl Observer for DefinitionLookup<'_> {
    fn names(&self) -> Vec<String> {
        self.0.definitions.names()
    }
    fn written(&self, record: &Arc<Record>) {
        self.0.definitions.committed(record);
    }
    fn deleted(&self, name: &str, record: Option<&Record>) {
        match record {
            Some(record) => self.0.definitions.deleted(record),
            None => self.0.definitions.forget(name),
        }
    }
}

struct ApiServices<'a>(&'a Server);

impl Observer for ApiServices<'_> {
    fn names(&self) -> Vec<String> {
        self.0.aggregation.names()
    }
    fn written(&self, record: &Arc<Record>) {
        self.0.aggregation.committed(record);
    }
    fn deleted(&self, name: &str, _: Option<&Record>) {
        self.0.aggregation.forget(name);
    }
}

/// Runs until the server stops.
pub async fn follow(server: Arc<Server>) {
    let of_definitions =
        each(&server, Resource::new(definitions::GROUP, definitions::PLURAL), DefinitionLookup(&server));
    let of_services = each(&server, Resource::new(aggregation::GROUP, aggregation::PLURAL), ApiServices(&server));
    tokio::join!(of_definitions, of_services);
}

async fn each(server: &Server, resource: Resource, observer: impl Observer) {
    while !server.tasks.token().is_cancelled() {
        let view = server.store.list(resource, None, None, None);
        let there = |name: &String| view.iter().any(|record| *record.key().name == **name);
        observer.names().iter().filter(|name| !there(name)).for_each(|name| observer.deleted(name, None));
        view.iter().for_each(|record| observer.written(record));
        // If the log cannot be followed, the objects are listed again.
        if let Ok(mut cursor) = server.store.watch(resource, view.revision()) {
            while let Ok(batch) = cursor.next().await {
                for event in &batch {
                    match event.kind {
                        EventKind::Deleted => observer.deleted(&event.record.key().name, Some(&event.record)),
                        EventKind::Added | EventKind::Modified => observer.written(&event.record),
                    }
                }
            }
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}
