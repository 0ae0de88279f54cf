//! Where kinds are served: asked once, and again where a kind was not there yet.
use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use kelson_client::{Backoff, Client, ClientError};
use kelson_stages::Reference;
use parking_lot::Mutex;
use serde_json::Value;

/// A kind that is served.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Its name and version.
    pub of: Reference,
    plural: String,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
}

impl Kind {
    /// The path of all its objects, or of those in a namespace.
    pub fn path(&self, namespace: &str) -> String {
        let root = root(&self.of.api_version);
        let plural = &self.plural;
        if self.namespaced && !namespace.is_empty() {
            format!("{root}/namespaces/{namespace}/{plural}")
        } else {
            format!("{root}/{plural}")
        }
    }

    /// The path of one object, or of a part of it.
    pub fn object(&self, namespace: &str, name: &str, subresource: &str) -> String {
        let object = format!("{}/{name}", self.path(namespace));
        if subresource.is_empty() { object } else { format!("{object}/{subresource}") }
    }

    /// Whether it is the core kind of this name.
    pub fn is_core(&self, name: &str) -> bool {
        self.of.api_version == "v1" && self.of.kind == name
    }
}

fn root(api_version: &str) -> String {
    if api_version.contains('/') { format!("/apis/{api_version}") } else { format!("/api/{api_version}") }
}

/// All kinds that were asked for.
pub struct Kinds {
    client: Client,
    known: Mutex<HashMap<Reference, Kind>>,
}

impl Kinds {
    /// Nothing is known yet.
    pub fn new(client: Client) -> Self {
        Self { client, known: Mutex::default() }
    }

    /// Returns where a kind is served; `None` where it is not.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn find(&self, of: &Reference) -> Result<Option<Kind>, ClientError> {
        if let Some(kind) = self.known.lock().get(of) {
            return Ok(Some(kind.clone()));
        }
        let answer = match self.client.call(Method::GET, &root(&of.api_version), "", Bytes::new()).await {
            Err(e) if e.is_not_found() => return Ok(None),
            other => other?,
        };
        let list: Value = serde_json::from_slice(&answer).map_err(|e| ClientError::Decode(e.to_string()))?;
        let mut rows = list["resources"].as_array().into_iter().flatten();
        let row = rows.find(|r| r["kind"] == *of.kind && r["name"].as_str().is_some_and(|n| !n.contains('/')));
        let Some(row) = row else { return Ok(None) };
        let plural = row["name"].as_str().unwrap_or_default().to_owned();
        let kind = Kind { of: of.clone(), plural, namespaced: row["namespaced"] == true };
        self.known.lock().insert(of.clone(), kind.clone());
        Ok(Some(kind))
    }

    /// Waits until a kind is served.
    pub async fn found(&self, of: &Reference) -> Kind {
        let backoff = Backoff { base: Duration::from_millis(200), max: Duration::from_secs(10) };
        let mut failures = 0;
        loop {
            match self.find(of).await {
                Ok(Some(kind)) => return kind,
                Ok(None) => {
                    tracing::info!(api_version = of.api_version, kind = of.kind, "waiting until the kind is served")
                }
                Err(error) => tracing::warn!(kind = of.kind, %error, "looking up the kind's API failed; retrying"),
            }
            tokio::time::sleep(backoff.delay(failures)).await;
            failures = (failures + 1).min(12);
        }
    }
}
