//! Counts the usage of one quota in the API server and not in a cache, since recent charges of admission must be
//! included.
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use jiff::Timestamp;
use kelson_client::Client;
use kelson_meta::Quantity;
use kelson_meta::tree::items;
use kelson_quota::{Amounts, Evaluator, ExtendedResources, PodLevel, Quota};
use serde_json::Value;

use super::watches::Watches;
use crate::shared::context::SyncError;

/// Reads a list as a tree.
pub async fn read(client: &Client, path: &str) -> Result<Value, SyncError> {
    let bytes = client.call(Method::GET, path, "", Bytes::new()).await?;
    kelson_meta::from_json(&bytes).map_err(|e| SyncError::Other(format!("{path}: {e}")))
}

/// Counts the usage of quotas.
pub struct Counter<'a> {
    /// A client that may read all kinds.
    pub client: &'a Client,
    /// The served kinds and their watches.
    pub watches: &'a Watches,
    /// The rules for pod-level resources.
    pub pod_level: PodLevel,
    /// Whether device claims also count by extended resource names.
    pub extended: bool,
    pub now: Timestamp,
}

impl Counter<'_> {
    /// Returns the usage of the resources that the quota limits, and the first error. Resources that could not be
    /// counted keep their previous usage.
    pub async fn used(&self, quota: &Quota, namespace: &str) -> Result<(Amounts, Result<(), SyncError>), SyncError> {
        let mut used = quota.used.only(|name| quota.wished.0.contains_key(name));
        let mut complete = Ok(());
        let resources: BTreeSet<(String, String)> = quota.wished.names().flat_map(Evaluator::resources_of).collect();
        // A name may count objects of more than one resource.
        let (mut counted, mut unknown) = (Amounts::default(), BTreeSet::new());
        for (group, plural) in resources {
            let Some(evaluator) = Evaluator::of(&group, &plural, self.pod_level) else { continue };
            let path = self.watches.path(&evaluator, &group, &plural, namespace).await?;
            let Some(path) = path else { continue };
            match self.of_resource(quota, &evaluator, &path).await {
                Ok(amounts) => counted.add(&amounts),
                Err(e) => {
                    unknown.extend(quota.wished.names().filter(|n| evaluator.may_count(n)));
                    complete = Err(e);
                }
            }
        }
        let known = counted.0.into_iter().filter(|(name, _)| !unknown.contains(name.as_str()));
        known.for_each(|(name, amount)| used.set(name, amount));
        Ok((used, complete))
    }

    async fn of_resource(&self, quota: &Quota, evaluator: &Evaluator, path: &str) -> Result<Amounts, SyncError> {
        let Evaluator::Count(names) = evaluator else {
            let list = read(self.client, path).await?;
            let objects = items(&list["items"]);
            let with_classes = match evaluator {
                Evaluator::DeviceClaims(_) if self.extended => Some(self.extended_resources(path, objects).await?),
                _ => None,
            };
            let evaluator = with_classes.map_or(Cow::Borrowed(evaluator), |e| Cow::Owned(Evaluator::DeviceClaims(e)));
            return Ok(quota.total(&evaluator, objects.iter(), self.now));
        };
        // Only the number is needed, as a quota with scopes does not count such objects.
        let is_plain = quota.scopes.is_empty();
        let total = if is_plain { number(&read(self.client, &format!("{path}?limit=1")).await?) } else { 0 };
        let mut out = Amounts::default();
        for name in names.iter().filter(|n| quota.wished.0.contains_key(*n)) {
            out.set(name.clone(), Quantity::from_i64(total));
        }
        Ok(out)
    }

    /// Returns the extended resources of the device classes for the claims at this path.
    async fn extended_resources(&self, path: &str, claims: &[Value]) -> Result<Arc<ExtendedResources>, SyncError> {
        let (version, rest) = path.split_once("/namespaces/").unwrap_or((path, ""));
        let namespace = rest.split('/').next().unwrap_or_default();
        let classes = read(self.client, &format!("{version}/deviceclasses")).await?;
        let extended = ExtendedResources::of_classes(items(&classes["items"]).iter(), self.pod_level);
        let pods = match claims.is_empty() {
            true => Value::Null,
            false => read(self.client, &format!("/api/v1/namespaces/{namespace}/pods")).await?,
        };
        let pod = |name: &str| items(&pods["items"]).iter().find(|p| p["metadata"]["name"] == name).cloned();
        Ok(Arc::new(extended.with_claims(claims.iter(), pod)))
    }
}

/// Returns the number of objects from the first page of a list.
fn number(page: &Value) -> i64 {
    let first = i64::try_from(items(&page["items"]).len()).unwrap_or(i64::MAX);
    first.saturating_add(page["metadata"]["remainingItemCount"].as_i64().unwrap_or(0))
}
