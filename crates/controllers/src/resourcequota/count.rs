//! Counts what is used of one quota, in the API and not in a cache: what admission charged a moment ago must be seen.
use std::collections::BTreeSet;

use bytes::Bytes;
use http::Method;
use jiff::Timestamp;
use kelson_client::Client;
use kelson_meta::Quantity;
use kelson_meta::tree::items;
use kelson_quota::{Amounts, Evaluator, PodLevel, Quota};
use serde_json::Value;

use super::watches::Watches;
use crate::shared::context::SyncError;

/// Reads a list as a tree.
pub async fn read(client: &Client, path: &str) -> Result<Value, SyncError> {
    let bytes = client.call(Method::GET, path, "", Bytes::new()).await?;
    serde_json::from_slice(&bytes).map_err(|e| SyncError::Other(format!("{path}: {e}")))
}

/// What counting needs.
pub struct Counter<'a> {
    /// Reads all kinds.
    pub client: &'a Client,
    /// Knows where they are.
    pub watches: &'a Watches,
    /// What of pods counts.
    pub pod_level: PodLevel,
    pub now: Timestamp,
}

impl Counter<'_> {
    /// What is used of the names that the quota limits, and whether everything could be counted. What could not keeps the
    /// amount it had.
    pub async fn used(&self, quota: &Quota, namespace: &str) -> Result<(Amounts, Result<(), SyncError>), SyncError> {
        let mut used = quota.used.only(|name| quota.wished.0.contains_key(name));
        let mut complete = Ok(());
        let resources: BTreeSet<(String, String)> = quota.wished.names().filter_map(Evaluator::resource_of).collect();
        for (group, plural) in resources {
            let Some(evaluator) = Evaluator::of(&group, &plural, self.pod_level) else { continue };
            let path = self.watches.path(&evaluator, &group, &plural, namespace).await?;
            let Some(path) = path else { continue };
            match self.of_resource(quota, &evaluator, &path).await {
                Ok(amounts) => amounts.0.iter().for_each(|(name, amount)| used.set(name.clone(), *amount)),
                Err(e) => complete = Err(e),
            }
        }
        Ok((used, complete))
    }

    async fn of_resource(&self, quota: &Quota, evaluator: &Evaluator, path: &str) -> Result<Amounts, SyncError> {
        let Evaluator::Count(names) = evaluator else {
            let list = read(self.client, path).await?;
            return Ok(quota.total(evaluator, items(&list["items"]).iter(), self.now));
        };
        // Nothing but the number is of interest, and scopes there are none: a scoped quota counts no such object.
        let is_plain = quota.scopes.is_empty();
        let total = if is_plain { number(&read(self.client, &format!("{path}?limit=1")).await?) } else { 0 };
        let mut out = Amounts::default();
        for name in names.iter().filter(|n| quota.wished.0.contains_key(*n)) {
            out.set(name.clone(), Quantity::from_i64(total));
        }
        Ok(out)
    }
}

/// How many objects there are, from the first page of a list.
fn number(page: &Value) -> i64 {
    let first = i64::try_from(items(&page["items"]).len()).unwrap_or(i64::MAX);
    first.saturating_add(page["metadata"]["remainingItemCount"].as_i64().unwrap_or(0))
}
