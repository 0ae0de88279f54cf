//! Follows the objects of priority and fairness: creates and updates the default ones, configures flow control, and writes the
//! `Dangling`
//! condition of flow schemas.
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use http::Method;
use kelson_flowcontrol::objects::{self, DesiredObject, GROUP};
use kelson_flowcontrol::{Dangling, FlowControl, FlowSchema, PriorityLevelConfiguration};
use kelson_meta::Status;
use kelson_store::{Resource, StoreError};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::bootstrap::client::SelfClient;
use crate::catalog::record::parse;
use crate::shared::Server;
use crate::shared::start_steps::StartStep;

const SCHEMAS: &str = "flowschemas";
const LEVELS: &str = "prioritylevelconfigurations";

/// Pause after the store could not be watched.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

fn path(resource: &str) -> String {
    format!("/apis/{GROUP}/v1/{resource}")
}

/// Creates missing default objects and configures flow control, before the first request is served.
pub async fn begin(server: &Arc<Server>) {
    let own = SelfClient::new(server);
    join_all(objects::wanted().iter().map(|wanted| keep(server, &own, wanted))).await;
    remove_unwanted(server, &own).await;
    server.health.steps.finish(&[StartStep::FairnessConfigProducer]);
    configure(server, &own).await;
    server.health.steps.finish(&[StartStep::FairnessConfigConsumer]);
}

/// Runs until the server stops.
pub async fn follow(server: Arc<Server>) {
    let own = SelfClient::new(&server);
    loop {
        let revision = server.store.current_revision();
        let watch = |plural| server.store.watch(Resource::new(GROUP, plural), revision);
        let (schemas, levels) = (watch(SCHEMAS), watch(LEVELS));
        join_all(objects::wanted().iter().map(|wanted| keep(&server, &own, wanted))).await;
        configure(&server, &own).await;
        let (Ok(mut schemas), Ok(mut levels)) = (schemas, levels) else {
            tokio::time::sleep(AGAIN_AFTER).await;
            continue;
        };
        let changed = tokio::select! {
            changed = schemas.next() => changed,
            changed = levels.next() => changed,
        };
        if matches!(changed, Err(StoreError::Closed)) {
            return;
        }
    }
}

/// Lets priority levels borrow seats from each other. Runs until the server stops.
pub async fn adjust(control: Arc<FlowControl>) {
    control.run().await;
}

fn read<T: DeserializeOwned>(server: &Server, plural: &str) -> Vec<T> {
    let view = server.store.list(Resource::new(GROUP, plural), None, None, None);
    view.iter().filter_map(|record| kelson_meta::from_json(&record.bytes()).ok()).collect()
}

async fn configure(server: &Server, own: &SelfClient) {
    let Some(control) = &server.fairness else { return };
    let levels: Vec<PriorityLevelConfiguration> = read(server, LEVELS);
    let schemas: Vec<FlowSchema> = read(server, SCHEMAS);
    let wanted = control.configure(&levels, &schemas);
    // Concurrently, so that the store commits them in few batches.
    let updates = wanted.iter().map(|dangling| async move {
        if let Err(error) = write_dangling(server, own, dangling).await
            && !matches!(error.code, 404 | 409)
        {
            tracing::warn!(schema = dangling.schema, %error, "failed to update the condition of a flow schema");
        }
    });
    join_all(updates).await;
}

/// Writes the condition `Dangling`.
async fn write_dangling(server: &Server, own: &SelfClient, dangling: &Dangling) -> Result<(), Status> {
    let at = format!("{}/{}", path(SCHEMAS), dangling.schema);
    let mut schema = own.call(Method::GET, &at, &Value::Null).await?;
    let condition = json!({
        "type": "Dangling",
        "status": if dangling.dangling { "True" } else { "False" },
        "reason": dangling.reason,
        "message": dangling.message,
        "lastTransitionTime": kelson_meta::format_seconds(server.clock.now()),
    });
    let mut conditions = schema["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|c| c["type"] != "Dangling");
    conditions.push(condition);
    schema["status"] = json!({"conditions": conditions});
    own.call(Method::PUT, &format!("{at}/status"), &schema).await.map(drop)
}

/// Creates a default object, or updates it if this server still manages it.
async fn keep(server: &Server, own: &SelfClient, wanted: &DesiredObject) {
    let stored = server.store.get(Resource::new(GROUP, wanted.resource), "", wanted.name());
    let result = match stored {
        None => own.call(Method::POST, &path(wanted.resource), &wanted.object).await,
        Some(record) => {
            // The store may have another version; the update uses the API's.
            let at = format!("{}/{}", path(wanted.resource), wanted.name());
            if wanted.revise(&parse(&record)).is_none() {
                return;
            }
            match own.call(Method::GET, &at, &Value::Null).await {
                Ok(shown) => match wanted.revise(&shown) {
                    Some(revised) => own.call(Method::PUT, &at, &revised).await,
                    None => return,
                },
                Err(error) => Err(error),
            }
        }
    };
    if let Err(error) = result
        && !matches!(error.code, 404 | 409)
    {
        tracing::warn!(name = wanted.name(), %error, "failed to create or update a default object of priority and fairness");
    }
}

/// Deletes default objects of earlier versions of this server.
async fn remove_unwanted(server: &Server, own: &SelfClient) {
    let wanted = objects::wanted();
    for plural in [SCHEMAS, LEVELS] {
        let view = server.store.list(Resource::new(GROUP, plural), None, None, None);
        for record in view.iter() {
            let name = &record.key().name;
            let known = wanted.iter().any(|w| w.resource == plural && w.name() == &**name);
            if !known && objects::is_kept(&parse(record)) {
                let _ = own.call(Method::DELETE, &format!("{}/{name}", path(plural)), &Value::Null).await;
            }
        }
    }
}
