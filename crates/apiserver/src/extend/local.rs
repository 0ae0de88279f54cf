//! Maintains the APIServices of group versions from definitions, which are created and deleted with them.
use std::collections::BTreeSet;
use std::sync::Arc;

use http::Method;
use serde_json::Value;

use crate::aggregate::local::{DEFINITION_PRIORITIES, MANAGED, PATH, service};
use crate::aggregate::registry::{GROUP, PLURAL};
use crate::bootstrap::client::SelfClient;
use crate::catalog::record::parse;
use crate::shared::Server;

/// Runs until the server stops.
pub async fn follow(server: Arc<Server>) {
    let own = SelfClient::new(&server);
    let mut changed = server.definitions.subscribe();
    loop {
        keep(&server, &own).await;
        if changed.changed().await.is_err() {
            return;
        }
    }
}

async fn keep(server: &Server, own: &SelfClient) {
    let wanted = server.definitions.group_versions();
    let mut have = BTreeSet::new();
    let view = server.store.list(kelson_store::Resource::new(GROUP, PLURAL), None, None, None);
    for record in view.iter() {
        let object = parse(record);
        let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
        let place = (text(&object["spec"]["group"]), text(&object["spec"]["version"]));
        let managed = object["metadata"]["labels"][MANAGED] == "true";
        if managed && !wanted.contains(&place) {
            call(own, Method::DELETE, &format!("{PATH}/{}", record.key().name), &Value::Null).await;
            continue;
        }
        have.insert(place);
    }
    for (group, version) in wanted.difference(&have) {
        call(own, Method::POST, PATH, &service(group, version, DEFINITION_PRIORITIES, "true")).await;
    }
}

async fn call(own: &SelfClient, method: Method, path: &str, body: &Value) {
    match own.call(method, path, body).await {
        Err(status) if !matches!(status.code, 404 | 409) => {
            tracing::warn!(path, %status, "failed to update the APIService of a definition");
        }
        _ => {}
    }
}
