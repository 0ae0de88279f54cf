//! Tells in the status of validating policies what in their expressions does not fit the kinds they are for (upstream's
//! `validatingadmissionpolicy-status` controller). It is here because the schemas are.
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use kelson_admission::policies::type_check;
use kelson_store::Resource;
use serde_json::{Value, json};

use super::declared_types::Declared;
use crate::bootstrap::SelfClient;
use crate::catalog::record::parse;
use crate::shared::Server;

const GROUP: &str = "admissionregistration.k8s.io";
const PLURAL: &str = "validatingadmissionpolicies";
const PATH: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const MANAGER: &str = "validatingadmissionpolicy-status";
/// How long a status that could not be written waits for the next try.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Runs until the server ends.
pub async fn follow(server: Arc<Server>) {
    let own = SelfClient::new(&server);
    let policies = Resource::new(GROUP, PLURAL);
    loop {
        // What is written after this is seen by the cursor, or by the next look.
        let from = server.store.current_revision();
        let written = look(&server, &own).await;
        let changed = async {
            match server.store.watch(policies, from) {
                Ok(mut cursor) => cursor.next().await.is_ok(),
                Err(_) => false,
            }
        };
        let wait = if written { Duration::MAX } else { AGAIN_AFTER };
        if let Ok(false) = tokio::time::timeout(wait, changed).await {
            // The log does not reach back so far: the next look begins anew.
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }
}

/// Looks at all policies; `false` when one could not be written.
async fn look(server: &Arc<Server>, own: &SelfClient) -> bool {
    let mut all = true;
    let view = server.store.list(Resource::new(GROUP, PLURAL), None, None, None);
    let policies: Vec<Value> = view.iter().map(|record| parse(record)).filter(is_new).collect();
    drop(view);
    for policy in policies {
        all &= write(server, own, policy).await;
        tokio::task::yield_now().await;
    }
    all
}

/// Whether a policy has changed since it was looked at.
fn is_new(policy: &Value) -> bool {
    let generation = policy["metadata"]["generation"].as_i64().unwrap_or(0);
    generation > policy["status"]["observedGeneration"].as_i64().unwrap_or(0)
}

async fn write(server: &Arc<Server>, own: &SelfClient, mut policy: Value) -> bool {
    let warnings: Vec<Value> = type_check::check(&policy, &Declared(&server.catalog))
        .into_iter()
        .map(|w| json!({"fieldRef": w.field, "warning": w.warning}))
        .collect();
    let name = policy["metadata"]["name"].as_str().unwrap_or("").to_owned();
    if !policy["status"].is_object() {
        policy["status"] = json!({});
    }
    policy["status"]["observedGeneration"] = policy["metadata"]["generation"].clone();
    let told = if warnings.is_empty() { json!({}) } else { json!({"expressionWarnings": warnings}) };
    policy["status"]["typeChecking"] = told;
    policy["apiVersion"] = format!("{GROUP}/v1").into();
    policy["kind"] = "ValidatingAdmissionPolicy".into();
    let path = format!("{PATH}/{name}/status?fieldManager={MANAGER}");
    match own.call(Method::PUT, &path, &policy).await {
        Ok(_) => true,
        // It is gone.
        Err(status) if status.code == 404 => true,
        Err(status) => {
            if status.code != 409 {
                tracing::warn!(policy = name, %status, "the status of a policy could not be written");
            }
            false
        }
    }
}
