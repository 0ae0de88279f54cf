//! `matchConditions` of webhooks and policies: expressions that must all hold for a request to be theirs
//! (upstream `plugin/webhook/matchconditions`).
use kelson_meta::tree::path::list;
use serde_json::Value;

/// The conditions of one webhook or policy.
#[derive(Debug, Default)]
pub struct Conditions {
    count: usize,
}

impl Conditions {
    /// From whatever has a field `matchConditions`.
    pub fn parse(value: &Value) -> Self {
        Self { count: list(value, &["matchConditions"]).len() }
    }

    /// Whether all hold for a request.
    ///
    /// # Errors
    /// Expressions that could not be evaluated, while none was false: what that means is the failure policy's to say.
    pub fn hold(&self) -> Result<bool, String> {
        if self.count == 0 { Ok(true) } else { Err("match conditions are not evaluated by this version".to_owned()) }
    }
}
