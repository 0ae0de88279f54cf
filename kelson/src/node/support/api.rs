//! What is collected from the API and from the components' metrics, each within a limit of time.
use std::time::Duration;

use bytes::Bytes;
use kelson_client::Client;
use serde_json::Value;
use thiserror::Error;

use super::archive::{ALL_BYTES_MAX, Archive};
use super::redact;
use crate::ask::{self, AskError};

/// The time that one answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// The limit of listed objects of a kind.
const OBJECTS_MAX: usize = 2000;

/// Answers that are text.
const TEXTS: &[(&str, &str)] = &[
    ("api/version.json", "/version"),
    ("api/readyz.txt", "/readyz?verbose"),
    ("api/livez.txt", "/livez?verbose"),
    ("metrics/apiserver.txt", "/metrics"),
];

/// Lists of objects. No Secrets, and no ConfigMaps, which hold whatever their users put there.
const LISTS: &[(&str, &str)] = &[
    ("api/nodes.json", "/api/v1/nodes"),
    ("api/namespaces.json", "/api/v1/namespaces"),
    ("api/pods.json", "/api/v1/pods"),
    ("api/services.json", "/api/v1/services"),
    ("api/endpointslices.json", "/apis/discovery.k8s.io/v1/endpointslices"),
    ("api/persistentvolumeclaims.json", "/api/v1/persistentvolumeclaims"),
    ("api/persistentvolumes.json", "/api/v1/persistentvolumes"),
    ("api/deployments.json", "/apis/apps/v1/deployments"),
    ("api/daemonsets.json", "/apis/apps/v1/daemonsets"),
    ("api/statefulsets.json", "/apis/apps/v1/statefulsets"),
    ("api/apiservices.json", "/apis/apiregistration.k8s.io/v1/apiservices"),
    ("api/leases.json", "/apis/coordination.k8s.io/v1/leases"),
    ("api/events.json", "/api/v1/events"),
];

/// Collects all of it.
///
/// # Errors
/// The archive cannot be written. What the API does not answer is noted in it.
pub async fn collect(client: &Client, archive: &mut Archive) -> std::io::Result<()> {
    for (name, path) in TEXTS {
        match text(client, path).await {
            Ok(bytes) => archive.add(name, &String::from_utf8_lossy(&bytes))?,
            Err(why) => archive.miss(name, &why),
        }
    }
    let mut nodes = Vec::new();
    for (name, path) in LISTS {
        match list(client, path).await {
            Ok(list) => {
                if *path == "/api/v1/nodes" {
                    nodes = names(&list);
                }
                archive.add(name, &format!("{list:#}"))?;
            }
            Err(why) => archive.miss(name, &why),
        }
    }
    // A few nodes are enough; the bundle is bounded.
    for node in nodes.iter().take(5) {
        let name = format!("metrics/kubelet-{node}.txt");
        match text(client, &format!("/api/v1/nodes/{node}/proxy/metrics")).await {
            Ok(bytes) => archive.add(&name, &String::from_utf8_lossy(&bytes))?,
            Err(why) => archive.miss(&name, &why),
        }
    }
    Ok(())
}

/// Why an answer of the API is not in the bundle.
#[derive(Debug, Error)]
enum AnswerError {
    /// There is none.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// It is larger than the bundle may be.
    #[error("the answer has {0} bytes")]
    TooLarge(usize),
    /// It is not JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

async fn text(client: &Client, path: &str) -> Result<Bytes, AnswerError> {
    let bytes = ask::get(client, path, ANSWER_MAX).await?;
    if bytes.len() > ALL_BYTES_MAX { Err(AnswerError::TooLarge(bytes.len())) } else { Ok(bytes) }
}

async fn list(client: &Client, path: &str) -> Result<Value, AnswerError> {
    let bytes = text(client, &format!("{path}?limit={OBJECTS_MAX}")).await?;
    let mut list: Value = serde_json::from_slice(&bytes)?;
    redact::object(&mut list);
    Ok(list)
}

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().into_iter().flatten();
    items.filter_map(|item| item["metadata"]["name"].as_str().map(str::to_owned)).collect()
}
