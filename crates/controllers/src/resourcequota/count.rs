//! Counts what is used of one quota, in the API and not in a cache: what admission charged a moment ago must be seen.
use std::collections::BTreeSet;

use kelson_meta::Quantity;
use kelson_meta::tree::items;
use kelson_quota::{Amounts, Evaluator, Quota};
use serde_json::Value;

use super::Controller;
use crate::shared::context::SyncError;

/// What is used of the names that the quota limits, and whether everything could be counted. What could not keeps the amount
/// it had.
pub async fn used(
    c: &Controller,
    quota: &Quota,
    namespace: &str,
) -> Result<(Amounts, Result<(), SyncError>), SyncError> {
    let limited = |name: &str| quota.wished.0.contains_key(name);
    let mut used = quota.used.only(limited);
    let mut complete = Ok(());
    let resources: BTreeSet<(String, String)> = quota.wished.names().filter_map(Evaluator::resource_of).collect();
    for (group, plural) in resources {
        let Some(evaluator) = Evaluator::of(&group, &plural) else { continue };
        let Some(path) = c.watches.path(&evaluator, &group, &plural, namespace).await? else { continue };
        match of_resource(c, quota, &evaluator, &path).await {
            Ok(amounts) => amounts.0.iter().for_each(|(name, amount)| used.set(name.clone(), *amount)),
            Err(e) => complete = Err(e),
        }
    }
    Ok((used, complete))
}

async fn of_resource(c: &Controller, quota: &Quota, evaluator: &Evaluator, path: &str) -> Result<Amounts, SyncError> {
    let Evaluator::Count(names) = evaluator else {
        let list = c.read(path).await?;
        return Ok(quota.total(evaluator, items(&list["items"]).iter(), c.clock.now()));
    };
    // Nothing but the number is of interest, and scopes there are none: a scoped quota counts no such object.
    let total = if quota.scopes.is_empty() { number(&c.read(&format!("{path}?limit=1")).await?) } else { 0 };
    let mut out = Amounts::default();
    for name in names.iter().filter(|n| quota.wished.0.contains_key(*n)) {
        out.set(name.clone(), Quantity::from_i64(total));
    }
    Ok(out)
}

/// How many objects there are, from the first page of a list.
fn number(page: &Value) -> i64 {
    let first = i64::try_from(items(&page["items"]).len()).unwrap_or(i64::MAX);
    first.saturating_add(page["metadata"]["remainingItemCount"].as_i64().unwrap_or(0))
}
