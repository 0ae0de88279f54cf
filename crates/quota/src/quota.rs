//! The fields of a ResourceQuota that admission and the controller use.
use jiff::Timestamp;
use kelson_meta::tree::{items, text};
use serde_json::Value;

use crate::amounts::Amounts;
use crate::evaluator::Evaluator;
use crate::scope::Requirement;

/// The fields of a ResourceQuota that decide which objects it counts and how much of each resource is left. Admission
/// compares `hard` with `used` plus the usage of a write; the controller recomputes `used` for the names in `wished`.
#[derive(Clone, Debug)]
pub struct Quota {
    /// The name, for messages and charges.
    pub name: String,
    /// The scopes. An object must match all of them.
    pub scopes: Vec<Requirement>,
    /// The limits that the controller has observed (`status.hard`).
    pub hard: Amounts,
    /// The current usage (`status.used`).
    pub used: Amounts,
    /// The limits that the user requests (`spec.hard`).
    pub wished: Amounts,
}

impl Quota {
    /// Reads a ResourceQuota. Invalid values are left out.
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

    /// Returns whether an object matches all scopes.
    pub fn is_about(&self, evaluator: &Evaluator, object: &Value) -> bool {
        self.scopes.iter().all(|s| s.matches(evaluator, object))
    }

    /// Returns whether the quota counts an object.
    pub fn counts(&self, evaluator: &Evaluator, object: &Value) -> bool {
        self.hard.names().any(|n| evaluator.counts(n)) && self.is_about(evaluator, object)
    }

    /// Returns the total usage of these objects for the names in `wished` that count them.
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
