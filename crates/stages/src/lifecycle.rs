//! The stages of one kind of object, and the choice of an object's current stage.
use std::sync::Arc;

use rand::Rng;
use serde_json::Value;

use crate::error::StageError;
use crate::stage::Stage;
use crate::value::Subject;

/// All stages of one kind.
#[derive(Clone, Debug, Default)]
pub struct Lifecycle(pub Vec<Arc<Stage>>);

impl Lifecycle {
    /// Returns the stage that the object is in. If several stages match, one is chosen at random by weight. Stages
    /// with weight 0 are chosen only if all matching stages have weight 0.
    ///
    /// # Errors
    /// Fails when an expression in CEL cannot be evaluated on the object.
    pub fn choose(&self, object: &Value, chance: &mut impl Rng) -> Result<Option<&Arc<Stage>>, StageError> {
        let subject = Subject::of(object);
        let mut fit = Vec::new();
        for stage in &self.0 {
            if stage.matches(&subject)? {
                fit.push(stage);
            }
        }
        if fit.len() < 2 {
            return Ok(fit.pop());
        }
        let mut weighed = Vec::new();
        for stage in &fit {
            if let Some(weight) = stage.weight(&subject)? {
                weighed.push((*stage, weight.max(0).unsigned_abs()));
            }
        }
        let total: u64 = weighed.iter().fold(0, |sum, (_, w)| sum.saturating_add(*w));
        if weighed.is_empty() {
            return Ok(Some(fit[chance.random_range(0..fit.len())]));
        }
        if total == 0 {
            return Ok(Some(weighed[chance.random_range(0..weighed.len())].0));
        }
        let mut left = chance.random_range(0..total);
        for (stage, weight) in weighed {
            if left < weight {
                return Ok(Some(stage));
            }
            left -= weight;
        }
        Ok(None)
    }
}
