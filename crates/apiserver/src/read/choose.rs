//! Choose: which records a list, a watch or a collection delete is of, where what the store keeps beside them does not tell. A
//! version of a custom resource selects by fields of its own form: records may be stored in another version, or from before
//! the definition named the fields.
use std::sync::Arc;

use kelson_meta::Status;
use kelson_store::Record;

use crate::catalog::{Behaviour, Served};
use crate::request::selectors::Selectors;

/// Whether objects must be looked at, in the served version.
pub fn by_object(served: &Served, selectors: &Selectors) -> bool {
    matches!(served.strategy, Behaviour::Dynamic(_)) && selectors.own_fields().next().is_some()
}

/// Which of the records are chosen; they are converted together.
///
/// # Errors
/// What the conversion refuses.
pub async fn chosen(served: &Served, selectors: &Selectors, records: &[Arc<Record>]) -> Result<Vec<bool>, Status> {
    if !by_object(served, selectors) {
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
