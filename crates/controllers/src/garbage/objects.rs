//! Reads single objects of any kind. A kind that fails (its conversion webhook is away, its server is down) is asked once in a
//! while, so that it delays no objects of other kinds.
use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use kelson_client::{Client, ClientError, METADATA_ONLY, TransportError};
use kelson_meta::ObjectMeta;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::Instant;

use crate::shared::context::SyncError;
use crate::shared::discovery::{ApiResource, discover};

/// A kind that failed is asked again after this.
const FAILING_PAUSE: Duration = Duration::from_secs(5);

/// One answer is waited for so long: as long as a conversion webhook may take.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// What is at the path of an object.
pub enum Found {
    Object(Box<ObjectMeta>),
    /// The kind is served, and has no such object.
    Absent,
    /// Nothing is served there.
    Unserved,
}

#[derive(Deserialize)]
struct Live {
    metadata: ObjectMeta,
}

/// Reads objects; see the module.
pub struct Objects {
    client: Client,
    /// When a collection that failed may be asked again, by its path. Bounded by the number of kinds.
    failing: Mutex<HashMap<String, Instant>>,
}

impl Objects {
    pub fn new(client: Client) -> Self {
        Self { client, failing: Mutex::default() }
    }

    /// The metadata of one object.
    ///
    /// # Errors
    /// The request failed, or one of the kind failed a short time ago.
    pub async fn get(&self, resource: &ApiResource, namespace: &str, name: &str) -> Result<Found, SyncError> {
        let collection = resource.path("");
        let now = Instant::now();
        if let Some(next) = self.failing.lock().get_mut(&collection) {
            if *next > now {
                let text = format!("{collection} failed recently and is not queried yet");
                return Err(SyncError::Logged(text));
            }
            // The others wait for what comes of this one.
            *next = now + ANSWER_MAX;
        }
        let path = resource.object_path(namespace, name);
        let asked = async {
            Client::read(self.client.raw_accepting(Method::GET, &path, "", METADATA_ONLY, Bytes::new()).await?).await
        };
        let answer = tokio::time::timeout(ANSWER_MAX, asked).await;
        let answer = answer.unwrap_or_else(|_| Err(TransportError(format!("timed out after {ANSWER_MAX:?}")).into()));
        let fails = answer.as_ref().is_err_and(is_of_the_kind);
        if fails {
            // The request may have waited for its answer until now.
            self.failing.lock().insert(collection, Instant::now() + FAILING_PAUSE);
        } else {
            self.failing.lock().remove(&collection);
        }
        match answer {
            Ok(bytes) => {
                let live: Live =
                    serde_json::from_slice(&bytes).map_err(|e| ClientError::Decode(format!("{path}: {e}")))?;
                Ok(Found::Object(Box::new(live.metadata)))
            }
            Err(e) if e.is_unserved() => Ok(Found::Unserved),
            Err(e) if e.is_not_found() => Ok(Found::Absent),
            Err(e) => Err(e.into()),
        }
    }

    /// Whether a kind is served now, in whatever version.
    ///
    /// # Errors
    /// Discovery of its group failed.
    pub async fn is_served(&self, group: &str, kind: &str) -> Result<bool, SyncError> {
        let found = discover(&self.client).await?;
        let is_of_group = |gv: &str| gv.split_once('/').map_or("", |(group, _)| group) == group;
        if let Some((gv, why)) = found.failed.iter().find(|(gv, _)| is_of_group(gv)) {
            return Err(SyncError::Other(format!("discovery of {gv} failed: {why}")));
        }
        Ok(found.resources.iter().any(|r| r.group == group && r.kind == kind))
    }
}

/// Whether an error says something of the kind rather than of one object.
fn is_of_the_kind(e: &ClientError) -> bool {
    matches!(e, ClientError::Transport(_)) || e.status().is_some_and(|s| s.code >= 500)
}
