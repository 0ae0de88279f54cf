//! A ResourceQuota as it is judged by.
use jiff::Timestamp;
use kelson_meta::tree::{items, text};
use serde_json::Value;

use crate::amounts::Amounts;
use crate::evaluator::Evaluator;
use crate::scope::Requirement;

/// What is read of a ResourceQuota.
#[derive(Clone, Debug)]
pub struct Quota {
    /// Its name, for messages and charges.
    pub name: String,
    /// Which objects it is about; all must hold.
    pub scopes: Vec<Requirement>,
    /// What is allowed, as the controller has seen it (`status.hard`).
    pub hard: Amounts,
    /// What is used (`status.used`).
    pub used: Amounts,
    /// What the user allows now (`spec.hard`).
    pub wished: Amounts,
}

impl Quota {
    /// Reads a ResourceQuota's tree; what it cannot read is left out.
    pub fn read(object: &Value) -> Self {
        let spec = &object["spec"];
        let plain = items(&spec["scopes"]).iter().map(|s| Requirement::exists(text(s)));
        Self {
            name: text(&object["metadata"]["name"]).to_owned(),
            scopes: plain.chain(Requirement::read_all(&spec["scopeSelector"]["matchExpressions"])).collect(),
            hard: Amounts::read(&object["status"]["hard"]),
            used: Amounts::read(&object["status"]["used"]),
            wished: Amounts::read(&spec["hard"]),
        }
    }

    /// Whether an object is in all of its scopes.
    pub fn is_about(&self, evaluator: &Evaluator, object: &Value) -> bool {
        self.scopes.iter().all(|s| s.matches(evaluator, object))
    }

    /// Whether it counts an object.
    pub fn counts(&self, evaluator: &Evaluator, object: &Value) -> bool {
        self.hard.names().any(|n| evaluator.counts(n)) && self.is_about(evaluator, object)
    }

    /// What these objects use of it together, for the names in `wished` that are about them.
    pub fn total<'a>(
        &self,
        evaluator: &Evaluator,
        objects: impl Iterator<Item = &'a Value>,
        now: Timestamp,
    ) -> Amounts {
        let mut sum = Amounts::default();
        for name in self.wished.names().filter(|n| evaluator.counts(n)) {
            sum.set(name, kelson_meta::Quantity::default());
        }
        for object in objects.filter(|o| self.is_about(evaluator, o)) {
            sum.add(&evaluator.usage(object, now).only(|name| self.wished.0.contains_key(name)));
        }
        sum
    }
}
