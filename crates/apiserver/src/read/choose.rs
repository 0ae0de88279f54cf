//! Choose: which records match the selectors of a list, watch or collection delete, if the metadata in the store is not enough. A
//! version of a custom resource selects by its own fields, but records may be stored in another version or from before the definition had
//! these fields.
use std::sync::Arc;

use kelson_meta::Status;
use kelson_store::Record;

use crate::catalog::{Behaviour, Served};
use crate::request::selectors::Selectors;

/// Whether objects must be decoded in the served version to select them.
pub fn needs_objects(served: &Served, selectors: &Selectors) -> bool {
    matches!(served.strategy, Behaviour::Dynamic(_)) && selectors.own_fields().next().is_some()
}

/// Whether each record matches. Records that must be converted are converted together.
///
/// # Errors
/// The conversion's error.
pub async fn select(served: &Served, selectors: &Selectors, records: &[Arc<Record>]) -> Result<Vec<bool>, Status> {
    if !needs_objects(served, selectors) {
        return Ok(records.iter().map(|r| selectors.matches(r)).collect());
    }
    let mut verdicts: Vec<bool> = records.iter().map(|r| selectors.matches_identity(r)).collect();
    let asked: Vec<usize> = (0..records.len()).filter(|i| verdicts[*i]).collect();
    let looked_at: Vec<Arc<Record>> = asked.iter().map(|i| Arc::clone(&records[*i])).collect();
    let objects = served.working(&looked_at).await?;
    for (i, object) in asked.into_iter().zip(objects) {
        verdicts[i] =
            selectors.own_fields().all(|r| (served.strategy.field_value(&object, &r.field) == r.value) != r.negated);
    }
    Ok(verdicts)
}
