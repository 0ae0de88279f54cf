//! Maintains the APIServices of group versions from definitions, which are created and deleted with them, and that of resource metrics,
//! unless it names another server.
use std::collections::BTreeSet;
use std::sync::Arc;

use http::Method;
use serde_json::Value;

use crate::aggregate::local::{DEFINITION_PRIORITIES, MANAGED, PATH, service};
use crate::aggregate::registry::{GROUP, PLURAL};
use crate::bootstrap::client::SelfClient;
use crate::catalog::record::parse;
use crate::shared::Server;
use crate::usage;

/// Runs until the server stops.
pub async fn follow(server: Arc<Server>) {
    let own = SelfClient::new(&server);
    let mut definitions = server.definitions.subscribe();
    let mut services = server.aggregation.subscribe();
    loop {
        keep(&server, &own).await;
        let changed = tokio::select! {
            changed = definitions.changed() => changed,
            changed = services.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

async fn keep(server: &Server, own: &SelfClient) {
    let mut wanted = server.definitions.group_versions();
    let usage = (usage::GROUP.to_owned(), usage::VERSION.to_owned());
    if server.usage.is_some() {
        wanted.insert(usage.clone());
    }
    let mut have = BTreeSet::new();
    let view = server.store.list(kelson_store::Resource::new(GROUP, PLURAL), None, None, None);
    for record in view.iter() {
        let object = parse(record);
        let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
        let place = (text(&object["spec"]["group"]), text(&object["spec"]["version"]));
        // One that names another server is a user's, also if it was made from one of this server.
        let managed = object["metadata"]["labels"][MANAGED] == "true" && object["spec"]["service"].is_null();
        if managed && !wanted.contains(&place) {
            call(own, Method::DELETE, &format!("{PATH}/{}", record.key().name), &Value::Null).await;
            continue;
        }
        have.insert(place);
    }
    for place in wanted.difference(&have) {
        let priorities = if *place == usage { usage::PRIORITIES } else { DEFINITION_PRIORITIES };
        call(own, Method::POST, PATH, &service(&place.0, &place.1, priorities, "true")).await;
    }
}

async fn call(own: &SelfClient, method: Method, path: &str, body: &Value) {
    match own.call(method, path, body).await {
        Err(status) if !matches!(status.code, 404 | 409) => {
            tracing::warn!(path, %status, "failed to update the APIService of a group version");
        }
        _ => {}
    }
}
