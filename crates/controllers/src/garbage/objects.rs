//! Reads single objects of any kind. A kind whose requests fail, for example because its conversion webhook or
//! extension server is unavailable, is retried rarely, so that it does not delay objects of other kinds.
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

/// The delay before a failing kind is read again.
const FAILING_PAUSE: Duration = Duration::from_secs(5);

/// The timeout of one request, which is the maximum time of a conversion webhook.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// The result of reading an object.
pub enum Lookup {
    Object(Box<ObjectMeta>),
    /// The kind is served, and the object does not exist.
    Absent,
    /// The version of the kind is not served.
    Unserved,
}

#[derive(Deserialize)]
struct Live {
    metadata: ObjectMeta,
}

/// Reads objects of any kind. See the module's documentation.
pub struct Objects {
    client: Client,
    /// When a failing collection may be read again, by its path. Bounded by the number of kinds.
    failing: Mutex<HashMap<String, Instant>>,
}

impl Objects {
    pub fn new(client: Client) -> Self {
        Self { client, failing: Mutex::default() }
    }

    /// Returns the metadata of one object.
    ///
    /// # Errors
    /// The request failed, or a request for the same collection failed recently.
    pub async fn get(&self, resource: &ApiResource, namespace: &str, name: &str) -> Result<Lookup, SyncError> {
        let collection = resource.path("");
        let now = Instant::now();
        if let Some(next) = self.failing.lock().get_mut(&collection) {
            if *next > now {
                let text = format!("{collection} failed recently and is not queried yet");
                return Err(SyncError::Logged(text));
            }
            // Other requests for this collection wait for the result of this one.
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
            // The request may have taken until now.
            self.failing.lock().insert(collection, Instant::now() + FAILING_PAUSE);
        } else {
            self.failing.lock().remove(&collection);
        }
        match answer {
            Ok(bytes) => {
                let live: Live =
                    kelson_meta::from_json(&bytes).map_err(|e| ClientError::Decode(format!("{path}: {e}")))?;
                Ok(Lookup::Object(Box::new(live.metadata)))
            }
            Err(e) if e.is_unserved() => Ok(Lookup::Unserved),
            Err(e) if e.is_not_found() => Ok(Lookup::Absent),
            Err(e) => Err(e.into()),
        }
    }

    /// Returns whether a kind is served in any version.
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

/// Whether an error concerns the kind rather than one object.
fn is_of_the_kind(e: &ClientError) -> bool {
    matches!(e, ClientError::Transport(_)) || e.status().is_some_and(|s| s.code >= 500)
}
